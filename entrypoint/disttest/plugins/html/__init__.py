"""The report ``report.html``: a single file with all content, which works without a network and from any folder."""
