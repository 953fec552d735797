"""The `graders` command line."""

from graders.cli.entry_point import main

__all__ = ["main"]
