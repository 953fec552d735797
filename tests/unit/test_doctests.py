"""The examples in docstrings: each module that has some is imported when its test runs, not at collection."""

import doctest
import importlib

import pytest
from source_tree import name_of, sources

MODULES = [
    name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    for path in sources()
    if ">>> " in path.read_text("utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_print_what_they_show(module: str) -> None:
    examples = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    runner = doctest.DocTestRunner(verbose=False)
    for example in examples:
        runner.run(example)
    assert runner.tries > 0, f"{module}: found '>>> ' outside docstrings only"
    assert runner.failures == 0, f"{module}: {runner.failures} of {runner.tries} examples fail; see the output"
