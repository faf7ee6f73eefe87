"""State of the standard library."""

from __future__ import annotations

import _locale
import _tracemalloc  # without the look-ups of ``tracemalloc``
import asyncio.events
import decimal
import locale
import logging
import multiprocessing.context
import socket
import tempfile
import tracemalloc
import warnings
from multiprocessing import resource_tracker
from typing import Any

from disttest.host.descendants import command_of, is_compiler
from disttest.host.proc import forked_children, has_children, is_alive
from disttest.plugins.state_facets.interpreter import in_place, never
from disttest.runtime.rank.facet import MISSING, Facet, Setting, Values, attribute, change, presence, settings

_contexts: Any = multiprocessing.context._default_context
_SET_BY_IMPORTS = ("torch.distributed.elastic.", "c10d-")
"""Loggers whose level torch sets when a test is the first to import their modules."""


def _decimal() -> tuple[Any, ...]:
    # Without the flags, which every inexact result sets.
    context = decimal.getcontext()
    return (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp)


def _put_decimal(then: tuple[Any, ...]) -> None:
    prec, rounding, emin, emax, capitals, clamp = then
    decimal.setcontext(
        decimal.Context(prec=prec, rounding=rounding, Emin=emin, Emax=emax, capitals=capitals, clamp=clamp)
    )


def _put_filters(then: tuple[Any, ...]) -> None:
    warnings.filters[:] = then  # type: ignore[index]
    # Each module remembers which warnings it has shown, until the version of the filters changes.
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _loop() -> Any:
    """The event loop of the main thread, read without creating one as a side effect."""
    policy = asyncio.events._event_loop_policy  # type: ignore[attr-defined]
    return getattr(getattr(policy, "_local", None), "_loop", None)


def _put_loop(then: Any) -> None:
    policy = asyncio.events._event_loop_policy  # type: ignore[attr-defined]
    if policy is not None:
        policy._local._loop = then


def _start_method() -> Values:
    return {"": _contexts._actual_context}


def _restore_start_method(_name: str, then: Any) -> bool:
    _contexts._actual_context = then
    return True


def _describe_start_method(what: str, now: Any, then: Any) -> str:
    # The first use of multiprocessing selects the default.
    is_default = then is None and now is _contexts._default_context
    return "" if is_default else change(what, now, then)


def _levels() -> Values:
    """Log levels that were set explicitly, by logger name."""
    return {
        name: level
        for name, logger in logging.root.manager.loggerDict.items()
        if (level := getattr(logger, "level", 0))
    }


def _describe_level(what: str, now: Any, then: Any) -> str:
    is_of_import = then is MISSING and what.partition("level of logger ")[2].startswith(_SET_BY_IMPORTS)
    return "" if is_of_import else change(what, now, then)


def _restore_level(name: str, then: Any) -> bool:
    logging.getLogger(name).setLevel(0 if then is MISSING else then)
    return True


def _children() -> Values:
    """Living children, except multiprocessing's resource tracker and torch's compiler."""
    # The usual case.
    if not has_children():
        return {}
    helper = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    living = (pid for pid in forked_children() if pid != helper and is_alive(pid))
    return {f"{pid} ({_command(pid)})": pid for pid in living if not is_compiler(pid)}


def _command(pid: int) -> str:
    try:
        return command_of(pid)[:60]
    except ProcessLookupError:
        return "about to end"


FACETS = (
    Facet("child process", _children, never, presence),
    settings(
        "logging",
        Setting("disabled level", *attribute(logging.root.manager, "disable")),
        Setting("level", lambda: logging.root.level, logging.root.setLevel),
        Setting("handlers", *in_place(logging.root.handlers)),
        Setting("filters", *in_place(logging.root.filters)),
        Setting("logger class", logging.getLoggerClass, logging.setLoggerClass),
        Setting("record factory", logging.getLogRecordFactory, logging.setLogRecordFactory),
    ),
    Facet("level of logger", _levels, _restore_level, _describe_level),
    Facet("start method of multiprocessing", _start_method, _restore_start_method, _describe_start_method),
    settings(
        "warnings",
        Setting("filters", lambda: tuple(warnings.filters), _put_filters),
        Setting("showwarning", *attribute(warnings, "showwarning")),
    ),
    settings(
        "standard library",
        Setting(
            "locale",
            lambda: _locale.setlocale(locale.LC_ALL, None),
            lambda then: locale.setlocale(locale.LC_ALL, then),
        ),
        Setting("decimal context", _decimal, _put_decimal),
        Setting("event loop policy", *attribute(asyncio.events, "_event_loop_policy")),
        Setting("event loop", _loop, _put_loop),
        Setting("running event loop", asyncio.events._get_running_loop, asyncio.events._set_running_loop),
        Setting("default timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
        Setting("folder for temporary files", *attribute(tempfile, "tempdir")),
        Setting("tracemalloc", _tracemalloc.is_tracing, lambda _: tracemalloc.stop()),
    ),
)
