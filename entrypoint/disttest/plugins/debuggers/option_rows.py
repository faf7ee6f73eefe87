"""The options ``--debug-rank`` and ``--debugpy``."""

from __future__ import annotations

from disttest.options.option import of_every_run
from disttest.options.values import PORT, WHOLE, Type

DEBUG_RANK = of_every_run(
    "debug-rank",
    Type(form="K", parse=WHOLE.parse),
    "Give rank K of each world the terminal, for breakpoint() and for a debugger where it fails.",
    inputs_of_action=False,
)
DEBUGPY = of_every_run(
    "debugpy",
    PORT,
    "Have rank K of each world (--debug-rank, else rank 0) wait for VS Code at this port of 127.0.0.1.",
    inputs_of_action=False,
)

OPTIONS = (DEBUG_RANK, DEBUGPY)
