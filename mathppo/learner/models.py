"""Policy and critic: building, loading, and the two forward passes that the learner needs.

The critic is a token classifier with one label, so that plain transformers loads either: the same backbone as the
policy, started from its weights, with a scalar head that starts at zero. Both stay in evaluation mode: dropout is off
while sampling and while learning, else the ratio of an unchanged policy would not be 1.

Touches: model folders, for reading; safetensors only.
"""

from pathlib import Path

import torch
import transformers
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from mathppo.batch import Batch
from mathppo.config import ModelSettings
from mathppo.errors import BadCheckpoint
from mathppo.ppo import logprobs


def build_policy(
    settings: ModelSettings, *, vocab_size: int, bos_id: int | None, eos_id: int, pad_id: int, seed: int
) -> PreTrainedModel:
    """Give a new Llama with tied embeddings and random weights fixed by `seed`; float32, on the CPU."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        max_position_embeddings=settings.context_tokens,
        initializer_range=settings.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=bos_id,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
    )
    with torch.random.fork_rng(devices=[]):
        policy = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # Drawn again from a generator of its own: the weights of a seed change with no version's order of drawing.
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=settings.initializer_range, generator=generator)
    return policy.eval()


def build_critic(policy: PreTrainedModel) -> PreTrainedModel:
    """Give a critic with the policy's backbone weights and a zero head: its values are exactly 0 at first."""
    config = AutoConfig.for_model(**policy.config.to_dict())
    config.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        critic = AutoModelForTokenClassification.from_config(config, dtype=policy.dtype).to(policy.device)
    critic.base_model.load_state_dict(policy.base_model.state_dict())
    backbone = set(critic.base_model.parameters())
    for parameter in critic.parameters():
        if parameter not in backbone:
            nn.init.zeros_(parameter)
    return critic.eval()


def load_policy(path: Path) -> PreTrainedModel:
    """Load a causal language model from a Hugging Face folder; safetensors only, no code of its own is run.

    Raises:
        BadCheckpoint: the folder is missing, damaged, or holds another kind of model.
    """
    return _load(AutoModelForCausalLM, path)


def load_critic(path: Path) -> PreTrainedModel:
    """Load a critic as `save_pretrained` wrote it; see `load_policy`."""
    return _load(AutoModelForTokenClassification, path)


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a Hugging Face folder; no code of its own is run.

    Raises:
        BadCheckpoint: the folder holds none that loads.
    """
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadCheckpoint(f"{path}: expected a tokenizer beside the weights, got: {reason}") from None


def quiet() -> None:
    """Turn off transformers' own progress bars and remarks: this package shows its own."""
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()


def _load(auto: type, path: Path) -> PreTrainedModel:
    if not (path / "config.json").is_file():
        raise BadCheckpoint(f"{path}: expected a Hugging Face model folder, found no config.json there")
    try:
        model, report = auto.from_pretrained(
            path, dtype="auto", use_safetensors=True, trust_remote_code=False, local_files_only=True,
            output_loading_info=True,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadCheckpoint(
            f"{path}: expected weights that transformers loads from safetensors, got: {reason}"
        ) from None
    wrong = {name: sorted(report[name]) for name in ("missing_keys", "unexpected_keys") if report[name]}
    if wrong:
        raise BadCheckpoint(
            f"{path}: weights do not fit {type(model).__name__}: {wrong}; give the folder of this kind of model"
        )
    return model.eval()


def completion_logprobs(
    policy: PreTrainedModel, batch: Batch, *, temperature: float, with_entropy: bool = True
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Give the log-probabilities of the completion's tokens, and the entropies of what they were drawn from, in nats.

    Without `with_entropy` the entropies are 0, and cost nothing.

    Alignment as drawn in `batch.py`. Padding columns hold finite numbers that mean nothing.
    """
    logits = policy(
        input_ids=batch.ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
        logits_to_keep=batch.completion_width + 1,
    ).logits[:, :-1]
    ids = batch.ids[:, batch.prompt_width :]
    token_logprobs = logprobs.token_logprobs(logits, ids, temperature=temperature)
    if not with_entropy:
        return token_logprobs, torch.zeros_like(token_logprobs)
    return token_logprobs, logprobs.entropy(logits, temperature=temperature)


def completion_values(critic: PreTrainedModel, batch: Batch) -> tuple[Float[Tensor, "B T"], Float[Tensor, " B"]]:
    """Give `values` and V(prompt + whole completion), as drawn in `batch.py`; float32."""
    output = critic(
        input_ids=batch.ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids, use_cache=False
    )
    values = output.logits[..., 0].float()
    start = batch.prompt_width - 1
    final = values.gather(1, (start + batch.lengths)[:, None]).squeeze(1)
    return values[:, start : start + batch.completion_width], final
