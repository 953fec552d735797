"""Metrics and rollouts in, pages and pictures out.

Touches: nothing.
"""

from mathppo.report.page import write_report
from mathppo.report.terminal import terminal_table
from mathppo.report.views import RolloutView, write_views

__all__ = ["RolloutView", "terminal_table", "write_report", "write_views"]
