"""Options of resident parents; only the command reads them."""

from __future__ import annotations

from disttest.options.option import rows_of
from disttest.options.values import MODULES, SWITCH

_run = rows_of("run")

RESIDENT = _run(
    "resident",
    SWITCH,
    "Fork the run from a process that has imported torch already, and stays for the next one.",
    default=False,
    has_variable=True,
    inputs=(),
    for_command=True,
)

RESIDENT_IMPORTS = _run(
    "resident-imports",
    MODULES,
    "Installed modules that the process for --resident imports, too, once a run has.",
    default=(),
    has_variable=True,
    inputs=(),
    for_command=True,
)

OPTIONS = (RESIDENT, RESIDENT_IMPORTS)
