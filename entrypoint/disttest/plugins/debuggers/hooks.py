"""Hooks for debugging ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disttest.errors import UsageError
from disttest.hookspecs import hookimpl
from disttest.options.option import Option, of_every_run
from disttest.options.values import PORT, WHOLE, Type

if TYPE_CHECKING:
    import pytest

    from disttest.cli.run_tests import RunRequest
    from disttest.options.run import RunOptions
    from disttest.runtime.rank.rank_spec import RankSpec


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


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Return ``--debug-rank`` and ``--debugpy``."""
    return OPTIONS


@hookimpl(trylast=True)
def disttest_prepare_run(request: RunRequest) -> None:
    """Refuse to debug ranks on other machines."""
    for option in (DEBUGPY, DEBUG_RANK):
        if request.place and option.of(request.options) is not None:
            raise UsageError(f"{option.flag} is for one machine: leave {request.place.option} out")


@hookimpl
def disttest_needs_terminal(request: RunRequest) -> bool | None:
    """Reserve the terminal for a debugger in a rank."""
    options = request.options
    return (DEBUG_RANK.of(options) is not None and DEBUGPY.of(options) is None) or None


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the part of ranks."""
    del config
    from disttest.plugins.debuggers import debugging  # noqa: F401


@hookimpl
def disttest_set_options(config: pytest.Config, options: RunOptions) -> Mapping[str, Any]:
    """Suspend limits while a debugger shows a rank."""
    from disttest.plugins.debuggers.in_controller import holds_ranks

    return {"is_debugged": True} if holds_ranks(config, options) else {}


@hookimpl
def disttest_settle(config: pytest.Config, options: RunOptions) -> dict[str, str] | None:
    """Return the terminal on which ranks are debugged."""
    from disttest.plugins.debuggers.in_controller import terminal_of

    terminal = terminal_of(config, options)
    return {"terminal": terminal} if terminal else None


@hookimpl
def disttest_process_configure(spec: RankSpec, config: pytest.Config) -> None:
    """Debug this process, or refuse ``breakpoint()``."""
    from disttest.plugins.debuggers.debugging import debug_process

    debug_process(spec, config)


@hookimpl
def disttest_started_rank(
    rank: int, spec: RankSpec, config: pytest.Config, hold: Callable[[bool], None] | None
) -> Any:
    """Debug this rank at its test's failure."""
    from disttest.plugins.debuggers.started_rank import debug_started_rank

    return None if hold is None else debug_started_rank(rank, spec, config, hold)
