"""Import of a GGUF file written here, up to samples of vLLM; and damaged or inconsistent files."""

import random
import struct
from pathlib import Path
from typing import Any, cast

import gguf_files
import pytest
import torch
from vllm_samples import largest_gap, requests

from mathppo.cli import main
from mathppo.errors import BadCheckpoint, BadInput, MathPPOError
from mathppo.generator.base import Sampling
from mathppo.generator.vllm.vllm_generator import VLLMGenerator
from mathppo.generator.vllm.vllm_memory import VLLMOptions
from mathppo.importers.import_gguf import import_gguf

CHAT = [{"role": "user", "content": "solve x"}]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    gguf_files.write(path, gguf_files.policy(), quantised=True)
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_has_the_dequantised_weights_of_the_file(tmp_path: Path, tied: bool) -> None:
    dequantised = gguf_files.write(tmp_path / "tiny.gguf", gguf_files.policy(tied=tied), quantised=True)
    from transformers import AutoModelForCausalLM

    assert main(["import-gguf", str(tmp_path / "tiny.gguf"), "--out", str(tmp_path / "out")]) == 0
    loaded, report = cast(Any, AutoModelForCausalLM).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    state = loaded.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in dequantised.items())
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert loaded.config.tie_word_embeddings == tied
    # Compare logits too: rotations, norms and heads must be in the right places.
    model = gguf_files.policy(tied=tied)
    model.load_state_dict(dequantised, strict=False)
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert (loaded(ids).logits - model(ids).logits).abs().max() < 1e-5
    assert not (tmp_path / "out" / "config.json").read_text().count("quantization")


def test_tokenizer_and_chat_template_come_from_the_file(file: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer, ours = AutoTokenizer.from_pretrained(import_gguf(str(file), tmp_path / "out")), gguf_files.tokenizer()
    for text in ("solve x", " x = -3, é", "<|im_start|>so<|im_end|>"):
        ids = ours.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.decode(ids) == text
    rendered = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert rendered == ours.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        *("<|im_start|>", "<|im_end|>", "<|im_end|>"),
    )


def test_vllm_samples_from_the_folder_and_loads_new_weights(file: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = import_gguf(str(file), tmp_path / "out")
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sampling = Sampling(max_new_tokens=12, stop_token_ids=(2,), temperature=0.8)
    options = VLLMOptions(kv_cache_bytes=32 << 20, max_batch_size=16)
    with VLLMGenerator(folder, AutoTokenizer.from_pretrained(folder), options=options) as engine:
        assert largest_gap(list(engine.generate(requests(8), sampling)), policy, 0.8) < 1e-4
        other = gguf_files.policy()
        engine.refresh(1, other.state_dict())
        assert largest_gap(list(engine.generate(requests(8), sampling)), other, 0.8) < 1e-4


ALIGNED_TO_NOTHING = b"GGUF" + struct.pack("<IQQQ17sII", 3, 0, 1, 17, b"general.alignment", 4, 0)


def with_value(raw: bytes, key: str, value: int) -> bytes:
    """Replace the 32-bit value after a key."""
    at = raw.index(key.encode()) + len(key) + 4
    return raw[:at] + struct.pack("<I", value) + raw[at + 4 :]


def with_count(raw: bytes, at: int) -> bytes:
    return raw[:at] + struct.pack("<Q", 1 << 60) + raw[at + 8 :]


DAMAGED = {
    "another kind": (lambda raw: b"PK.." + raw, r"which begins with b'GGUF', got b'PK\.\.'"),
    "nothing but its magic": (lambda raw: raw[:4], "expected 4 more bytes at byte 4, got 0"),
    "cut in the metadata": (lambda raw: raw[:3000], "the file is truncated or damaged: download it again"),
    "cut in the tensors": (lambda raw: raw[:-5000], r"expected \d+ bytes of tensors, got \d+; the file is truncated"),
    "without the last byte": (lambda raw: raw[:-1], "expected .* bytes of tensors"),
    "a future version": (lambda raw: raw[:4] + b"\x09\0\0\0" + raw[8:], "expected GGUF version 2 or 3, got 9"),
    "endless tensors": (lambda raw: with_count(raw, 8), "got a count of 1152921504606846976 at byte 16"),
    "endless metadata": (lambda raw: with_count(raw, 16), "got a count of 1152921504606846976 at byte 24"),
    "no text": (lambda raw: raw.replace(b"general.name", b"general.\xff\xff\xff\xff"), "expected UTF-8 text"),
    "an unknown value": (lambda raw: with_type(raw, "general.name", 77), "expected a known value type, got 77"),
    "many dimensions": (lambda raw: with_type(raw, "token_embd.weight", 5), "at most 4 dimensions, got 5"),
    "an unknown quantisation": (lambda raw: with_kind(raw, 99), "expected a known quantisation, got type 99"),
    "a million layers": (lambda raw: with_value(raw, "llama.block_count", 1 << 20), "block_count to be 2, as in the"),
    "a vast width": (lambda raw: with_value(raw, "llama.embedding_length", 1 << 30), "embedding_length to be 64"),
    "a vast layer": (lambda raw: with_value(raw, "llama.feed_forward_length", 1 << 30), "feed_forward_length to be 96"),
    "a vast vocabulary": (lambda raw: with_value(raw, "llama.vocab_size", 1 << 30), "vocab_size to be 264"),
    "no embeddings": (lambda raw: raw.replace(b"token_embd", b"token_emb_"), "no token embeddings"),
    "no alignment": (lambda raw: ALIGNED_TO_NOTHING, "expected general.alignment of 1 or more, got 0"),
    "no tokenizer": (lambda raw: raw.replace(b"ggml.tokens", b"ggml.tokenz"), "expected a tokenizer of 264 tokens"),
}


def with_type(raw: bytes, key: str, value: int) -> bytes:
    """Replace the 32-bit number directly after a name."""
    at = raw.index(key.encode()) + len(key)
    return raw[:at] + struct.pack("<I", value) + raw[at + 4 :]


def with_kind(raw: bytes, value: int) -> bytes:
    at = raw.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 2 * 8
    return raw[:at] + struct.pack("<I", value) + raw[at + 4 :]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_rejected_before_memory_is_allocated(file: Path, tmp_path: Path, damage: str) -> None:
    change, message = DAMAGED[damage]
    (tmp_path / "bad.gguf").write_bytes(change(file.read_bytes()))
    with pytest.raises(BadInput, match=message):
        import_gguf(str(tmp_path / "bad.gguf"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("llama.attention.head_count", 0, "ZeroDivisionError"), ("general.architecture", 0, "not supported")],
)
def test_a_file_that_transformers_cannot_read_gives_a_one_line_error(
    file: Path, tmp_path: Path, key: str, value: int, message: str
) -> None:
    raw = file.read_bytes()
    changed = raw.replace(b"llama", b"trama") if key == "general.architecture" else with_value(raw, key, value)
    (tmp_path / "bad.gguf").write_bytes(changed)
    with pytest.raises(BadCheckpoint, match=f"expected a GGUF model that transformers can read, got: .*{message}"):
        import_gguf(str(tmp_path / "bad.gguf"), tmp_path / "out")


def test_random_damage_raises_only_named_errors(file: Path, tmp_path: Path) -> None:
    raw, chance = file.read_bytes(), random.Random(0)
    outcomes = set()
    for round_index in range(60):
        bad = bytearray(raw)
        for _ in range(3):
            bad[chance.randrange(4, 8000)] = chance.choice([0, 255, chance.randrange(256)])
        (tmp_path / "bad.gguf").write_bytes(bad)
        try:
            import_gguf(str(tmp_path / "bad.gguf"), tmp_path / str(round_index))
            outcomes.add("read")
        except MathPPOError as error:
            outcomes.add(str(tmp_path / "bad.gguf") in str(error))
    assert outcomes <= {"read", True}
    assert True in outcomes
