"""The `mathppo` command line."""

from mathppo.cli.entry_point import main

__all__ = ["main"]
