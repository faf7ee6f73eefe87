"""Reports: each reads the run's result and nothing else, and none knows another."""

from disttest.reports.write import REPORTERS, rebuild, write_reports

__all__ = ["REPORTERS", "rebuild", "write_reports"]
