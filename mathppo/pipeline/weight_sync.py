"""Weight synchronisation: copies the learner's weights to the engine, and checks with a probe that it uses them.

An engine with old weights, a stale head or cached keys does not fail: it samples from another policy. So after each
copy, a few completions of one short prompt are sampled, and their log-probabilities compared with the learner's.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.verdict import Status, Verdict
from mathppo.batch import collate
from mathppo.config import Config
from mathppo.errors import BrokenInvariant
from mathppo.generator.base import Generator, Request, Sampling
from mathppo.learner import forward
from mathppo.learner.backend.lora import plain_state
from mathppo.learner.learner import Learner
from mathppo.metrics import MetricRow
from mathppo.pipeline.stages.generate import sampling_of
from mathppo.prompts import PreTrainedTokenizerBase, encode_prompt, special_ids
from mathppo.records import Problem, Rollout, ScoredRollout
from mathppo.seeds import derive_seed

PROBE_TOKENS = 16
"""Tokens per completion of the probe."""

NUM_PROBES = 4
"""Completions of the probe prompt, at the run's temperature."""

TOLERANCE_FLOAT32 = 5e-3
"""Nats; float32 engines agree to about 1e-4, an old head differs by 0.1 or more."""

TOLERANCE_BFLOAT16 = 0.6
"""Nats at the worst token. Eight probes of a 135M model in bfloat16 with a float32 learner, 495 tokens: median 0.12,
maximum 0.24; the rest is margin for the worst token of a run. Raw logprobs at temperature 0.7 differ by 2."""

MEAN_SHARE = 5
"""The mean gap may be the tolerance divided by this: 0.015 to 0.039 in the same probes, 0.26 with raw logprobs."""


@dataclass
class WeightSync:
    """Copies the weights of one learner to one engine; on several ranks each does, together.

    Args:
        config: of the run.
        engine: receives the weights; None if only other ranks have one.
        learner: has the weights.
        tokenizer: the policy's tokenizer.
        probe: the problem whose prompt is the probe.
        is_copy: the engine has a copy of the weights although its class can share them.
    """

    config: Config
    engine: Generator | None
    learner: Learner
    tokenizer: PreTrainedTokenizerBase
    probe: Problem
    is_copy: bool = False
    _before: dict[tuple[int, ...], list[float]] | None = None

    def sync(self) -> MetricRow:
        """Copy the learner's weights to the engine, and check that it samples from them.

        Returns:
            Seconds and the probe's largest gap; empty if engine and learner share their weights.

        Raises:
            BrokenInvariant: engine and learner compute different log-probabilities for the probe.
        """
        if self.engine is not None and self.engine.shares_weights and not self.is_copy:
            self.engine.refresh(self.learner.step)
            return {}
        started = time.monotonic()
        weights = plain_state(self.learner.policy)
        if self.engine is not None:
            self.engine.refresh(self.learner.step, weights)
        del weights
        seconds = time.monotonic() - started
        return {"refresh_s": seconds, "probe_gap_max": self._probe()}

    def _probe(self) -> float:
        sampling = sampling_of(self.config, self.tokenizer)
        budget = min(PROBE_TOKENS, sampling.max_new_tokens)
        sampling = Sampling(
            max_new_tokens=budget, temperature=sampling.temperature, stop_token_ids=sampling.stop_token_ids
        )
        prompt = tuple(encode_prompt(self.probe, self.tokenizer, template=self.config.problems.template))
        seed = self.config.run.seed
        requests = [
            Request(problem_id="probe", sample_index=i, prompt_ids=prompt, seed=derive_seed(seed, "probe", i))
            for i in range(NUM_PROBES)
        ]
        sampled = [] if self.engine is None else list(self.engine.generate(requests, sampling))
        # Rollouts of every rank's engine, since each has a copy; and the same rows on all ranks, for the forward pass.
        by_rank = self.learner.passes.ranks.gather(sorted(sampled, key=lambda rollout: rollout.sample_index))
        rollouts = [rollout for of_rank in by_rank for rollout in of_rank]
        ours, mask = self._learner_logprobs(rollouts, temperature=self.learner.temperature)
        width = ours.shape[1]
        theirs = torch.tensor([[*r.behaviour_logprobs, *[0.0] * (width - len(r.completion_ids))] for r in rollouts])
        gaps = (ours - theirs)[mask].abs()
        tolerance = self._tolerance
        if not (gaps.max() <= tolerance and gaps.mean() <= tolerance / MEAN_SHARE):
            raise BrokenInvariant(
                f"step {self.learner.step}: expected the engine's log-probabilities of a probe to be the learner's up "
                f"to {tolerance:g} nats, and {tolerance / MEAN_SHARE:g} on average, got a gap of {gaps.max():.4g} "
                f"(mean {gaps.mean():.4g}, temperature {sampling.temperature:g}); {self._diagnose(rollouts)}"
            )
        self._before = _by_ids(rollouts)
        return gaps.max().item()

    @property
    def _tolerance(self) -> float:
        """Largest gap that is allowed, in nats."""
        settings = self.config.generator
        # A server chooses its precision: half precision on a GPU, unless the settings say otherwise.
        may_halve = settings.engine == "vllm-http" and settings.dtype == "auto" and torch.cuda.is_available()
        is_exact = self.learner.compute.dtype == torch.float32 and settings.dtype != "bfloat16" and not may_halve
        return settings.probe_tolerance or (TOLERANCE_FLOAT32 if is_exact else TOLERANCE_BFLOAT16)

    @torch.no_grad()
    def _learner_logprobs(self, rollouts: Sequence[Rollout], *, temperature: float) -> tuple[Tensor, Tensor]:
        """Return the learner's log-probabilities and the completion mask, each `[B, T]`."""
        unread = Verdict(status=Status.NO_ANSWER, answer=None, grader="probe", method="", detail="", duration_s=0.0)
        scored = [ScoredRollout(rollout=rollout, verdict=unread, reward=0.0) for rollout in rollouts]
        batch = collate(scored, pad_id=special_ids(self.tokenizer).pad)
        learner = self.learner
        logprobs, _ = learner.passes.run(
            lambda rows: forward.completion_logprobs(
                learner.policy, rows, temperature=temperature, with_entropy=False, compute=learner.compute
            ),
            batch,
        )
        return logprobs.cpu().float(), batch.completion_mask.cpu()

    def _diagnose(self, rollouts: Sequence[Rollout]) -> str:
        """Return the likely cause of a gap."""
        now = _by_ids(rollouts)
        if self._before is not None and now == self._before:
            return (
                "the engine answers exactly as before the update: it still has the old weights; send the whole "
                "state_dict() and look at the engine's log"
            )
        raw, mask = self._learner_logprobs(rollouts, temperature=1.0)
        theirs = torch.tensor([x for rollout in rollouts for x in rollout.behaviour_logprobs])
        if self.learner.temperature != 1 and (raw[mask] - theirs).abs().max() <= self._tolerance:
            return (
                "they are those of temperature 1: the engine returns raw log-probabilities; start it with "
                "--logprobs-mode processed_logprobs"
            )
        compute = str(self.learner.compute.dtype).removeprefix("torch.")
        if self.config.generator.dtype not in ("auto", compute):
            return (
                f"the engine computes in {self.config.generator.dtype}, the learner in {compute}, and bfloat16 rounds "
                "away what a step changes (note M-gen-6): set generator.dtype to auto"
            )
        return (
            "usual causes: a tied head that was not sent, prefixes cached under the old weights, raw instead of "
            "processed log-probabilities, another model behind the address, or another dtype there"
        )


def _by_ids(rollouts: Sequence[Rollout]) -> dict[tuple[int, ...], list[float]]:
    return {tuple(rollout.completion_ids): rollout.behaviour_logprobs for rollout in rollouts}
