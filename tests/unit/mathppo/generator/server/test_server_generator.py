"""HTTP engine against a server on the loopback interface."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from openai_server import Fake, serve
from tiny_lms import IdsTokenizer
from tiny_runs import tiny_learner

from mathppo.errors import BadCheckpoint, BadInput, BadSetting, StageFailed
from mathppo.generator.base import Request, Sampling
from mathppo.generator.server import http_client
from mathppo.generator.server.server_generator import Server, ServerGenerator

SAMPLING = Sampling(max_new_tokens=4, stop_token_ids=(2, 7), temperature=0.7, top_p=0.9, top_k=5)


class Words(IdsTokenizer):
    """Tokenizer that can decode one sequence."""

    def decode(self, ids: list[int], **options: Any) -> str:
        return self.batch_decode([ids], **options)[0]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setattr(http_client, "PAUSE_S", 0.001)
    with serve() as server:
        yield server


def request(index: int = 0, *, length: int = 3) -> Request:
    return Request(problem_id=f"p{index}", sample_index=0, prompt_ids=(1, *[5] * (length - 1)), seed=9000 + index)


class Opener(Protocol):
    def __call__(self, *, folder: Path | None = None, **settings: Any) -> ServerGenerator: ...


@pytest.fixture
def engine(fake: Fake) -> Iterator[Opener]:
    """Open engines that are closed after the test."""
    opened = []

    def open_one(*, folder: Path | None = None, **settings: Any) -> ServerGenerator:
        opened.append(ServerGenerator(Server(url=fake.url, **settings), Words(), policy_step=3, folder=folder))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def test_every_request_contains_all_sampling_parameters_and_its_seed(fake: Fake, engine: Opener) -> None:
    (rollout,) = engine().generate([request(1)], SAMPLING)
    (body,) = fake.asked
    assert body["prompt"] == [1, 5, 5]
    assert body["seed"] == 9001
    assert body["stop_token_ids"] == [2, 7]
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (0.7, 0.9, 5, 0.0)
    assert (body["repetition_penalty"], body["presence_penalty"], body["frequency_penalty"]) == (1.0, 0.0, 0.0)
    assert body["ignore_eos"]
    assert rollout.completion_ids == [9, 0, 0, 1]
    assert rollout.behaviour_logprobs == [-2.5, -0.25, -0.25, -0.5]
    assert rollout.completion == "9 0 0 1"
    assert (rollout.policy_step, rollout.seed, rollout.truncated) == (3, 9001, True)


def test_parallel_requests_get_their_responses(fake: Fake, engine: Opener) -> None:
    rollouts = list(engine(max_connections=7).generate([request(i) for i in range(40)], SAMPLING))
    assert {r.problem_id: r.completion_ids for r in rollouts} == {f"p{i}": [9, 0, i // 10, i % 10] for i in range(40)}


def test_the_server_context_limits_the_budget(fake: Fake, engine: Opener) -> None:
    (rollout,) = engine().generate([request(0, length=38)], SAMPLING)
    assert len(rollout.completion_ids) == 2
    with pytest.raises(BadInput, match="expected a prompt of at most 39 tokens"):
        engine().generate([request(0, length=40)], SAMPLING)


def test_server_errors_are_retried_a_limited_number_of_times(fake: Fake, engine: Opener) -> None:
    fake.failures = 2
    assert len(list(engine(max_retries=2).generate([request()], SAMPLING))) == 1
    fake.failures = 3
    with pytest.raises(StageFailed, match=r"in 3 tries, got ConnectionError.*engine is dead.*run the same command"):
        list(engine(max_retries=2).generate([request()], SAMPLING))


def test_a_rejected_request_is_not_sent_again(fake: Fake, engine: Opener) -> None:
    fake.status = 400
    with pytest.raises(BadInput, match="rejected it: /v1/completions answered 400: no such thing"):
        list(engine().generate([request()], SAMPLING))
    assert len(fake.asked) == 1


@pytest.mark.parametrize("missing", ["token_ids", "logprobs"])
def test_a_response_without_ids_or_logprobs_is_rejected(fake: Fake, engine: Opener, missing: str) -> None:
    fake.change = lambda choice: {key: value for key, value in choice.items() if key != missing}
    with pytest.raises(BadInput, match="expected token_ids and logprobs in the answer"):
        list(engine().generate([request()], SAMPLING))


@pytest.mark.parametrize(
    "whole",
    [b"<html>", [], {"choices": []}, {"choices": [{"token_ids": "12"}]}, {"choices": [{"token_ids": [1.5]}]}, None],
)
def test_a_malformed_response_raises_and_does_not_hang(fake: Fake, engine: Opener, whole: Any) -> None:
    fake.whole = lambda body: whole
    with pytest.raises(StageFailed, match=r"problem 'p[01]' sample 0: expected .*answer"):
        list(engine(max_retries=1).generate([request(), request(1)], SAMPLING))


def test_a_decoding_error_does_not_hang(fake: Fake, engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(self: Words, ids: list[int], **options: Any) -> str:
        raise OverflowError("can't convert to u32")

    monkeypatch.setattr(Words, "decode", decode)
    with pytest.raises(OverflowError, match="u32"):
        list(engine().generate([request()], SAMPLING))


def test_a_closed_idle_connection_is_not_a_failure(fake: Fake, engine: Opener) -> None:
    fake.hangs_up = True
    opened = engine(max_retries=0)
    requests = [request(index) for index in range(4)]
    for _ in range(3):
        assert len(list(opened.generate(requests, SAMPLING))) == 4
    assert len(fake.asked) == 12


def test_a_busy_server_gets_more_tries_than_a_broken_one(
    fake: Fake, engine: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.busy = 12
    assert len(list(engine(max_retries=0).generate([request(0), request(1)], SAMPLING))) == 2
    fake.busy = 10**6
    monkeypatch.setattr(http_client, "BUSY_S", 0.05)
    with pytest.raises(StageFailed, match="429: rate limit"):
        list(engine(max_retries=0).generate([request()], SAMPLING))


def test_a_server_that_does_not_respond_times_out(fake: Fake, engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.pause_s = 1.0
    monkeypatch.setattr(http_client, "TIMEOUT_S", 0.1)
    with pytest.raises(StageFailed, match="in 2 tries, got TimeoutError"):
        list(engine(max_retries=1).generate([request()], SAMPLING))


def test_an_unknown_finish_reason_is_an_error(fake: Fake, engine: Opener) -> None:
    fake.change = lambda choice: choice | {"finish_reason": "abort"}
    with pytest.raises(StageFailed, match=r"finish reason 'stop' or 'length' from .*, got 'abort'"):
        list(engine().generate([request()], SAMPLING))


def test_a_model_that_is_not_served_is_rejected(fake: Fake, engine: Opener) -> None:
    assert engine(model="other").policy_step == 3
    with pytest.raises(BadSetting, match=r"generator\.served_model: expected one of policy, other at"):
        engine(model="third")


@pytest.mark.parametrize(
    "url", ["", "ftp://127.0.0.1", "http://", "http://localhost:port", "http://localhost:99999", "http://[::1"]
)
def test_an_invalid_address_is_rejected(url: str) -> None:
    with pytest.raises(BadSetting, match=r"generator\.url: expected an address such as"):
        ServerGenerator(Server(url=url), Words())


def test_an_unreachable_address_is_rejected() -> None:
    with serve() as gone:
        url = gone.url
    with pytest.raises(BadSetting, match=r"generator\.url: expected an OpenAI-compatible server"):
        ServerGenerator(Server(url=url), Words())


def test_new_weights_are_written_loaded_and_removed(fake: Fake, engine: Opener, tmp_path: Path) -> None:
    policy = tiny_learner(algorithm="reinforce++").policy
    policy.save_pretrained(tmp_path / "policy")
    shared = tmp_path / "shared"
    with engine(takes_weights=True, weights_folder=str(shared), folder=tmp_path / "policy") as opened:
        opened.refresh(5, policy.state_dict())
        assert opened.policy_step == 5
        paths = [path.partition("?")[0] for path, _ in fake.calls]
        assert paths == ["/pause", "/collective_rpc", "/reset_prefix_cache", "/resume"]
        assert fake.calls[1][1]["method"] == "read_weights"
        assert Path(fake.calls[1][1]["args"][0]).is_file()
        with pytest.raises(BadInput, match="expected the policy's weights, got none"):
            opened.refresh(6)
        with pytest.raises(BadCheckpoint, match=r"no lm_head\.weight"):
            opened.refresh(6, dict(policy.named_parameters()))
        fake.failures = 1
        with pytest.raises(StageFailed, match=r"expected a vLLM server that accepts weights.*--worker-extension-cls"):
            opened.refresh(6, policy.state_dict())
    assert list(shared.iterdir()) == []


def test_a_refresh_fails_unfinished_completions(fake: Fake, engine: Opener, tmp_path: Path) -> None:
    policy = tiny_learner(algorithm="reinforce++").policy
    policy.save_pretrained(tmp_path / "policy")
    opened = engine(takes_weights=True, weights_folder=str(tmp_path / "shared"), folder=tmp_path / "policy")
    rollouts = opened.generate([request(0), request(1)], SAMPLING)
    assert next(rollouts).policy_step == 3
    opened.refresh(4, policy.state_dict())
    with pytest.raises(BadInput, match="got refreshed ones with 1 unfinished"):
        next(rollouts)


def test_an_openai_engine_rejects_weights(fake: Fake, engine: Opener) -> None:
    with pytest.raises(BadInput, match="train with 'hf', 'vllm' or 'vllm-http'"):
        engine().refresh(1, {})
