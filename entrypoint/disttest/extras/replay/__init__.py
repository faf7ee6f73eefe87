"""Recordings: each rank keeps what it received, so that `disttest replay` can run it alone.

``in_rank`` records, ``in_world`` decides which recordings stay. Uses the observing layer, ``disttest.observe``.
"""
