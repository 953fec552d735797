"""Learner benchmark: tokens/s, share of the matrix-multiply peak, and peak memory.

Prints a table for the from-scratch model and one for a Llama with 135M parameters, each in a separate process, on a GPU
if available. Bars for the larger model at 512-token sequences on a CPU: policy update at least 55 % of the measured
peak; less than 5 % of an update outside model compute; peak memory at most 1.25 times the sum of weights, gradients,
optimizer states and the activations of one pass. Exits with 1 if a bar is missed.

The peak is measured just before and after each pass, because other load slows both; the share is the median of all
repeats. `--profile` prints the operations that a policy update spends its time in.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from graders.verdict import Status, Verdict
from mathppo.batch import Batch, collate
from mathppo.config import LearnerSettings
from mathppo.learner import forward
from mathppo.learner.backend import models
from mathppo.learner.experience import Experience
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import start_critic
from mathppo.ppo.gae import gae
from mathppo.records import FinishReason, Rollout, ScoredRollout

MIN_PEAK_SHARE = 0.55
MAX_OUTSIDE_SHARE = 0.05
MAX_MEMORY_RATIO = 1.25


@dataclass(frozen=True)
class Shape:
    """A model and the shape of its rollouts."""

    model: LlamaConfig
    prompt_tokens: int
    completion_tokens: int
    rows: int


@dataclass(frozen=True)
class Timed:
    """Measured time of a pass.

    Args:
        seconds: of the fastest repeat.
        flops: floating-point operations of its model; 0 = not counted.
        share: of the peak measured next to it, median of the repeats.
        peak: the best of those peaks, operations per second.
    """

    seconds: float
    flops: float
    share: float
    peak: float


def shapes() -> dict[str, Shape]:
    """Return the quickstart model, and SmolLM2-135M with random weights."""
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": True}
    scratch = LlamaConfig(
        vocab_size=36, hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=3, **special
    )
    larger = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, **special,
    )  # fmt: skip
    return {"scratch": Shape(scratch, 10, 18, 128), "135m": Shape(larger, 64, 448, 4)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=shapes(), help="both if not given")
    parser.add_argument("--rows", type=int, help="rollouts per update")
    parser.add_argument("--micro-batch-tokens", type=int, default=2048, help="tokens per micro-batch")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--packing", choices=["auto", "packed", "padded"], default="auto")
    parser.add_argument("--uneven", action="store_true", help="completions from a tenth of their length to all of it")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--activation-checkpointing", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print where a policy update spends its time")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    if arguments.model:
        torch.set_num_threads(arguments.threads)
        return measure(arguments.model, arguments)
    command = [sys.executable, __file__, *sys.argv[1:], "--model"]
    return max(subprocess.run([*command, name], check=False).returncode for name in shapes())


def measure(name: str, arguments: argparse.Namespace) -> int:
    shape, started_bytes = shapes()[name], peak_bytes()
    learner = make_learner(shape, arguments)
    batch = make_batch(shape, arguments.rows or shape.rows, uneven=arguments.uneven)
    device, dtype = learner.micro_batches.device, learner.options.dtype
    parameters = {key: sum(p.numel() for p in model.parameters()) for key, model in learner.models.items()}
    print(
        f"\n{name}: {parameters['policy'] / 1e6:.1f}M parameters, {batch.num_rows} rollouts of "
        f"{shape.prompt_tokens} + {'up to ' * arguments.uneven}{shape.completion_tokens} tokens, {device}, {dtype}, "
        f"{'packed' if learner.options.packed else 'padded'}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    experience = learner.experience(batch)
    learner.update(experience, progress=0.0, seed=0)  # the first step makes the optimizer's states
    times = time_passes(learner, batch, arguments.repeats)
    print(
        f"matrix-multiply peak {max(t.peak for t in times.values()) / 1e9:.1f} GFLOP/s, the best of all between passes"
    )
    tokens = int(batch.attention_mask.sum())
    for title, timed in times.items():
        share = f"{timed.share:6.1%} of peak" if timed.flops else ""
        print(f"{title:<34}{timed.seconds * 1e3:10.1f} ms{tokens / timed.seconds:12.0f} tokens/s   {share}")
    policy_share, policy_s = times["policy update"].share, times["policy update"].seconds
    outside = outside_share(learner, experience)
    overhead = times["update, both"].seconds / policy_s
    print(f"{'critic overhead':<34}{overhead:10.2f} times the policy's update alone")
    print(f"{'outside model compute':<34}{outside:10.1%} of an update")
    ratio = report_memory(learner, batch, started_bytes)
    if arguments.profile:
        print_profile(learner, experience)
    # The bars are for a CPU, where matrix products take nearly all of the time.
    has_bars = name != "scratch" and device.type == "cpu"
    met = policy_share >= MIN_PEAK_SHARE and outside < MAX_OUTSIDE_SHARE and ratio <= MAX_MEMORY_RATIO
    print("bars: " + ("none here" if not has_bars else "met" if met else "MISSED"))
    return 1 if has_bars and not met else 0


def make_learner(shape: Shape, arguments: argparse.Namespace) -> Learner:
    settings = LearnerSettings(
        minibatches=1,
        lr_schedule="constant",
        # Small enough for the rollouts to stay on-policy over all repeats.
        lr=1e-12,
        critic_lr=1e-12,
        micro_batch_tokens=arguments.micro_batch_tokens,
        compute_dtype=arguments.dtype,
        activation_checkpointing=arguments.activation_checkpointing,
        packing=arguments.packing,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = LlamaForCausalLM(shape.model)
    return Learner(policy, start_critic(policy, settings), None, settings, temperature=1.0)


def make_batch(shape: Shape, rows: int, *, uneven: bool) -> Batch:
    """Return rollouts of random ids, all of one length, or evenly spread lengths if `uneven`."""
    generator = torch.Generator().manual_seed(0)

    def scored(index: int) -> ScoredRollout:
        share = 0.1 + 0.9 * index / max(1, rows - 1) if uneven else 1.0
        completion_tokens = round(shape.completion_tokens * share)
        width = shape.prompt_tokens + completion_tokens
        ids = torch.randint(3, shape.model.vocab_size, (width,), generator=generator).tolist()
        rollout = Rollout(
            problem_id=str(index),
            sample_index=0,
            prompt_ids=ids[: shape.prompt_tokens],
            completion_ids=ids[shape.prompt_tokens :],
            completion="",
            behaviour_logprobs=[-1.0] * completion_tokens,
            finish_reason=FinishReason.LENGTH,
            policy_step=0,
            seed=index,
        )
        status = Status.CORRECT if index % 2 else Status.INCORRECT
        verdict = Verdict(status=status, answer=None, grader="bench", method="", detail="", duration_s=0.0)
        return ScoredRollout(rollout=rollout, verdict=verdict, reward=float(index % 2))

    return collate([scored(index) for index in range(rows)], pad_id=0)


def time_passes(learner: Learner, batch: Batch, repeats: int) -> dict[str, Timed]:
    """Time each pass and count the floating-point operations of its model."""
    experience = learner.experience(batch)
    critic, passes = learner.models["critic"], learner.micro_batches
    forward_flops = {name: flops_forward(model, batch) for name, model in learner.models.items()}

    def timed(function: Callable[[], object], flops: float = 0.0) -> Timed:
        seconds, peaks = [], [matmul_flops(passes.device, learner.options.dtype)]
        for _ in range(repeats):
            synchronize(passes.device)
            start = time.perf_counter()
            function()
            synchronize(passes.device)
            seconds.append(time.perf_counter() - start)
            peaks.append(matmul_flops(passes.device, learner.options.dtype))
        beside = [max(pair) for pair in pairwise(peaks)]
        share = median(flops / taken / peak for taken, peak in zip(seconds, beside, strict=True))
        return Timed(min(seconds), flops, share, max(peaks))

    def critic_update() -> None:
        assert learner.critic is not None
        fit = learner.critic_trainer
        assert fit is not None
        fit.step(batch, experience.returns, experience.values)

    def read_values() -> object:
        return passes.run(lambda rows: forward.completion_values(critic, rows, options=learner.options), batch)

    def read_logprobs() -> object:
        return passes.run(lambda rows: learner.logprobs(learner.policy, rows), batch)

    policy, both = forward_flops["policy"], sum(forward_flops.values())
    estimate = partial(gae, experience.values, experience.values, batch.completion_mask, batch.outcome, lam=0.95)
    wide = torch.zeros(64, 32768)
    return {
        "old log-probabilities and entropy": timed(read_logprobs, policy),
        "values": timed(read_values, both - policy),
        "policy update": timed(partial(update_policy, learner, experience), 3 * policy),
        "critic update": timed(critic_update, 3 * (both - policy)),
        "update, both": timed(partial(learner.update, experience, progress=0.0, seed=0), 3 * both),
        "optimizer steps, both": timed(partial(step_with_gradients, learner)),
        "GAE of this batch": timed(estimate),
        "GAE of [64, 32768]": timed(partial(gae, wide, wide, wide == 0, wide[:, 0], lam=0.95)),
    }


def update_policy(learner: Learner, experience: Experience) -> None:
    """Run the policy's part of an update."""
    fitted, learner.critic = learner.critic, None
    learner.accumulate(experience, learner.count(experience.batch))
    learner.critic = fitted
    learner.optimizers.step(["policy"])


def print_profile(learner: Learner, experience: Experience) -> None:
    with torch.profiler.profile(record_shapes=True) as profile:
        update_policy(learner, experience)
    for by_shape in (False, True):
        table = profile.key_averages(group_by_input_shape=by_shape).table(
            sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=50, max_shapes_column_width=60
        )
        print(table)


def outside_share(learner: Learner, experience: Experience) -> float:
    """Return the share of an update outside forward and backward passes and optimizer steps."""
    spent = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **more: Any) -> Any:
            nonlocal spent
            start = time.perf_counter()
            result = function(*arguments, **more)
            synchronize(learner.micro_batches.device)
            spent += time.perf_counter() - start
            return result

        return run

    untimed = learner._backward, learner.optimizers.step
    learner._backward, learner.optimizers.step = timed(untimed[0]), timed(untimed[1])
    start = time.perf_counter()
    learner.update(experience, progress=0.0, seed=0)
    whole = time.perf_counter() - start
    learner._backward, learner.optimizers.step = untimed
    return 1.0 - spent / whole


def step_with_gradients(learner: Learner) -> None:
    """Take an optimizer step with zero gradients; its cost does not depend on them."""
    for model in learner.models.values():
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    learner.optimizers.step(learner.models)


def flops_forward(model: models.PreTrainedModel, batch: Batch) -> float:
    """Return the operations of a forward pass's matrix products, with the LM head on completions only.

    Attention counts the causal half of the square; any work beyond that is not counted.
    """
    widths = batch.attention_mask.sum(1).double()
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    head = linears.pop("lm_head", None)
    layers = float(sum(m.weight.numel() for m in linears.values()) * widths.sum()) * 2
    attention = 2.0 * model.config.num_hidden_layers * model.config.hidden_size * float(widths.square().sum())
    of_head = 0.0 if head is None else 2.0 * head.weight.numel() * float(batch.completion_mask.sum())
    return layers + attention + of_head


def matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of the fastest of several products of square matrices."""
    size = 8192 if device.type == "cuda" else 2048
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = 0.0
    for _ in range(3):
        synchronize(device)
        start = time.perf_counter()
        torch.matmul(a, b)
        synchronize(device)
        best = max(best, 2.0 * size**3 / (time.perf_counter() - start))
    return best


def report_memory(learner: Learner, batch: Batch, started_bytes: int) -> float:
    """Print peak memory and the sum of its known parts; return their ratio."""
    states = sum(
        4 * p.numel() * (1 + 1 + 2) for model in learner.models.values() for p in set(model.parameters())
    )  # weights, gradients, two moments, all float32
    activations = saved_bytes(learner, batch)
    wanted = states + activations
    on_gpu = learner.micro_batches.device.type == "cuda"
    used = torch.cuda.max_memory_allocated() if on_gpu else peak_bytes() - started_bytes
    print(
        f"{'peak memory':<34}{used / 2**20:10.0f} MiB, {used / wanted:.2f} times the sum: weights, gradients and "
        f"moments {states / 2**20:.0f} MiB, one pass's activations {activations / 2**20:.0f} MiB"
    )
    return used / wanted


def saved_bytes(learner: Learner, batch: Batch) -> int:
    """Return the bytes that the policy's largest micro-batch saves for backward, without weights."""
    weights = {p.untyped_storage().data_ptr() for p in learner.policy.parameters()}
    seen: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return x

    rows = learner.micro_batches.trim_padding(batch.rows(learner.micro_batches.split(batch)[-1]))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        kept = learner.logprobs(learner.policy, rows, with_entropy=False)
    total = sum(seen.values())
    del kept
    return total


def peak_bytes() -> int:
    """Return the peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
