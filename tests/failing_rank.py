"""`mathppo` with a learner that raises on rank 1 at its second update, for torchrun to start."""

import os
import sys
from typing import Any

from mathppo import cli
from mathppo.errors import BrokenInvariant
from mathppo.learner.learner import Learner

UPDATE = Learner.update


def update(self: Learner, *given: Any, **named: Any) -> Any:
    if self.step == 1 and os.environ["RANK"] == "1":
        raise BrokenInvariant("a tensor of rank 1 is not what it should be")
    return UPDATE(self, *given, **named)


if __name__ == "__main__":
    Learner.update = update  # type: ignore[method-assign]
    sys.exit(cli.main())
