"""Tiny causal LMs of several architectures, built in code, and a tokenizer that decodes ids as numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

VOCAB_SIZE = 23
CONTEXT = 48
NO_SPECIAL: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
    **NO_SPECIAL,
}
GPT2_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": CONTEXT,
    "initializer_range": 0.2,
    **NO_SPECIAL,
}
BLOOM_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "n_layer": 2,
    "n_head": 4,
    "initializer_range": 0.2,
    **NO_SPECIAL,
}


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=4, tie_word_embeddings=True))


def _llama_eager() -> Any:
    model = _llama()
    model.set_attn_implementation("eager")
    return model


def _qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=2))


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**GPT2_SHAPE))  # dropout 0.1, learnt positions


def _mistral() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=5))


def _bloom() -> Any:
    from transformers import BloomConfig, BloomForCausalLM

    return BloomForCausalLM(BloomConfig(**BLOOM_SHAPE))  # takes no position_ids


BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "llama_eager": _llama_eager,
    "qwen2": _qwen2,
    "gpt2": _gpt2,
    "mistral": _mistral,
    "bloom": _bloom,
}


def build(name: str, seed: int = 0) -> Any:
    """Build a float32 model in eval mode with weights of a seed; the global generator is unchanged."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return BUILDERS[name]().eval()


class IdsTokenizer:
    """Decodes ids as numbers, without special ids if requested."""

    def __init__(self, special: Sequence[int] = ()) -> None:
        self.special = set(special)

    def batch_decode(
        self, sequences: list[list[int]], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> list[str]:
        assert not clean_up_tokenization_spaces
        kept = [[i for i in ids if not (skip_special_tokens and i in self.special)] for ids in sequences]
        return [" ".join(map(str, ids)) for ids in kept]
