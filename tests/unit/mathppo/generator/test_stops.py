"""Stop strings: the rule, and that the embedded engine and the HTTP engine follow it."""

from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import serve
from tiny_lms import IdsTokenizer, build
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from mathppo.config import load_config
from mathppo.errors import BadInput, BadSetting
from mathppo.generator.base import Request, Sampling
from mathppo.generator.hf.hf_generator import HFGenerator
from mathppo.generator.server.server_generator import Server, ServerGenerator
from mathppo.generator.stops import StopStrings
from mathppo.pipeline.stages.generate import sampling_of
from mathppo.prompts import build_equation_tokenizer
from mathppo.records import FinishReason


class Words(IdsTokenizer):
    """Tokenizer that can also decode one sequence."""

    def decode(self, ids: list[int], **options: Any) -> str:
        return self.batch_decode([ids], **options)[0]


@cache
def byte_tokenizer() -> Any:
    """Build a tokenizer with one token per byte, so non-ASCII letters span several tokens, and two merged tokens."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate([*alphabet, "ab", "abc"])}
    backend = Tokenizer(BPE(vocabulary, [("a", "b"), ("ab", "c")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


@given(st.text("abcé½ ", max_size=30), st.lists(st.text("abcé½ ", min_size=1, max_size=4), min_size=1, max_size=3))
def test_the_end_is_the_first_token_that_completes_a_stop_string(text: str, strings: list[str]) -> None:
    ids = byte_tokenizer().encode(text)
    prefixes = [byte_tokenizer().decode(ids[:end]) for end in range(len(ids) + 1)]
    expected = next((end for end, prefix in enumerate(prefixes) if any(s in prefix for s in strings)), None)
    stops = StopStrings(byte_tokenizer(), strings)
    assert stops.find_end(ids) == expected
    one_by_one = (stops.find_end(ids[:end], end - 1) for end in range(1, len(ids) + 1))
    assert next((end for end in one_by_one if end is not None), None) == expected


def test_special_tokens_are_searched_and_no_strings_end_nothing() -> None:
    end = byte_tokenizer().vocab["<end>"]
    assert StopStrings(byte_tokenizer(), ["<end>"]).find_end([1, end, 2]) == 2
    assert not StopStrings(byte_tokenizer(), [])
    assert StopStrings(byte_tokenizer(), []).find_end([1, end, 2]) is None


def requests(count: int) -> list[Request]:
    return [Request(problem_id=f"p{i}", sample_index=0, prompt_ids=(3, 4, 5 + i), seed=70 + i) for i in range(count)]


@pytest.mark.parametrize("max_batch_size", [3, 64])
def test_the_embedded_engine_stops_at_the_string_and_samples_the_same_tokens(max_batch_size: int) -> None:
    engine = HFGenerator(build("llama"), Words(), max_batch_size=max_batch_size)
    free = Sampling(max_new_tokens=20, stop_token_ids=(1,))
    bound = msgspec.structs.replace(free, stop=("7 1", "9"))
    whole = {rollout.problem_id: rollout for rollout in engine.generate(requests(12), free)}
    ended = list(engine.generate(requests(12), bound))
    assert {rollout.finish_reason for rollout in ended} == set(FinishReason)
    for rollout in ended:
        longer = whole[rollout.problem_id]
        cut = StopStrings(Words(), bound.stop).find_end(longer.completion_ids)
        assert rollout.completion_ids == longer.completion_ids[:cut]
        assert rollout.behaviour_logprobs == pytest.approx(longer.behaviour_logprobs[:cut], abs=1e-5)
        assert rollout.completion == " ".join(map(str, rollout.completion_ids))
        assert rollout.terminated == (cut is not None or longer.terminated)
    by_string = [rollout for rollout in ended if rollout.terminated and rollout.completion_ids[-1] != 1]
    assert by_string
    assert all(any(text in rollout.completion for text in bound.stop) for rollout in by_string)


def test_an_empty_stop_string_is_rejected() -> None:
    engine = HFGenerator(build("llama"), Words())
    with pytest.raises(BadInput, match="expected stop strings of one character or more"):
        engine.generate(requests(1), Sampling(max_new_tokens=2, stop_token_ids=(1,), stop=("7", "")))


def test_a_server_gets_the_stop_strings_and_its_tokens_are_kept_up_to_one() -> None:
    with serve() as fake:
        engine = ServerGenerator(Server(url=fake.url), Words())
        sampling = Sampling(max_new_tokens=6, stop_token_ids=(2,), stop=("1 2",))
        request = Request(problem_id="p", sample_index=0, prompt_ids=(1, 5), seed=10123)
        (rollout,) = engine.generate([request], sampling)  # the server's tokens are the digits of the seed: 0 1 0 1 2 3
        assert fake.asked[0]["stop"] == ["1 2"]
        assert fake.asked[0]["include_stop_str_in_output"]
        assert (rollout.completion_ids, rollout.completion) == ([0, 1, 0, 1, 2], "0 1 0 1 2")
        assert len(rollout.behaviour_logprobs) == 5
        assert rollout.terminated
        fake.change = lambda choice: choice | {"finish_reason": "stop", "token_ids": [0, 1, 0, 1, 0, 3]}
        with pytest.raises(
            BadInput,
            match=r"expected .* to return the tokens of the stop string, got ids without any of generator.stop",
        ):
            list(engine.generate([request], sampling))
        engine.close()


def test_stop_settings_are_added_to_the_end_token() -> None:
    tokenizer = build_equation_tokenizer()
    config = load_config(None, [("generator.stop", '["\\n\\n", "so"]'), ("generator.stop_token_ids", "[7, 2]")])
    sampling = sampling_of(config, tokenizer)
    assert sampling.stop == ("\n\n", "so")
    assert sampling.stop_token_ids == (tokenizer.eos_token_id, 7)
    with pytest.raises(BadSetting, match=r"generator\.stop"):
        load_config(None, [("generator.stop", '[""]')])
