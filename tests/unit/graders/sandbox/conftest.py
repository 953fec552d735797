"""Graders for tests of the sandbox; completions tell them how to misbehave."""

from pathlib import Path

import pytest

MISCHIEF = '''
import os
import time

from graders.verdict import Status, Verdict


class Mischief:
    """Compares texts, unless the completion tells it to misbehave."""

    name = "mischief"
    answers_per_process = 0

    def grade(self, completion, reference, *, question=None):
        action = getattr(self, f"do_{completion}", None)
        if action is not None:
            return action()
        status = Status.CORRECT if completion == reference else Status.INCORRECT
        return Verdict(status, completion, self.name, "exact", "", 0.0)

    def do_power(self):
        return 9**9**9

    def do_sum(self):
        return sum(range(10**12))

    def do_sleep(self):
        time.sleep(1000)

    def do_memory(self):
        return [0] * 10**12

    def do_digits(self):
        return int("7" * 3_000_000)

    def do_numeral(self):
        return str(10**5000)

    def do_recursion(self):
        return self.do_recursion()

    def do_raise(self):
        raise ValueError("planted")

    def do_raise_exit(self):
        raise SystemExit(0)

    def do_exit(self):
        os._exit(0)

    def do_abort(self):
        os.abort()

    def do_none(self):
        return None

    def do_nan(self):
        return Verdict(Status.CORRECT, None, self.name, "exact", "", float("nan"))

    def do_types(self):
        return Verdict("right", 1.5, None, [], 2, 0.0)

    def do_wordy(self):
        return Verdict(Status.INCORRECT, "a" * 10**5, self.name, "m" * 10**4, "d" * 10**5, 0.0)

    def do_flood(self):
        return Verdict(Status.INCORRECT, "a" * 10**7, self.name, "m" * 10**6, "d" * 10**7, 0.0)


class SemiTrusted(Mischief):
    """The same as a third-party grader: its processes are replaced after a few answers."""

    name = "semi-trusted"
    answers_per_process = 8
    examples = (("7", "7", "correct"), ("7", "8", "incorrect"))


class Split:
    """The same as a split grader."""

    name = "split"
    answers_per_process = 0
    _whole = Mischief()

    def read(self, completion, *, question=None) -> str:
        if completion.startswith("read_"):
            return getattr(self._whole, f"do_{completion[5:]}")()
        if completion.startswith("nap_"):
            time.sleep(0.45)
            return completion[4:]
        return completion

    def judge(self, reading, reference, *, question=None):
        return self._whole.grade(reading, reference)

    def grade(self, completion, reference, *, question=None):
        return self.judge(self.read(completion), reference)
'''


@pytest.fixture(scope="session")
def mischief_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plug-in file with the graders Mischief, SemiTrusted and Split."""
    path = tmp_path_factory.mktemp("plug_in") / "mischief.py"
    path.write_text(MISCHIEF)
    return path
