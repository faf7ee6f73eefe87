"""Supervises the ranks of test classes that start them by themselves (``--host``): torch's own, and those like DeepSpeed's.

The world forks one main process for each class. It runs the whole pytest protocol of the tests, and the ranks that it starts
are forks of it, which it supervises with the supervisor of a world.
"""
