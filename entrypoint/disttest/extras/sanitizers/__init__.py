"""Sanitizers: find faults in tests that pass.

A recorder in each rank notes its calls, and a judge in the world compares the records. ``running`` has the table
of sanitizers and runs both. The package builds on the observing layer, ``disttest.observe``.
"""
