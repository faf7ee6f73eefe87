"""Skips that are known before any process starts: because of the machine, the installed torch or marks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pytest

from disttest.errors import UsageError
from disttest.options.run import RunOptions
from disttest.planning.backends import backend_named, build_of
from disttest.runtime.controller.expand import shape_of
from disttest.runtime.controller.session_options import OPTIONS
from disttest.runtime.controller.wanted_worlds import OWN_WORLD, needed_gpus
from disttest.testing.skips import early_skip


def check_backends(items: Iterable[pytest.Item], options: RunOptions) -> None:
    """Skip tests whose backend the installed torch lacks.

    Raises:
        UsageError: the user asked for that backend by name.
    """
    for item in items:
        shape = shape_of(item)
        if shape is None or _is_built(shape.backend):
            continue
        if shape.backend in options.backend:
            needed = build_of(shape.backend)
            build = f". {backend_named(shape.backend).title} needs {needed}" if needed else ""
            raise UsageError(
                f"--backend {shape.backend}: the installed torch has no such backend; it has {_built_backends()}{build}"
            )
        # Otherwise every rank would start and fail in init_process_group.
        item.add_marker(pytest.mark.skip(reason=f"torch has no backend {shape.backend}"))


def _is_built(backend: str) -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is None or not dist.is_available() or dist.is_backend_available(backend)


def _built_backends() -> str:
    from torch.distributed import Backend

    return ", ".join(name for name in Backend.backend_list if name != "undefined" and _is_built(name))


def known_skip(item: pytest.Item) -> str | None:
    """Return the reason if the item's marks skip it already; such a skip costs no process.

    None also if only a rank can answer, or if a mark is invalid: a rank then reports the error of this test.
    """
    # Ranks that collect evaluate conditions with their own RANK; those here are of rank 0.
    if item.config.stash[OPTIONS].ranks_collect:
        return None
    try:
        return _known_skip(item)
    # pytest reports an invalid condition by `fail()`, whose exception derives from BaseException.
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 - conditions of marks are code of the user
        return None


def _known_skip(item: pytest.Item) -> str | None:
    from _pytest.skipping import Skip, evaluate_skip_marks

    # A condition that is a text may read variables that only ranks have.
    has_text = any(isinstance(condition, str) for condition in _conditions(item))
    plain = (Skip(*mark.args, **mark.kwargs) for mark in item.iter_markers("skip"))
    skip = next(plain, None) if has_text else evaluate_skip_marks(item)
    if skip is not None:
        return skip.reason
    function = getattr(item, "obj", None)
    # unittest.skip sets this attribute on methods and classes.
    for owner in (function, getattr(item.parent, "obj", None)):
        if getattr(owner, "__unittest_skip__", False):
            return str(getattr(owner, "__unittest_skip_why__", ""))
    return early_skip(function)


def _conditions(item: pytest.Item) -> Iterator[object]:
    for mark in item.iter_markers("skipif"):
        yield from (*mark.args, mark.kwargs.get("condition"))


def vacuous(item: pytest.Item) -> str | None:
    """Return the reason why no rank of the item would run here, if that counts as a failure."""
    own = item.stash.get(OWN_WORLD, None)
    return own.refusal or None if own else None


def skip_for_want_of_gpus(items: Iterable[pytest.Item], found: int) -> None:
    """Skip tests that need more GPUs than the run has, with or without a world.

    Raises:
        UsageError: a mark is invalid.
    """
    for item in items:
        if (needed := needed_gpus(item)) > found:
            reason = f"needs {needed} GPUs, this run has {found}"
            item.add_marker(pytest.mark.skip(reason=reason))
