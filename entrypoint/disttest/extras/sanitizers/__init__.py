"""Sanitizers, which find more in a test than its verdict.

Recorders in each rank note what it calls, and judges in the world compare the recordings.

``in_rank`` runs the recorders, ``in_world`` the judges. Uses the observing layer, ``disttest.observe``.
"""
