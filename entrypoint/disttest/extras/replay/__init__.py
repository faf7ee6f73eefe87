"""Recordings: each rank records what it receives, so that `disttest replay` can run it alone.

``in_rank`` records, and ``recorded`` decides which recordings are kept. The package builds on the observing layer,
``disttest.observe``.
"""
