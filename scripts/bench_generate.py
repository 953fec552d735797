"""Tokens per second of the embedded engine beside bare model.generate, interleaved in one run.

The model is the main job's shape with random weights, or any checkpoint folder. `generate` gives ids only and holds a
batch until its last row ends; `generate + logprobs` also gives what the learner needs, from `output_logits`.

Touches: standard output; reads a checkpoint folder when given one.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

from mathppo.generator.base import Request, Sampling
from mathppo.generator.hf import HFGenerator
from mathppo.prompts import build_equation_tokenizer
from mathppo.seeds import derive_seed

SEED = 0


def build_model(folder: str | None, device: str, dtype: torch.dtype) -> Any:
    """Give the checkpoint of a folder, or a random Llama of the main job's shape (334 thousand parameters)."""
    if folder is not None:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        return model.to(device)
    config = LlamaConfig(
        vocab_size=len(build_equation_tokenizer()),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,
        max_position_embeddings=256,
        initializer_range=0.06,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config)
    return model.eval().to(device, dtype)  # pyright: ignore[reportCallIssue]


def build_requests(count: int, prompt_tokens: tuple[int, int], vocab_size: int) -> list[Request]:
    """Give requests with random prompts of so many tokens, evenly spread between the two lengths."""
    least, most = prompt_tokens
    requests = []
    for index in range(count):
        length = least + derive_seed(SEED, "length", index) % (most - least + 1)
        ids = [3 + derive_seed(SEED, "id", index, place) % (vocab_size - 3) for place in range(length)]
        requests.append(
            Request(problem_id=f"p{index}", sample_index=0, prompt_ids=tuple(ids), seed=derive_seed(SEED, index))
        )
    return requests


def by_generate(model: Any, requests: list[Request], sampling: Sampling, *, with_logprobs: bool) -> int:
    """Sample all requests in one left-padded batch; give the tokens that count."""
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


def by_engine(engine: HFGenerator, requests: list[Request], sampling: Sampling) -> int:
    """Sample all requests with the embedded engine; give the tokens that count."""
    return sum(len(rollout.completion_ids) for rollout in engine.generate(requests, sampling))


def measure(ways: dict[str, Callable[[], int]], rounds: int) -> None:
    """Run every way once a round, in turn, and print medians."""
    times: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ways}
    for round_index in range(rounds + 1):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            tokens = way()
            if round_index:  # the first is a warm-up
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu, tokens))
    print(f"{'':24}{'wall ms':>10}{'cpu ms':>10}{'tokens':>10}{'tokens/s':>12}")
    for name, runs in times.items():
        wall, cpu, tokens = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:24}{wall * 1e3:>10.1f}{cpu * 1e3:>10.1f}{tokens:>10.0f}{tokens / wall:>12.0f}")


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="scripts/bench generate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", help="a folder; default: the main job's shape, random weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=(8, 13), metavar=("LEAST", "MOST"))
    parser.add_argument("--stop-ids", type=int, nargs="+", default=[2, 3, 4], help="three ids: about 12 tokens each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = build_model(options.checkpoint, options.device, getattr(torch, options.dtype))
    vocab_size = model.get_input_embeddings().weight.shape[0]
    requests = build_requests(options.requests, tuple(options.prompt_tokens), vocab_size)
    sampling = Sampling(max_new_tokens=options.max_new_tokens, stop_token_ids=tuple(options.stop_ids))
    engine = HFGenerator(model, build_equation_tokenizer())
    measure(
        {
            "generate, ids only": lambda: by_generate(model, requests, sampling, with_logprobs=False),
            "generate + logprobs": lambda: by_generate(model, requests, sampling, with_logprobs=True),
            "HFGenerator": lambda: by_engine(engine, requests, sampling),
        },
        options.rounds,
    )


if __name__ == "__main__":
    main()
