"""Reports of runs: an HTML page, terminal tables, and export to trackers."""

from mathppo.report.page import write_report
from mathppo.report.rollout_views import RolloutView, write_views
from mathppo.report.terminal import comparison_tables, terminal_tables

__all__ = ["RolloutView", "comparison_tables", "terminal_tables", "write_report", "write_views"]
