"""The learner's passes: tokens/s, share of the machine's matrix-multiply peak, and peak memory against its parts.

Prints one table for the from-scratch model and one for a Llama of 135M parameters, each in a process of its own, on a
GPU where there is one. Bars, for the larger one at 512-token sequences: policy update at least 55 % of the measured
peak, less than 5 % of an update outside model compute, peak memory within 1.25 times the sum of weights, gradients,
optimizer states and one pass's activations. Fails (exit 1) where one is missed.

Touches: argv, stdout; starts itself once per model.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from graders.verdict import Status, Verdict
from mathppo.batch import Batch, collate
from mathppo.config import LearnerSettings
from mathppo.learner import forward, models
from mathppo.learner.experience import Experience
from mathppo.learner.learner import Learner
from mathppo.learner.opening import start_critic
from mathppo.ppo.gae import gae
from mathppo.records import FinishReason, Rollout, ScoredRollout

MIN_PEAK_SHARE = 0.55
MAX_OUTSIDE_SHARE = 0.05
MAX_MEMORY_RATIO = 1.25


@dataclass(frozen=True)
class Shape:
    """A model, and the rollouts that it learns from."""

    model: LlamaConfig
    prompt_tokens: int
    completion_tokens: int
    rows: int


def shapes() -> dict[str, Shape]:
    """The main job's model, and SmolLM2-135M's shape with random weights."""
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
    parser.add_argument("--model", choices=shapes(), help="one of them; both if not given")
    parser.add_argument("--rows", type=int, help="rollouts of an update")
    parser.add_argument("--micro-batch-tokens", type=int, default=2048, help="tokens a pass")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--activation-checkpointing", action="store_true")
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
    batch = make_batch(shape, arguments.rows or shape.rows)
    device, dtype = learner.passes.device, learner.compute.dtype
    peak = matmul_flops(device, dtype)
    parameters = {key: sum(p.numel() for p in model.parameters()) for key, model in learner.models.items()}
    print(
        f"\n{name}: {parameters['policy'] / 1e6:.1f}M parameters, {batch.num_rows} rollouts of "
        f"{shape.prompt_tokens} + {shape.completion_tokens} tokens, {device}, {dtype}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print(f"matrix-multiply peak {peak / 1e9:.1f} GFLOP/s, measured before and after: the best of both")
    experience = learner.experience(batch)
    learner.update(experience, progress=0.0, seed=0)  # the first step makes the optimizer's states
    times = time_passes(learner, batch, arguments.repeats)
    peak = max(peak, matmul_flops(device, dtype))
    tokens = int(batch.attention_mask.sum())
    for title, (seconds, flops) in times.items():
        share = f"{flops / seconds / peak:6.1%} of peak" if flops else ""
        print(f"{title:<34}{seconds * 1e3:10.1f} ms{tokens / seconds:12.0f} tokens/s   {share}")
    policy_share = times["policy update"][1] / times["policy update"][0] / peak
    whole = times["update, both"][0]
    outside = outside_share(learner, experience)
    print(f"{'critic overhead':<34}{whole / times['policy update'][0]:10.2f} times the policy's update alone")
    print(f"{'outside model compute':<34}{outside:10.1%} of an update")
    ratio = report_memory(learner, batch, started_bytes)
    met = name == "scratch" or (
        policy_share >= MIN_PEAK_SHARE and outside < MAX_OUTSIDE_SHARE and ratio <= MAX_MEMORY_RATIO
    )
    print("bars: " + ("none for this model" if name == "scratch" else "met" if met else "MISSED"))
    return 0 if met else 1


def make_learner(shape: Shape, arguments: argparse.Namespace) -> Learner:
    settings = LearnerSettings(
        minibatches=1,
        lr_schedule="constant",
        # Small enough that the same rollouts stay on-policy however often a pass is timed.
        lr=1e-12,
        critic_lr=1e-12,
        micro_batch_tokens=arguments.micro_batch_tokens,
        compute_dtype=arguments.dtype,
        activation_checkpointing=arguments.activation_checkpointing,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = LlamaForCausalLM(shape.model)
    return Learner(policy, start_critic(policy, settings), None, settings, temperature=1.0)


def make_batch(shape: Shape, rows: int) -> Batch:
    """Rollouts of one length and random ids: no padding, so that every token is one that a user pays for."""
    generator = torch.Generator().manual_seed(0)

    def scored(index: int) -> ScoredRollout:
        width = shape.prompt_tokens + shape.completion_tokens
        ids = torch.randint(3, shape.model.vocab_size, (width,), generator=generator).tolist()
        rollout = Rollout(
            problem_id=str(index),
            sample_index=0,
            prompt_ids=ids[: shape.prompt_tokens],
            completion_ids=ids[shape.prompt_tokens :],
            completion="",
            behaviour_logprobs=[-1.0] * shape.completion_tokens,
            finish_reason=FinishReason.LENGTH,
            policy_step=0,
            seed=index,
        )
        status = Status.CORRECT if index % 2 else Status.INCORRECT
        verdict = Verdict(status=status, answer=None, grader="bench", method="", detail="", duration_s=0.0)
        return ScoredRollout(rollout=rollout, verdict=verdict, reward=float(index % 2))

    return collate([scored(index) for index in range(rows)], pad_id=0)


def time_passes(learner: Learner, batch: Batch, repeats: int) -> dict[str, tuple[float, float]]:
    """Best seconds of each pass, and the floating-point operations of its model (0 = not counted)."""
    experience, counts = learner.experience(batch), learner.count(batch)
    critic, passes = learner.models["critic"], learner.passes
    forward_flops = {name: flops_forward(model, batch) for name, model in learner.models.items()}

    def best(function: Callable[[], object]) -> float:
        seconds = []
        for _ in range(repeats):
            synchronize(passes.device)
            start = time.perf_counter()
            function()
            synchronize(passes.device)
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    def policy_update() -> None:
        fitted, learner.critic = learner.critic, None
        learner.accumulate(experience, counts)
        learner.critic = fitted
        learner.optimizers.step(["policy"])

    def critic_update() -> None:
        assert learner.critic is not None
        fit = learner._fit
        assert fit is not None
        fit.step(batch, experience.returns, experience.values)

    old = best(lambda: passes.run(lambda rows: learner._logprobs(learner.policy, rows), batch))
    values = best(
        lambda: passes.run(lambda rows: forward.completion_values(critic, rows, compute=learner.compute), batch)
    )
    estimate = partial(gae, experience.values, experience.values, batch.completion_mask, batch.outcome, lam=0.95)
    wide = torch.zeros(64, 32768)
    update = partial(learner.update, experience, progress=0.0, seed=0)
    return {
        "old log-probabilities and entropy": (old, forward_flops["policy"]),
        "values": (values, forward_flops["critic"]),
        "policy update": (best(policy_update), 3 * forward_flops["policy"]),
        "critic update": (best(critic_update), 3 * forward_flops["critic"]),
        "update, both": (best(update), 3 * sum(forward_flops.values())),
        "optimizer steps, both": (best(lambda: step_with_gradients(learner)), 0.0),
        "GAE of this batch": (best(estimate), 0.0),
        "GAE of [64, 32768]": (best(partial(gae, wide, wide, wide == 0, wide[:, 0], lam=0.95)), 0.0),
    }


def outside_share(learner: Learner, experience: Experience) -> float:
    """Share of one update that is neither a pass of a model, forward and backward, nor an optimizer's step."""
    spent = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **more: Any) -> Any:
            nonlocal spent
            start = time.perf_counter()
            result = function(*arguments, **more)
            synchronize(learner.passes.device)
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
    """A step on gradients of 0: what the optimizer costs does not depend on them."""
    for model in learner.models.values():
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    learner.optimizers.step(learner.models)


def flops_forward(model: models.PreTrainedModel, batch: Batch) -> float:
    """Multiplications and additions of the matrix products that a forward pass needs, the head's on completions only.

    Attention counts the causal half of its square; what a kernel or the head computes beyond that is not credited.
    """
    widths = batch.attention_mask.sum(1).double()
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    head = linears.pop("lm_head", None)
    layers = float(sum(m.weight.numel() for m in linears.values()) * widths.sum()) * 2
    attention = 2.0 * model.config.num_hidden_layers * model.config.hidden_size * float(widths.square().sum())
    of_head = 0.0 if head is None else 2.0 * head.weight.numel() * float(batch.completion_mask.sum())
    return layers + attention + of_head


def matmul_flops(device: torch.device, dtype: torch.dtype, size: int = 2048) -> float:
    """Operations a second of the best of several products of square matrices."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = 0.0
    for _ in range(6):
        synchronize(device)
        start = time.perf_counter()
        torch.matmul(a, b)
        synchronize(device)
        best = max(best, 2.0 * size**3 / (time.perf_counter() - start))
    return best


def report_memory(learner: Learner, batch: Batch, started_bytes: int) -> float:
    """Print the peak and what it should be made of; give their ratio."""
    states = sum(
        4 * p.numel() * (1 + 1 + 2) for model in learner.models.values() for p in set(model.parameters())
    )  # weights, gradients, two moments, all float32
    activations = saved_bytes(learner, batch)
    wanted = states + activations
    on_gpu = learner.passes.device.type == "cuda"
    used = torch.cuda.max_memory_allocated() if on_gpu else peak_bytes() - started_bytes
    print(
        f"{'peak memory':<34}{used / 2**20:10.0f} MiB, {used / wanted:.2f} times the sum: weights, gradients and "
        f"moments {states / 2**20:.0f} MiB, one pass's activations {activations / 2**20:.0f} MiB"
    )
    return used / wanted


def saved_bytes(learner: Learner, batch: Batch) -> int:
    """Bytes that the widest pass of the policy keeps for its backward, each storage once, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in learner.policy.parameters()}
    seen: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return x

    rows = learner.passes.narrow(batch.rows(learner.passes.split(batch)[-1]))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        kept = learner._logprobs(learner.policy, rows, with_entropy=False)
    total = sum(seen.values())
    del kept
    return total


def peak_bytes() -> int:
    """The most memory that this process has had in use so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
