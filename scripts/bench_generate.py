"""Benchmark: tokens per second of the engines compared with the bare libraries on the same requests.

`hf` compares the embedded engine with model.generate, with and without the log-probabilities that the learner needs.
`vllm` compares the engine in this process with LLM.generate, and a weight refresh with a copy of the same bytes.
`engines` compares hf, vllm and vllm-http with a separate server. The last two need vLLM:

    .venv-vllm/bin/python scripts/bench_generate.py vllm --model runs/models/smollm2-135m-instruct

Every round runs each sampler once; medians over rounds are printed, also of the ratio. Processor time varies less on a
busy machine; it covers this process only, not a server.
"""

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from mathppo.config import ModelSettings
from mathppo.generator.base import Generator, Request, Sampling
from mathppo.generator.hf.hf_generator import HFGenerator
from mathppo.generator.server.server_generator import Server, ServerGenerator
from mathppo.generator.vllm.vllm_generator import VLLMGenerator
from mathppo.generator.vllm.vllm_memory import VLLMOptions
from mathppo.learner.backend import models
from mathppo.prompts import build_equation_tokenizer
from mathppo.seeds import derive_seed

SEED = 0
PRETRAINED = Path("runs/models/smollm2-135m-instruct")
READY_S = 300.0

Sampler = Callable[[], int]
"""Samples all requests once and returns the number of completion tokens."""


def build_requests(count: int, prompt_tokens: tuple[int, int], vocab_size: int) -> list[Request]:
    """Return requests with random prompts, of lengths spread evenly between the two bounds."""
    least, most = prompt_tokens
    requests = []
    for index in range(count):
        length = least + derive_seed(SEED, "length", index) % (most - least + 1)
        ids = [5 + derive_seed(SEED, "id", index, place) % (vocab_size - 5) for place in range(length)]
        requests.append(
            Request(problem_id=f"p{index}", sample_index=0, prompt_ids=tuple(ids), seed=derive_seed(SEED, index))
        )
    return requests


def by_generate(model: Any, requests: list[Request], sampling: Sampling, *, with_logprobs: bool) -> int:
    """Sample all requests in one left-padded batch of model.generate."""
    width = max(len(request.prompt_ids) for request in requests)
    ids = torch.tensor([[0] * (width - len(r.prompt_ids)) + list(r.prompt_ids) for r in requests], device=model.device)
    mask = torch.tensor(
        [[0] * (width - len(r.prompt_ids)) + [1] * len(r.prompt_ids) for r in requests], device=model.device
    )
    config = GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=sampling.max_new_tokens,
        eos_token_id=list(sampling.stop_token_ids),
        pad_token_id=0,
        output_logits=with_logprobs,
        return_dict_in_generate=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        output = model.generate(ids, attention_mask=mask, generation_config=config)
    completions = output.sequences[:, width:]
    if with_logprobs:
        logprobs = torch.log_softmax(torch.stack(output.logits, dim=1).float(), dim=-1)
        logprobs.gather(2, completions[..., None]).squeeze(2).tolist()
    stops = torch.isin(completions, torch.tensor(sampling.stop_token_ids, device=completions.device)).long()
    return int((stops.cumsum(dim=1) - stops == 0).sum())


def by_llm(llm: Any, requests: list[Request], sampling: Sampling) -> int:
    """Sample all requests with bare LLM.generate, log-probabilities of the sampled tokens included."""
    parameters = [
        type(llm.get_default_sampling_params())(
            temperature=sampling.temperature,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,
            seed=request.seed,
            logprobs=0,
            detokenize=False,
        )
        for request in requests
    ]
    prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
    return sum(len(output.outputs[0].token_ids) for output in llm.generate(prompts, parameters, use_tqdm=False))


def by_engine(engine: Generator, requests: list[Request], sampling: Sampling) -> int:
    """Sample all requests with an engine of mathppo."""
    return sum(len(rollout.completion_ids) for rollout in engine.generate(requests, sampling))


def measure(samplers: dict[str, Sampler], rounds: int, baseline: str) -> None:
    """Run every sampler once per round and print medians and the rate relative to the baseline."""
    rates: dict[str, list[float]] = {name: [] for name in samplers}
    rows: dict[str, list[tuple[float, float, int]]] = {name: [] for name in samplers}
    for round_index in range(rounds + 1):
        for name, sampler in samplers.items():
            wall, cpu = time.perf_counter(), time.process_time()
            tokens = sampler()
            if round_index:  # the first round is a warm-up
                seconds = time.perf_counter() - wall
                rows[name].append((seconds, time.process_time() - cpu, tokens))
                rates[name].append(tokens / seconds)
    print(f"{'':26}{'wall ms':>10}{'cpu ms':>10}{'tokens':>9}{'tokens/s':>10}{'ratio':>8}  (cpu)")
    cost = {name: statistics.median(cpu / tokens for _, cpu, tokens in runs) for name, runs in rows.items()}
    for name, runs in rows.items():
        wall, cpu, tokens = (statistics.median(column) for column in zip(*runs, strict=True))
        ratio = statistics.median(ours / theirs for ours, theirs in zip(rates[name], rates[baseline], strict=True))
        cpu_ratio = cost[baseline] / cost[name]
        print(
            f"{name:26}{wall * 1e3:>10.1f}{cpu * 1e3:>10.1f}{tokens:>9.0f}{tokens / wall:>10.0f}{ratio:>8.3f}"
            f"  {cpu_ratio:.3f}"
        )


def measure_refresh(engine: VLLMGenerator, model: Any, rounds: int) -> None:
    """Print the duration of a weight refresh and of a copy of the same bytes in memory."""
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    # The tied head and the embeddings are one tensor: sent under two names, copied once.
    unique = list({tensor.data_ptr(): tensor for tensor in weights.values()}.values())
    size = sum(tensor.numel() * tensor.itemsize for tensor in unique)
    times: dict[str, list[float]] = {"refresh": [], "copy": []}
    for round_index in range(rounds + 1):
        started = time.perf_counter()
        engine.refresh(round_index, weights)
        refreshed = time.perf_counter()
        copies = [tensor.clone() for tensor in unique]
        copied = time.perf_counter()
        del copies
        if round_index:
            times["refresh"].append(refreshed - started)
            times["copy"].append(copied - refreshed)
    refresh, copy = (statistics.median(values) for values in times.values())
    print(f"refresh of {size / 1e6:.0f} MB: {refresh * 1e3:.0f} ms; a copy of them: {copy * 1e3:.0f} ms")


@contextmanager
def served(folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """Serve a folder with vLLM until the end of the block and yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "policy", "--dtype", options.dtype]
    command += ["--generation-config", "vllm", "--logprobs-mode", "processed_logprobs", "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(options.kv_cache_bytes), "--max-num-seqs", str(options.requests)]
    command += ["--max-model-len", str(options.context_tokens)]
    settings = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "TORCHDYNAMO_DISABLE": "1"}
    process = subprocess.Popen(
        command, env=os.environ | settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("error: expected a vLLM server to start, but it exited or timed out") from None
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def open_model(options: argparse.Namespace, scratch: Path) -> tuple[Path, Any, Any]:
    """Return folder, model and tokenizer: of --model, or of the main job's shape with random weights."""
    dtype = getattr(torch, options.dtype)
    if options.model is not None:
        loaded: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, use_safetensors=True)
        return options.model, loaded.eval().to(options.device), AutoTokenizer.from_pretrained(options.model)
    tokenizer = build_equation_tokenizer()
    shape = ModelSettings(context_tokens=256)
    made: Any = models.build_policy(shape, vocab_size=len(tokenizer), bos_id=1, eos_id=2, pad_id=0, seed=SEED)
    made.save_pretrained(scratch / "model")
    tokenizer.save_pretrained(scratch / "model")
    return scratch / "model", made.eval().to(options.device, dtype), tokenizer


def open_samplers(
    options: argparse.Namespace, folder: Path, model: Any, tokenizer: Any, stack: ExitStack
) -> tuple[dict[str, Sampler], str, VLLMGenerator | None]:
    """Return the samplers, the name of the baseline and the engine whose refresh is measured."""
    requests = build_requests(options.requests, tuple(options.prompt_tokens), len(tokenizer))
    sampling = Sampling(max_new_tokens=options.max_new_tokens, stop_token_ids=tuple(options.stop_ids))
    embedded = HFGenerator(model, tokenizer)
    if options.what == "hf":
        samplers: dict[str, Sampler] = {
            "model.generate, ids only": lambda: by_generate(model, requests, sampling, with_logprobs=False),
            "model.generate + logprobs": lambda: by_generate(model, requests, sampling, with_logprobs=True),
            "hf": lambda: by_engine(embedded, requests, sampling),
        }
        return samplers, "model.generate, ids only", None
    vllm_options = VLLMOptions(
        dtype=options.dtype,
        max_batch_size=options.requests,
        kv_cache_bytes=options.kv_cache_bytes,
        context_tokens=options.context_tokens,
    )
    engine = stack.enter_context(VLLMGenerator(folder, tokenizer, options=vllm_options))
    if options.what == "vllm":
        samplers = {
            "LLM.generate": lambda: by_llm(engine.llm, requests, sampling),
            "vllm": lambda: by_engine(engine, requests, sampling),
        }
        return samplers, "LLM.generate", engine
    url = stack.enter_context(served(folder, options))
    server = stack.enter_context(ServerGenerator(Server(url=url, max_connections=options.requests), tokenizer))
    samplers = {
        "hf": lambda: by_engine(embedded, requests, sampling),
        "vllm": lambda: by_engine(engine, requests, sampling),
        "vllm-http": lambda: by_engine(server, requests, sampling),
    }
    return samplers, "hf", None


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="scripts/bench generate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", default="hf", choices=["hf", "vllm", "engines"])
    parser.add_argument(
        "--model", type=Path, help=f"a folder such as {PRETRAINED}; default: the main job's shape with random weights"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=(8, 13), metavar=("LEAST", "MOST"))
    parser.add_argument(
        "--stop-ids", type=int, nargs="+", default=[2, 3, 4], help="three ids give about 12 tokens per completion"
    )
    parser.add_argument("--context-tokens", type=int, default=256)
    parser.add_argument("--kv-cache-bytes", type=int, default=512 << 20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # read by vLLM
    torch.set_num_threads(options.threads)
    models.quiet()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder, model, tokenizer = open_model(options, Path(scratch))
        samplers, baseline, engine = open_samplers(options, folder, model, tokenizer, stack)
        measure(samplers, options.rounds, baseline)
        if engine is not None:
            measure_refresh(engine, model, options.rounds)


if __name__ == "__main__":
    main()
