"""The faults that PPO-for-language-model trainers really shipped, as checks for anyone's functions.

`run("gae", "my_trainer.adapters:gae")` calls the function on small inputs whose right values were worked out by hand,
and on properties that hold for every input; each row names the public issue it stems from. The function takes the
arguments of ours of the same name; an adapter for another library is a few lines:

| kind | called as | gives |
|---|---|---|
| gae | `f(token_rewards, values, completion_mask, bootstrap_values, gamma=, lam=)` | advantages `[B, T]` |
| policy_loss | `f(logprobs, old_logprobs, advantages, loss_mask, ...)`, see below | the loss, or `(loss, …)` |
| value_loss | `f(values, old_values, returns, loss_mask, clip=, denominator=)` | the loss, or `(loss, …)` |
| whiten | `f(x, mask, shift_mean=, group=)` | the shape of `x` |
| masked_mean | `f(x, mask, denominator=)` | a scalar |
| kl | `f(logprobs, ref_logprobs, kind)`, kind "k1", "k2" or "k3" | per-token estimates |

`policy_loss` gets `clip_low`, `clip_high`, and where a row needs it `dual_clip`, `weights` or `denominator`. Optional
arguments are passed only to the rows about them. What stands at masked positions of a result is not looked at.
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
        spec: the function, or where it is: `package.module:function` or `path/to/file.py:function`.

    Returns:
        A row per check, in the order of the table. What the function raises fails its row; it does not end the run.

    Raises:
        BadInput: another kind, or nothing that can be called at the specification.

    >>> rows = run("masked_mean", "mathppo.ppo.masked:masked_mean")
    >>> all(row.passed for row in rows)
    True
    """
    if kind not in _CHECKS:
        raise BadInput(f"conformance: expected kind {', '.join(KINDS)}, got {kind!r}")
    function = _load(spec) if isinstance(spec, str) else spec
    if not callable(function):
        raise BadInput(f"conformance: expected a function at {spec!r}, got {type(function).__name__}")
    return [judge(check, function) for check in _CHECKS[kind]]


def _load(spec: str) -> Any:
    origin, _, name = spec.rpartition(":")
    if not origin or not name:
        raise BadInput(
            "conformance: expected 'package.module:function' or 'path/to/file.py:function', "
            f"got {spec!r}; name both parts"
        )
    try:
        module = _module_at(Path(origin)) if origin.endswith(".py") else importlib.import_module(origin)
        return getattr(module, name)
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        raise BadInput(
            f"conformance: expected a function at {spec!r}, got {type(error).__name__}: {error}; "
            "a module must be importable from here, a file is named with its path"
        ) from error


def _module_at(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
