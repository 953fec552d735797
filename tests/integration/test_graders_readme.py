"""The examples in the README of `graders` run."""

import re
from pathlib import Path

from graders import GraderPool

README = Path(__file__).parents[2] / "graders" / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_first_example_runs() -> None:
    exec(compile(BLOCKS[0], str(README), "exec"), {})


def test_plug_in_example_grades(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(BLOCKS[1])
    with GraderPool(f"{tmp_path}/file.py:Even") as pool:
        assert [v.status.value for v in pool.grade([("12", ""), ("7", "")])] == ["correct", "incorrect"]
