"""A vLLM server in development mode: samples, weight updates through its routes, and a killed engine.

It takes half a minute to start, so these are marked slow: scripts/test_vllm.sh -m "vllm and slow".
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import msgspec
import pytest
from vllm_samples import SAMPLING, build, by_problem, largest_gap, requests

from mathppo.errors import BadCheckpoint, StageFailed
from mathppo.generator.base import Sampling
from mathppo.generator.server import http_client
from mathppo.generator.server.server_generator import Server, ServerGenerator
from mathppo.generator.stops import StopStrings
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.prompts import PreTrainedTokenizerBase

pytestmark = pytest.mark.slow

READY_S = 300.0


@pytest.fixture(scope="module")
def process(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "policy", "--dtype", "float32"]
    command += ["--generation-config", "vllm", "--logprobs-mode", "processed_logprobs", "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(64 << 20), "--max-num-seqs", "32"]
    command += ["--worker-extension-cls", "mathppo.generator.vllm.weight_update.WeightReader"]
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "TORCHDYNAMO_DISABLE": "1"}
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as file:
        started = subprocess.Popen(
            command, env=os.environ | settings, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + READY_S
        while not _answers(url):
            assert started.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.5)
        yield url, started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGTERM)
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (URLError, OSError):
        return False


@pytest.fixture
def engine(
    process: tuple[str, object], folder: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServerGenerator]:
    monkeypatch.setattr(http_client, "PAUSE_S", 0.1)
    server = Server(url=process[0], takes_weights=True, dtype="float32", max_connections=16)
    with ServerGenerator(server, tokenizer, folder=folder) as opened:
        yield opened


def test_weights_sent_through_the_server_routes_change_its_logprobs(
    engine: ServerGenerator, policy: PreTrainedModel
) -> None:
    other = build(5)
    asked = requests(16) + [msgspec.structs.replace(r, problem_id=f"long{r.seed}") for r in requests(4, length=280)]
    for step, model in ((1, other), (2, policy), (3, other)):
        engine.refresh(step, model.state_dict())
        rollouts = list(engine.generate(asked, SAMPLING))  # fills the prefix cache with this model's keys
        assert largest_gap(rollouts, model, SAMPLING.temperature) < 1e-4
        assert {rollout.policy_step for rollout in rollouts} == {step}
    with pytest.raises(BadCheckpoint, match=r"no lm_head\.weight"):
        engine.refresh(4, dict(other.named_parameters()))


def test_stop_strings_end_a_completion_and_keep_its_tokens(
    engine: ServerGenerator, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    engine.refresh(1, policy.state_dict())
    free = Sampling(max_new_tokens=24, stop_token_ids=(2,), temperature=0.7)
    whole = by_problem(engine.generate(requests(24), free))
    first, second, *_ = sorted(whole.values(), key=lambda rollout: -len(rollout.completion))
    strings = (first.completion[7:10], second.completion[9:12])
    ended = by_problem(engine.generate(requests(24), msgspec.structs.replace(free, stop=strings)))
    for name, rollout in ended.items():
        cut = StopStrings(tokenizer, strings).find_end(whole[name].completion_ids)
        assert rollout.completion_ids == whole[name].completion_ids[:cut]
        assert rollout.terminated == (cut is not None or whole[name].terminated)
    assert len(ended[first.problem_id].completion_ids) < len(first.completion_ids)
    assert largest_gap(list(ended.values()), policy, 0.7) < 1e-4


def test_the_error_for_a_killed_server_engine_names_the_remedy(
    engine: ServerGenerator, policy: PreTrainedModel, process: tuple[str, subprocess.Popen[bytes]]
) -> None:
    children = Path(f"/proc/{process[1].pid}/task/{process[1].pid}/children").read_text().split()
    (core,) = [pid for pid in map(int, children) if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def sample() -> None:
        long = Sampling(max_new_tokens=200, stop_token_ids=(), temperature=0.7)
        for index, _ in enumerate(engine.generate(requests(32), long)):
            if index == 2:
                os.kill(core, signal.SIGKILL)

    with pytest.raises(StageFailed, match=r"in 3 tries, got .*start the server again and run the same command"):
        sample()
    with pytest.raises(StageFailed, match="expected a vLLM server that accepts weights, got"):
        engine.refresh(2, policy.state_dict())
