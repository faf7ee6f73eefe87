"""Distributed PyTorch tests in CI: one entrypoint that runs ranks, judges them and keeps their logs.

PYTEST_DONT_REWRITE: ranks that are forked from a process with this package loaded need no warning about that.
"""

__version__ = "0.1.0"
