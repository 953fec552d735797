"""Each metric that is logged or shown is in the table, and each row of the table is logged."""

import ast
import re
from collections.abc import Iterator

from source_tree import calls, find, name_of, parse, report, sources

from mathppo.metrics import TRAINING_METRICS

METRICS = re.compile(r"(?:^|[._])metrics$")
"""Expressions that hold a row of metrics: `metrics`, `row.metrics`, `update_metrics`."""


def _read(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each literal metric name that is looked up."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and METRICS.search(ast.unparse(node.value)):
            asked: ast.expr | None = node.slice
        elif isinstance(node, ast.Compare) and METRICS.search(ast.unparse(node.comparators[-1])):
            asked = node.left
        else:
            continue
        if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
            yield node.lineno, asked.value
    for call in calls(tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("get", "pop") and call.args:
            asked = call.args[0]
            if METRICS.search(ast.unparse(call.func.value)) and isinstance(asked, ast.Constant):
                yield call.lineno, str(asked.value)


def test_each_used_metric_is_in_the_table() -> None:
    def unknown(tree: ast.Module) -> Iterator[tuple[int, str]]:
        return ((line, name) for line, name in _read(tree) if name not in TRAINING_METRICS)

    training = [p for p in sources() if not name_of(p).startswith("mathppo/evaluate/")]
    report(find(unknown, training), "expected names of mathppo.metrics.TRAINING_METRICS")


def test_each_metric_of_the_table_is_logged() -> None:
    logged, endings = set(), []
    for path in sources():
        if name_of(path).startswith("mathppo/report/") or name_of(path) == "mathppo/metrics.py":
            continue
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                logged.add(node.value)
            elif isinstance(node, ast.keyword | ast.AnnAssign):  # dict(entropy=…), a field that becomes a metric
                logged.add(node.arg if isinstance(node, ast.keyword) else ast.unparse(node.target))
            elif isinstance(node, ast.JoinedStr) and len(node.values) == 2 and isinstance(node.values[1], ast.Constant):
                endings.append(str(node.values[1].value))  # f"{stage}_s"
    built = {name for name in TRAINING_METRICS if name.endswith(tuple(e for e in endings if e.startswith("_")))}
    report(sorted(set(TRAINING_METRICS) - logged - built), "the table describes metrics that nothing logs")
