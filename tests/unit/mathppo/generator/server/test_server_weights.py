"""Requests to a vLLM server, and their order, for weight updates and sleep."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from openai_server import Fake, serve
from vllm_samples import build, save

from mathppo.errors import BadInput, StageFailed
from mathppo.generator.server import server_weights
from mathppo.generator.server.http_client import HTTPClient
from mathppo.generator.server.server_weights import ServerWeights
from mathppo.generator.vllm.weight_update import local_address
from mathppo.prompts import build_equation_tokenizer


@cache
def policy_state() -> dict[str, torch.Tensor]:
    return build(0).state_dict()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(build(0), build_equation_tokenizer(), tmp_path_factory.mktemp("policy"))


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serve() as server:
        yield server


@pytest.fixture
def server(fake: Fake) -> Iterator[HTTPClient]:
    address = HTTPClient(fake.url + "/v1")
    yield address
    address.close()


def paths(fake: Fake) -> list[str]:
    asked = [path for path, _ in fake.calls]
    fake.calls.clear()
    return asked


def test_a_sleeping_server_wakes_in_two_steps_around_a_weight_update(
    fake: Fake, server: HTTPClient, folder: Path
) -> None:
    weights = ServerWeights(server, folder, sleep=2)
    weights.sleep()
    weights.sleep()
    assert paths(fake) == ["/sleep?level=2"]
    with pytest.raises(BadInput, match="expected a refresh after a sleep of level 2"):
        weights.wake()
    weights.send(policy_state(), 1)
    assert paths(fake) == [
        *("/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache", "/reset_prefix_cache", "/resume")
    ]
    weights.send(policy_state(), 2)
    assert paths(fake) == ["/pause?mode=wait", "/collective_rpc", "/reset_prefix_cache", "/resume"]
    weights.close()


@pytest.mark.parametrize("failing", ["/collective_rpc", "/resume"])
def test_a_server_that_fails_during_an_update_is_resumed(
    fake: Fake, server: HTTPClient, folder: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    post = server.post

    def fail(path: str, body: Any, *, tries: int) -> Any:
        fake.failures = int(path == failing)
        return post(path, body, tries=tries)

    monkeypatch.setattr(server, "post", fail)
    weights = ServerWeights(server, folder)
    with pytest.raises(StageFailed, match=rf"accepts weights, got: {failing} answered 500: engine is dead"):
        weights.send(policy_state(), 1)
    assert "/resume" in paths(fake)
    weights.close()


def test_a_server_at_sleep_level_1_wakes_for_a_request(fake: Fake, server: HTTPClient, folder: Path) -> None:
    weights = ServerWeights(server, folder, sleep=1)
    weights.wake()
    weights.sleep()
    weights.wake()
    weights.wake()
    assert paths(fake) == ["/sleep?level=1", "/wake_up"]
    ServerWeights(server, folder).sleep()
    assert paths(fake) == []
    fake.failures = 1
    with pytest.raises(StageFailed, match=r"expected a vLLM server that supports sleep, got: .* --enable-sleep-mode"):
        weights.sleep()


class Broadcast:
    """Records its arguments and the steps that were sent."""

    def __init__(self, url: str, num_workers: int, dtype: torch.dtype) -> None:
        self.url, self.num_workers, self.dtype = url, num_workers, dtype
        self.steps: list[int] = []
        self.error: Exception | None = None

    def send(self, weights: Mapping[str, Any], policy_step: int) -> None:
        if self.error is not None:
            raise self.error
        assert weights is policy_state()
        self.steps.append(policy_step)

    def close(self) -> None:
        self.steps.append(-1)


def test_a_broadcast_connects_once_and_closes_with_the_engine(
    fake: Fake, server: HTTPClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Broadcast] = []

    def make(*options: Any) -> Broadcast:
        made.append(Broadcast(*options))
        return made[-1]

    monkeypatch.setattr(server_weights, "NCCLTransfer", make)
    monkeypatch.setattr(HTTPClient, "get", lambda self, path: {"/get_world_size": {"world_size": 4}}[path])
    weights = ServerWeights(server, folder, transfer="nccl", dtype="bfloat16")
    weights.send(policy_state(), 1)
    weights.send(policy_state(), 2)
    assert paths(fake) == ["/pause?mode=wait", "/reset_prefix_cache", "/resume"] * 2
    (one,) = made
    assert (one.url, one.num_workers, one.dtype) == (fake.url, 4, torch.bfloat16)
    one.error = RuntimeError("the other side left")
    with pytest.raises(StageFailed, match=r"got: the other side left; start it with .* --weight-transfer-config"):
        weights.send(policy_state(), 3)
    assert paths(fake) == ["/pause?mode=wait", "/resume"]
    weights.close()
    assert one.steps == [1, 2, -1]


def test_local_address_is_the_one_that_the_server_sees(fake: Fake) -> None:
    address, port = local_address(fake.url)
    assert address == "127.0.0.1"
    assert port > 0
