"""A tiny Llama as a GGUF file in the format of converters: byte-level BPE, chat template, rotary dimensions in pairs.

Needs the package gguf, which the vLLM environment has.
"""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("s", "o"), ("so", "l"), ("sol", "v"), ("solv", "e"), ("Ġ", "x"))

MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def tokenizer() -> Any:
    """Return the tokenizer that the file describes."""
    from transformers import PreTrainedTokenizerFast

    pieces = vocabulary()
    backend = Tokenizer(BPE({piece: index for index, piece in enumerate(pieces)}, list(MERGES)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=SPECIAL[1], eos_token=SPECIAL[2], unk_token=SPECIAL[0], pad_token=SPECIAL[2]
    )
    made.chat_template = TEMPLATE
    return made


def vocabulary() -> list[str]:
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]


def policy(*, tied: bool = True) -> Any:
    """Return a random Llama with heads of size 32, the smallest that vLLM computes on a CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.3,
        rope_parameters={"rope_theta": 5000.0, "rope_type": "default"},
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return LlamaForCausalLM(config).eval()


def write(path: Path, model: Any, *, quantised: bool = False) -> dict[str, torch.Tensor]:
    """Write the file and return the weights that it encodes.

    Args:
        path: output file.
        model: model to write.
        quantised: store matrices as 8-bit blocks of 32.
    """
    gguf: Any = importlib.import_module("gguf")
    config, state = model.config, model.state_dict()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(32)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocabulary())
    writer.add_token_types([3 if piece in SPECIAL else 1 for piece in vocabulary()])
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    names |= {
        f"model.layers.{layer}.{theirs}.weight": f"blk.{layer}.{ours}.weight"
        for layer in range(config.num_hidden_layers)
        for ours, theirs in MATRICES.items()
    }
    if not config.tie_word_embeddings:
        names["lm_head.weight"] = "output.weight"
    encoded: dict[str, torch.Tensor] = {}
    for theirs, ours in names.items():
        array = state[theirs].numpy()
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(ours.split(".")[-2])
        stored = _halves_to_pairs(array, heads) if heads else array
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised and array.ndim == 2 else gguf.GGMLQuantizationType.F32
        packed = gguf.quants.quantize(stored, kind)
        unpacked = np.array(gguf.quants.dequantize(packed, kind)).reshape(stored.shape)
        encoded[theirs] = torch.from_numpy(_pairs_to_halves(unpacked, heads) if heads else unpacked)
        writer.add_tensor(ours, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return encoded


def _halves_to_pairs(array: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows from transformers' order, first halves of the rotated pairs and then second halves, to pairs."""
    rows, columns = array.shape
    return np.ascontiguousarray(array.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)).reshape(
        array.shape
    )


def _pairs_to_halves(array: np.ndarray, heads: int) -> np.ndarray:
    rows, columns = array.shape
    return np.ascontiguousarray(array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2)).reshape(
        array.shape
    )
