"""The report ``summary.md``: the run as Markdown, with the timeline of slots from the plugin ``costs``."""
