"""Reports: each one reads the result of the run and nothing else, and none knows another."""

from disttest.reports.write import rebuild, reporters, write_reports

__all__ = ["rebuild", "reporters", "write_reports"]
