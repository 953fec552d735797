"""Conformance kit: checks of PPO functions for faults that public trainers shipped.

`run("gae", "my_trainer.adapters:gae")` calls the function on small inputs with values calculated by hand, and checks
properties that hold for every input. Each row names the public issue that it comes from. The function has the signature
of the function of the same kind in `mathppo.ppo`; an adapter for another library takes a few lines:

| kind | called as | returns |
|---|---|---|
| gae | `f(token_rewards, values, completion_mask, bootstrap_values, gamma=, lam=)` | advantages `[B, T]` |
| policy_loss | `f(logprobs, old_logprobs, advantages, loss_mask, ...)`, see below | the loss, or `(loss, …)` |
| value_loss | `f(values, old_values, returns, loss_mask, clip=, denominator=)` | the loss, or `(loss, …)` |
| whiten | `f(x, mask, shift_mean=, group=)` | the shape of `x` |
| masked_mean | `f(x, mask, denominator=)` | a scalar |
| kl | `f(logprobs, ref_logprobs, kind)`, kind "k1", "k2" or "k3" | per-token estimates |

`policy_loss` is called with `clip_low` and `clip_high`. Rows about `dual_clip`, `weights`, `denominator` or another
optional argument pass it; other rows do not. Masked positions of a result are ignored.
"""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from mathppo.conformance import gae, kl, losses, masked
from mathppo.conformance.check import Row, judge
from mathppo.errors import BadInput

__all__ = ["KINDS", "Row", "run"]

_CHECKS = MappingProxyType(
    {
        "gae": gae.CHECKS,
        "policy_loss": losses.POLICY_CHECKS,
        "value_loss": losses.VALUE_CHECKS,
        "whiten": masked.WHITEN_CHECKS,
        "masked_mean": masked.MEAN_CHECKS,
        "kl": kl.CHECKS,
    }
)

KINDS = tuple(_CHECKS)


def run(kind: str, spec: str | Callable[..., Any]) -> list[Row]:
    """Check an implementation of one of the functions of `mathppo.ppo`.

    Args:
        kind: one of `KINDS`.
        spec: the function, `package.module:function`, or `path/to/file.py:function`.

    Returns:
        One row per check, in a fixed order. If the function raises, the row fails and the run continues.

    Raises:
        BadInput: the kind is unknown, or the specification does not name a callable.

    >>> rows = run("masked_mean", "mathppo.ppo.masked:masked_mean")
    >>> all(row.passed for row in rows)
    True
    """
    if kind not in _CHECKS:
        raise BadInput(f"conformance: expected a kind among {', '.join(KINDS)}, got {kind!r}")
    function = _load(spec) if isinstance(spec, str) else spec
    if not callable(function):
        raise BadInput(f"conformance: expected a function at {spec!r}, got {type(function).__name__}")
    return [judge(check, function) for check in _CHECKS[kind]]


def _load(spec: str) -> Any:
    origin, _, name = spec.rpartition(":")
    if not origin or not name:
        raise BadInput(
            "conformance: expected 'package.module:function' or 'path/to/file.py:function', "
            f"got {spec!r}; write both parts"
        )
    try:
        module = _module_at(Path(origin)) if origin.endswith(".py") else importlib.import_module(origin)
        return getattr(module, name)
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        raise BadInput(
            f"conformance: expected a function at {spec!r}, got {type(error).__name__}: {error}; "
            "check that the module is importable or the path exists"
        ) from error


def _module_at(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
