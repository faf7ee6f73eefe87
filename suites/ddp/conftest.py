"""Fixtures that all tests of DDP share."""

from ..ranks import leave_together

__all__ = ["leave_together"]
