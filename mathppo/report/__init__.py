"""Metrics and rollouts in, pages and pictures out.

Touches: nothing.
"""

from mathppo.report.page import write_report
from mathppo.report.terminal import comparison_tables, terminal_tables
from mathppo.report.views import RolloutView, write_views

__all__ = ["RolloutView", "comparison_tables", "terminal_tables", "write_report", "write_views"]
