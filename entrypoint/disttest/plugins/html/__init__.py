"""The report ``report.html``: one file that holds everything, and works without a network and from any folder."""
