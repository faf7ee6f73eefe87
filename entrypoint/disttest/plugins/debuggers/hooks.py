"""Hooks for debugging ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disttest.errors import UsageError
from disttest.hookspecs import hookimpl, of_pytest
from disttest.options.option import Option, of_every_run
from disttest.options.values import PORT, WHOLE, Type

if TYPE_CHECKING:
    import pytest

    from disttest.cli.run_request import RunRequest
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
    # The command passes pytest's output through pipes otherwise, and a debugger needs the terminal itself.
    return (DEBUG_RANK.of(options) is not None and DEBUGPY.of(options) is None) or None


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the part of ranks."""
    del config
    from disttest.plugins.debuggers import debugging  # noqa: F401


@hookimpl
def disttest_set_options(config: pytest.Config, options: RunOptions) -> Mapping[str, Any]:
    """Suspend limits while a debugger shows a rank.

    Raises:
        UsageError: ranks cannot be debugged as requested: there is no terminal, no debugpy, or the port is in use.
    """
    from disttest.runtime.controller.orders import collecting_order

    port = DEBUGPY.of(options)
    if port is None:
        return {"is_debugged": True} if _terminal_of(config, options) else {}
    # Once, in the controller: processes that collect for ranks have the same options.
    if collecting_order(config) is None:
        from disttest.plugins.debuggers.debug_adapter import LOOPBACK, check_debugger

        check_debugger(port)
        rank = DEBUG_RANK.of(options) or 0
        place = f"rank {rank} of each world waits for a debugger at {LOOPBACK}:{port}"
        config.pluginmanager.register(_Announcement(place), "disttest-debugger-place")
    return {"is_debugged": True}


@of_pytest
def pytest_enter_pdb(config: pytest.Config) -> None:
    """Suspend the time limit of an ordinary test, too."""
    limits = config.pluginmanager.getplugin("disttest-time-limits")
    if limits is not None:
        from disttest.plugins.debuggers.paused_limit import pause

        pause(limits)


@of_pytest
def pytest_leave_pdb() -> None:
    """Go on with the time that was left."""
    from disttest.plugins.debuggers.paused_limit import resume

    resume()


@hookimpl
def disttest_settle(config: pytest.Config, options: RunOptions) -> dict[str, str] | None:
    """Return the terminal on which ranks are debugged."""
    terminal = _terminal_of(config, options)
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
    from disttest.plugins.debuggers.debugging import debug_started_rank

    return None if hold is None else debug_started_rank(rank, spec, config, hold)


class _Announcement:
    """A plugin of pytest that prints where to connect, also with ``-q``, which has no header."""

    def __init__(self, place: str) -> None:
        self._place = place

    def pytest_report_collectionfinish(self) -> list[str]:
        """Return the line."""
        return [f"disttest: {self._place}"]


def _terminal_of(config: pytest.Config, options: RunOptions) -> str:
    """Return the device of the terminal on which ranks are debugged; empty if none is.

    Args:
        config: pytest's configuration.
        options: options of the run.

    Raises:
        UsageError: there is no terminal, and the user named a rank.
    """
    is_named = DEBUG_RANK.of(options) is not None
    if DEBUGPY.of(options) is not None or not (is_named or config.getoption("usepdb", default=False)):
        return ""
    from disttest.runtime.controller.orders import collecting_order

    try:
        return os.ttyname(_stdin(config))
    except OSError:
        if not is_named or collecting_order(config) is not None:
            return ""
        raise UsageError("--debug-rank needs a terminal, but standard input is not one") from None


def _stdin(config: pytest.Config) -> int:
    """Return the descriptor of the standard input, which pytest moves while it captures."""
    capture = config.pluginmanager.getplugin("capturemanager")
    source = getattr(getattr(capture, "_global_capturing", None), "in_", None)
    return getattr(source, "targetfd_save", 0)
