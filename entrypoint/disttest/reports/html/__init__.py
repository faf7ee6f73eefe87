"""``report.html``: one file that holds everything, and works without a network and from any folder."""

from disttest.reports.html.render import render_html

__all__ = ["render_html"]
