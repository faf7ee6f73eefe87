"""Sanitizers: recorders in each rank, and judges in the world that compare what they have recorded.

``in_rank`` runs the recorders, ``in_world`` the judges. Uses the observing layer, ``disttest.observe``.
"""
