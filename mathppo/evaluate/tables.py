"""Result tables in Markdown and CSV; the same results yield the same bytes."""

import csv
import io
from collections.abc import Sequence

from mathppo.evaluate.accuracy import EvaluationRow
from mathppo.evaluate.result import Result

MARKDOWN = (
    *("set", "prompt", "policy", "n", "accuracy", "95 %", "pass@n", "maj@n", "truncated", "no answer", "unparsable"),
    *("over budget", "grader error", "tokens", "p95", "accuracy of finished"),
)
CSV = (
    *("benchmark", "template", "golds", "model", "policy_step", "grader", "mode", "temperature", "max_new_tokens"),
    *("group", "label", "num_problems", "samples_per_problem", "accuracy", "low", "high", "pass_at_n", "majority_at_n"),
    *("g_pass_half", "g_pass_all", "g_pass_mean", "truncated_share", "no_answer_share", "unparsable_share"),
    *("over_budget_share", "error_share", "mean_length_tokens", "p95_length_tokens", "finished_accuracy"),
)


def markdown_table(results: Sequence[Result]) -> str:
    """Return a Markdown table with one line per set, prompt and policy."""
    lines = [f"| {' | '.join(MARKDOWN)} |", "|" + "---|" * len(MARKDOWN)]
    lines += [f"| {' | '.join(_markdown_cells(result))} |" for result in _ordered(results)]
    return "\n".join(lines) + "\n"


def csv_table(results: Sequence[Result]) -> str:
    """Return CSV with one line per row of each result: the whole set, and each subject, level and answer type."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV)
    for result in _ordered(results):
        for row in result.evaluation.rows:
            writer.writerow(_csv_cells(result, row))
    return out.getvalue()


def percent(share: float | None) -> str:
    """Return a share as a percentage with one decimal, or a dash for None.

    >>> percent(0.1234), percent(None)
    ('12.3', '-')
    """
    return "-" if share is None else f"{100 * share:.1f}"


def _ordered(results: Sequence[Result]) -> list[Result]:
    return sorted(
        results, key=lambda r: (r.benchmark, r.template, r.evaluation.policy_step, r.model, r.weights, r.label)
    )


def _markdown_cells(result: Result) -> list[str]:
    row, n = result.evaluation.overall, result.evaluation.samples_per_problem
    shares = (row.truncated_share, row.no_answer_share, row.unparsable_share, row.over_budget_share, row.error_share)
    return [
        result.benchmark,
        result.template,
        result.model.replace("|", "\\|"),
        f"{row.num_problems} x {n}",
        percent(row.accuracy),
        f"{percent(row.low)} to {percent(row.high)}",
        percent(_last(row.pass_at_k)),
        percent(_last(row.majority_at_k)),
        *map(percent, shares),
        f"{row.mean_length_tokens:.0f}",
        f"{row.p95_length_tokens:.0f}",
        percent(row.finished_accuracy),
    ]


def _csv_cells(result: Result, row: EvaluationRow) -> list[object]:
    evaluation = result.evaluation
    stable = [row.g_pass.get(name) for name in ("0.5", "1", "mean")]
    return [
        *(result.benchmark, result.template, result.golds, result.model, evaluation.policy_step, result.grader),
        *(evaluation.mode, result.temperature, result.max_new_tokens, row.group, row.label, row.num_problems),
        *(evaluation.samples_per_problem, row.accuracy, row.low, row.high, _last(row.pass_at_k)),
        *(_last(row.majority_at_k), *stable, row.truncated_share, row.no_answer_share, row.unparsable_share),
        *(row.over_budget_share, row.error_share, row.mean_length_tokens, row.p95_length_tokens),
        row.finished_accuracy,
    ]


def _last(by_k: dict[int, float]) -> float | None:
    return by_k[max(by_k)] if by_k else None
