"""Training metrics: the table of their names, units and meanings, and the log they are written to.

`metrics.jsonl` in a run directory holds one JSON object per line:
`{"schema": "iteration/1", "iteration": 12, "metrics": {...}}` for an iteration of PPO and
`{"schema": "critic_pretraining/1", "epoch": 1, "metrics": {...}}` for an epoch before the first one. A metric without a
value (for instance the explained variance of constant returns) is left out of its row, never written as NaN or null.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from graders.resumable_log import ResumableLog, read_lines
from mathppo.errors import BadArtefact, BadInput
from mathppo.records import Record

NUM_POSITIONS = 10
"""Bins of relative position in a completion, from its first tenth to its last."""


class Metric(NamedTuple):
    """Unit and meaning of a metric."""

    unit: str
    """`"1"` for a share or another pure number; otherwise `nats`, `tokens`, `s`, `tokens/s`, `count` or `flag`."""
    meaning: str


_LISTS = frozenset({"value_by_position", "advantage_by_position", "behaviour_logratio_by_size"})

TRAINING_METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "reward_mean": Metric("1", "mean terminal reward of the iteration's rollouts, grader errors left out"),
        "format_penalty_mean": Metric("1", "mean penalty for an answer that is missing or cannot be read"),
        "missing_stop_penalty_mean": Metric("1", "mean penalty for a stop token that was never sampled"),
        "overlong_penalty_mean": Metric("1", "mean soft penalty for the last tokens of the budget"),
        "accuracy": Metric("1", "share of graded rollouts whose verdict is correct, at the sampling temperature"),
        "truncated_share": Metric("1", "share of rollouts that ran out of token budget"),
        "no_answer_share": Metric("1", "share of rollouts that state no final answer"),
        "unparsable_share": Metric("1", "share of rollouts whose answer cannot be read"),
        "over_budget_share": Metric("1", "share of rollouts that exhausted the grader's time or memory; counted wrong"),
        "grader_error_share": Metric(
            "1", "share of rollouts on which the grader itself failed; no reward, not trained on"
        ),
        "length_mean_tokens": Metric("tokens", "mean completion length, stop token included"),
        "length_terminated_mean_tokens": Metric("tokens", "mean length of the completions that sampled a stop token"),
        "length_correct_mean_tokens": Metric("tokens", "mean length of the completions that are correct"),
        "length_incorrect_mean_tokens": Metric("tokens", "mean length of the completions that are not correct"),
        "length_p95_tokens": Metric("tokens", "95th percentile of completion length"),
        "behaviour_kl": Metric("nats", "estimate of KL(behaviour || old policy) per token: sampler and learner"),
        "behaviour_logratio_mean": Metric("nats", "mean |old_logprobs - behaviour_logprobs| per token"),
        "behaviour_logratio_max": Metric("nats", "largest |old_logprobs - behaviour_logprobs| of any token"),
        "behaviour_ess_share": Metric(
            "1",
            "effective sample size of the tokens under the ratios old / behaviour, not truncated, over their number",
        ),
        "stale_share": Metric("1", "share of rollouts sampled by an earlier policy than the current one"),
        "importance_weight_mean": Metric("1", "mean truncated importance weight old / behaviour; 1 when engines agree"),
        "importance_weight_capped_share": Metric("1", "share of tokens whose importance weight was truncated"),
        "policy_loss": Metric("1", "clipped policy loss, mean over the iteration's minibatches"),
        "positive_nll": Metric("nats", "negative log-likelihood per token of the correct completions, as a loss"),
        "value_loss": Metric("1", "value loss, mean over the iteration's minibatches"),
        "entropy": Metric("nats", "mean entropy of the policy's next-token distribution at the sampled positions"),
        "approx_kl": Metric(
            "nats", "estimate of KL(old || new policy) per token, mean over the iteration's minibatches"
        ),
        "clip_share_high": Metric("1", "share of tokens with a positive advantage clipped at 1 + clip_high"),
        "clip_share_low": Metric("1", "share of tokens with a negative advantage clipped at 1 - clip_low"),
        "clip_share_dual": Metric("1", "share of tokens whose loss the dual clip bounded"),
        "value_clip_share": Metric("1", "share of tokens whose value gradient the value clip cut"),
        "ratio_max": Metric("1", "largest probability ratio new / old of any token"),
        "ref_kl": Metric("nats", "estimate of KL(policy || reference) per token"),
        "kl_coef": Metric("1", "weight of the reference KL in the reward or the loss"),
        "explained_variance_outcome": Metric(
            "1", "1 - Var(outcome - value) / Var(outcome): how well the critic predicts the outcome"
        ),
        "explained_variance_target": Metric(
            "1", "1 - Var(return - value) / Var(return): fit to its own training target"
        ),
        "advantage_mean": Metric("1", "mean advantage before whitening"),
        "advantage_std": Metric("1", "standard deviation of advantages before whitening"),
        "return_mean": Metric("1", "mean return target"),
        "return_std": Metric("1", "standard deviation of return targets"),
        "value_mean": Metric("1", "mean of the critic's values before the update"),
        "policy_grad_norm": Metric("1", "policy gradient norm before clipping, mean over updates"),
        "critic_grad_norm": Metric("1", "critic gradient norm before clipping, mean over updates"),
        "policy_lr": Metric("1", "policy learning rate at the end of the iteration"),
        "critic_lr": Metric("1", "critic learning rate at the end of the iteration"),
        "num_tokens": Metric("count", "completion tokens sampled in the iteration"),
        "num_rollouts_dropped": Metric("count", "rollouts that left the losses: grader errors and masked truncations"),
        "num_updates_skipped": Metric("count", "minibatch updates skipped because a gradient was not finite"),
        "stopped_early": Metric("flag", "1 if the approximate KL exceeded its limit and ended the iteration's epochs"),
        "generate_s": Metric("s", "wall time of sampling"),
        "grade_s": Metric("s", "wall time of grading that sampling did not hide"),
        "learn_s": Metric("s", "wall time of values, advantages and updates"),
        "other_s": Metric(
            "s", "wall time of the rest of the iteration: choosing problems, statistics; without checkpoints"
        ),
        "refresh_s": Metric("s", "wall time of copying the new weights to an engine that has its own; part of other_s"),
        "probe_gap_max": Metric(
            "nats", "largest gap between engine and learner on a probe's log-probabilities, after the copy"
        ),
        "tokens_per_s": Metric(
            "tokens/s", "completion tokens sampled over generate_s; absent if a resumed run had sampled some before"
        ),
        "value_by_position": Metric("1", "mean value in each tenth of the completion, first to last"),
        "advantage_by_position": Metric("1", "mean advantage before whitening in each tenth of the completion"),
        "behaviour_logratio_by_size": Metric(
            "1",
            "share of tokens with |old_logprobs - behaviour_logprobs| in each decade: below 1e-7, ..., 10 and above",
        ),
    }
)

MetricRow = Mapping[str, float | list[float]]


def check(row: MetricRow) -> None:
    """Check a row against the table.

    Args:
        row: name to number, or to `NUM_POSITIONS` numbers if the name ends in `_by_position` or `_by_size`.

    Raises:
        BadInput: a name that is not in the table, a number that is not finite, or a list of the wrong length.
    """
    for name, value in row.items():
        if name not in TRAINING_METRICS:
            raise BadInput(f"metric {name!r}: expected a name in TRAINING_METRICS; add it there with unit and meaning")
        numbers = value if isinstance(value, list) else [value]
        if isinstance(value, list) != (name in _LISTS) or (name in _LISTS and len(numbers) != NUM_POSITIONS):
            wanted = f"{NUM_POSITIONS} numbers" if name in _LISTS else "one number"
            got = f"{len(value)} numbers" if isinstance(value, list) else "one number"
            raise BadInput(f"metric {name!r}: expected {wanted}, got {got}")
        if not all(math.isfinite(x) for x in numbers):
            raise BadInput(f"metric {name!r}: expected finite numbers, got {value}; leave out a metric without a value")


class Iteration(Record, frozen=True, tag="iteration/1"):
    """Metrics of one iteration of PPO.

    Args:
        iteration: number of the iteration, as in its artefact directory.
        metrics: as `check` allows.
    """

    iteration: int
    metrics: MetricRow

    def __post_init__(self) -> None:
        check(self.metrics)


class CriticPretraining(Record, frozen=True, tag="critic_pretraining/1"):
    """Metrics of one epoch of critic pretraining, before the first policy update.

    Args:
        epoch: from 1.
        metrics: as `check` allows.
    """

    epoch: int
    metrics: MetricRow

    def __post_init__(self) -> None:
        check(self.metrics)


def append_row(path: Path, row: Iteration | CriticPretraining) -> None:
    """Append a row to a metrics log and flush it to disk."""
    with ResumableLog(path) as log:
        log.append([msgspec.json.encode(row)])


def read_rows(
    path: Path, *, on_damaged: Callable[[BadArtefact], None] | None = None
) -> tuple[list[CriticPretraining], list[Iteration]]:
    """Read a metrics log: epochs of critic pretraining and iterations, each in order and each once.

    An incomplete last line is left out. A resumed run may log an iteration again; its last row counts.

    Args:
        path: the log.
        on_damaged: called with each line that is left out because it is damaged; None raises instead.

    Raises:
        BadArtefact: a whole line that is not a row of either kind, if `on_damaged` is None.
    """
    epochs: dict[int, CriticPretraining] = {}
    iterations: dict[int, Iteration] = {}
    decoder = msgspec.json.Decoder(Iteration | CriticPretraining)
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, BadInput) as error:
            damage = BadArtefact(
                f"{path} line {number}: expected an iteration or an epoch of critic pretraining, got {line[:80]!r} "
                f"({error}); remove the line or re-run train"
            )
            if on_damaged is None:
                raise damage from error
            on_damaged(damage)
            continue
        if isinstance(row, Iteration):
            iterations[row.iteration] = row
        else:
            epochs[row.epoch] = row
    return [epochs[i] for i in sorted(epochs)], [iterations[i] for i in sorted(iterations)]
