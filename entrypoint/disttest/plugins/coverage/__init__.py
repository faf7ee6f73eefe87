"""Measures ranks for ``pytest --cov`` and ``coverage run``."""
