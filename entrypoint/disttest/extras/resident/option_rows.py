"""Options of resident parents; only the command reads them."""

from __future__ import annotations

from disttest.options.option import rows_of
from disttest.options.values import MODULES, SWITCH

_run = rows_of("run")

RESIDENT = _run(
    "resident",
    SWITCH,
    "Fork the run from a resident process that has already imported torch.",
    default=False,
    has_variable=True,
    inputs=(),
    for_command=True,
    common=True,
)

RESIDENT_IMPORTS = _run(
    "resident-imports",
    MODULES,
    "Installed modules that the process for --resident also imports once a run has imported them.",
    default=(),
    has_variable=True,
    inputs=(),
    for_command=True,
    no_flag=True,
)

OPTIONS = (RESIDENT, RESIDENT_IMPORTS)
