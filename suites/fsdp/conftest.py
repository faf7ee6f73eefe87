"""One skip for the suite where torch has no FSDP."""

from __future__ import annotations

from ..requirements import unless_available
from .shim import missing

pytest_pycollect_makemodule = unless_available(missing)
