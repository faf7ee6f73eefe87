"""One skip for the suite where torch has no FSDP."""

from __future__ import annotations

from ..requirements import preload, unless_available
from .shim import missing

pytest_runtestloop = preload("sympy", "torch._dynamo")
pytest_pycollect_makemodule = unless_available(missing)
