"""Policy and critic models: building and loading.

The critic is a token classifier with one label, so transformers loads either model: the policy's backbone, initialized
with its weights, and a scalar head initialized with zeros. Both stay in evaluation mode: with dropout, the ratio of an
unchanged policy would not be 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mathppo.config import ModelSettings
from mathppo.errors import BadCheckpoint, BadSetting
from mathppo.learner.backend.attention import packed_attention
from mathppo.load_errors import UNLOADABLE

# transformers takes seconds to import: the functions that build or load a model import what they use.
if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
else:
    PreTrainedModel = PreTrainedTokenizerBase = Any

CONFIG = "config.json"
"""File of every Hugging Face model folder."""

PACKED = "mathppo_packed"


def build_policy(
    settings: ModelSettings, *, vocab_size: int, bos_id: int | None, eos_id: int, pad_id: int, seed: int
) -> PreTrainedModel:
    """Build a Llama with tied embeddings and random weights determined by `seed`; float32, on the CPU."""
    from transformers import AutoModelForCausalLM, LlamaConfig

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
    # Drawn again from a separate generator, so the weights of a seed do not depend on the library's initialization.
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=settings.initializer_range, generator=generator)
    return policy.eval()


def build_critic(policy: PreTrainedModel, *, num_layers: int = 0) -> PreTrainedModel:
    """Build a critic with a copy of the policy's trunk and a zero head: its initial values are exactly 0.

    Args:
        policy: the model whose trunk is copied.
        num_layers: number of first layers that the critic keeps; 0 = all.

    Raises:
        BadSetting: more layers than the policy has.
    """
    from transformers import AutoConfig, AutoModelForTokenClassification

    config = AutoConfig.for_model(**policy.config.to_dict())
    config.num_labels = 1
    if num_layers > config.num_hidden_layers:
        raise BadSetting(
            f"learner.critic_num_layers: expected at most the {config.num_hidden_layers} of its trunk, got {num_layers}"
        )
    if num_layers:
        config.num_hidden_layers = num_layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:num_layers]
    with torch.random.fork_rng(devices=[]):
        critic = AutoModelForTokenClassification.from_config(config, dtype=policy.dtype).to(policy.device)
    wanted = critic.base_model.state_dict().keys()
    weights = {name: tensor for name, tensor in policy.base_model.state_dict().items() if name in wanted}
    critic.base_model.load_state_dict(weights)
    for parameter in value_head(critic).parameters():
        nn.init.zeros_(parameter)
    return critic.eval()


def build_shared_critic(policy: PreTrainedModel) -> PreTrainedModel:
    """Build a critic with a zero head on the policy's trunk module itself."""
    critic = build_critic(policy)
    share_trunk(critic, policy)
    return critic


def share_trunk(critic: PreTrainedModel, policy: PreTrainedModel) -> None:
    """Replace a critic's trunk by the policy's trunk module.

    Raises:
        BadCheckpoint: the trunks are of different classes.
    """
    if critic.base_model_prefix != policy.base_model_prefix or type(critic.base_model) is not type(policy.base_model):
        raise BadCheckpoint(
            f"critic: expected a head for the policy's {type(policy.base_model).__name__}, got one for "
            f"{type(critic.base_model).__name__}; start from a checkpoint with learner.shared_trunk"
        )
    setattr(critic, critic.base_model_prefix, policy.base_model)


def value_head(critic: PreTrainedModel) -> nn.Linear:
    """Return a critic's head: the one linear layer outside its trunk."""
    heads = [module for module in critic.children() if isinstance(module, nn.Linear)]
    assert len(heads) == 1, f"expected one linear head in {type(critic).__name__}, found {len(heads)}"
    return heads[0]


def open_critic(path: Path, *, num_layers: int = 0) -> PreTrainedModel:
    """Load the critic of a checkpoint or folder, or build one with the trunk of the policy found there.

    Raises:
        BadCheckpoint: missing, damaged, or neither a critic nor a policy.
    """
    folder = _critic_folder(path)
    if num_trunk_layers(path) is None:
        return load_critic(folder)
    return build_critic(load_policy(folder), num_layers=num_layers)


def num_trunk_layers(path: Path) -> int | None:
    """Return the number of layers of the policy that a critic is built from; None if the folder holds a critic.

    Raises:
        BadCheckpoint: there is no model, or one that transformers does not know.
    """
    folder = _critic_folder(path)
    from transformers import AutoConfig

    if not (folder / CONFIG).is_file():
        raise BadCheckpoint(f"{folder}: expected a Hugging Face model folder, found no {CONFIG} there")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except UNLOADABLE as error:
        raise BadCheckpoint(f"{folder}: expected a {CONFIG} transformers can read, got: {_reason(error)}") from None
    is_critic = any(kind.endswith("ForTokenClassification") for kind in config.architectures or [])
    return None if is_critic else config.get_text_config().num_hidden_layers


def _critic_folder(path: Path) -> Path:
    return next((path / name for name in ("critic", "policy") if (path / name / CONFIG).is_file()), path)


def load_policy(path: Path) -> PreTrainedModel:
    """Load a causal language model from a Hugging Face folder; safetensors only, without remote code.

    Raises:
        BadCheckpoint: the folder is missing, damaged, or holds another kind of model.
    """
    from transformers import AutoModelForCausalLM

    return _load(AutoModelForCausalLM, path)


def load_critic(path: Path) -> PreTrainedModel:
    """Load a critic that `save_pretrained` wrote; see `load_policy`."""
    from transformers import AutoModelForTokenClassification

    return _load(AutoModelForTokenClassification, path)


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a Hugging Face folder, without remote code.

    Raises:
        BadCheckpoint: the folder has no tokenizer that loads.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except UNLOADABLE as error:
        raise BadCheckpoint(f"{path}: expected a tokenizer next to the weights, got: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """Return an error's class and the first line of its message."""
    first = str(error).strip().splitlines()[:1]
    return ": ".join([type(error).__name__, *first])


def enable_checkpointing(model: PreTrainedModel, *, packed: bool = False) -> None:
    """Mark a model's layers for activation checkpointing, which `ForwardOptions.applied_to` switches on.

    Args:
        model: policy or critic.
        packed: forward passes are packed, so recomputation in backward must be too.
    """
    # The older name is deprecated, but transformers before 5.20 does not have the newer one.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    recompute = {"context_fn": lambda: (nullcontext(), attend_packed(model))} if packed else {}
    enable({"use_reentrant": False, **recompute})


@contextmanager
def attend_packed(model: PreTrainedModel) -> Iterator[None]:
    """Use `packed_attention` in a model's layers within the context."""
    from transformers import AttentionInterface

    if PACKED not in AttentionInterface():
        AttentionInterface.register(PACKED, packed_attention)
    config: Any = model.base_model.config
    before = config._attn_implementation
    config._attn_implementation = PACKED
    try:
        yield
    finally:
        config._attn_implementation = before


def load_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a GGUF file as a float32 model without quantization in its config, and its tokenizer.

    Raises:
        BadCheckpoint: a file, architecture or quantization that transformers cannot read.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": path.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
        stored = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **options)
    except UNLOADABLE as error:
        raise BadCheckpoint(
            f"{path}: expected a GGUF model that transformers can read, got: {_reason(error)}"
        ) from None
    fields = {name: value for name, value in stored.config.to_dict().items() if name != "quantization_config"}
    # Rebuilt, because transformers does not save a model that was loaded with quantization.
    with torch.random.fork_rng(devices=[]):
        policy = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields), dtype=torch.float32)
    policy.load_state_dict(stored.state_dict())
    policy.config.name_or_path = ""
    return policy.eval(), tokenizer


def quiet() -> None:
    """Turn off the progress bars and log messages of transformers; this package shows its own progress."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()


def _load(auto: type, path: Path) -> PreTrainedModel:
    if not (path / CONFIG).is_file():
        raise BadCheckpoint(f"{path}: expected a Hugging Face model folder, found no {CONFIG} there")
    try:
        model, report = auto.from_pretrained(
            path, dtype="auto", use_safetensors=True, trust_remote_code=False, local_files_only=True,
            output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
    except UNLOADABLE as error:
        raise BadCheckpoint(
            f"{path}: expected weights that transformers loads from safetensors, got: {_reason(error)}"
        ) from None
    wrong = {name: sorted(report[name]) for name in ("missing_keys", "unexpected_keys") if report[name]}
    if report["mismatched_keys"]:
        wrong["mismatched_shapes"] = sorted(name for name, *_ in report["mismatched_keys"])
    if wrong:
        raise BadCheckpoint(
            f"{path}: weights do not match {type(model).__name__}: {wrong}; pass a folder of this kind of model"
        )
    for parameter in model.parameters():
        # Tensors of a memory-mapped file start at arbitrary addresses, and the last bit of a product depends on the
        # alignment: a resumed run would differ from an uninterrupted one.
        parameter.data = parameter.data.clone()
    return model.eval()
