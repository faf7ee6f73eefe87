"""The report ``report.html``: a single file with all content, which works without a network and from any folder.

The timeline of slots comes from the plugin ``costs``.
"""
