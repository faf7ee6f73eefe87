"""Distributed PyTorch tests in CI: one entrypoint that runs ranks, judges them and keeps their logs."""

__version__ = "0.1.0"
