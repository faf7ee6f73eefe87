"""Runs every test in N ranks that collect it by themselves (``--spmd N``), as under ``torchrun -m pytest``.

The pytest process collects too, to know the tests: as rank 0 would, but without a place to meet. So everything that depends
on ``WORLD_SIZE`` (skips, parameters, what hooks deselect) is the same there, and a process group that is made at import is an
error of that file instead of a wait for ranks that do not come.
"""
