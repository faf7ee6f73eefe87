"""Sanitizers: find faults in tests that pass.

A recorder in each rank notes its calls, and a judge in the world compares the records. ``in_rank`` runs the recorders
and ``in_world`` the judges. The package builds on the observing layer, ``disttest.observe``.
"""
