"""The report ``summary.md``: the run as Markdown."""
