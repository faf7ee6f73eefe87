"""State snapshots of a living rank: detect and name the leaks of a test, and restore the state before the next one.

State is read facet by facet (``environment`` -> ``FOO`` -> value), before set-up and after tear-down. While fixtures of
a wider scope are alive, it is also read before the call: a value that already had its final form then was changed by
set-up, belongs to a fixture, and stays. Every other difference is a leak.

State is compared, never guarded while it changes: wrapped modes and functions would run tests in another torch than
their users have. Plugins know how each facet is read and restored, with the hook ``disttest_state_facets``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from disttest.host.imports import loaded, reset_compiler
from disttest.runtime.messages.protocol import Variables
from disttest.runtime.rank.facet import MISSING, Facet, Values, describe_change, is_same
from disttest.runtime.rank.loaded_facets import ENVIRONMENT, loaded_facets

Facts = dict[str, Values]
"""Facet -> its values; a facet of a library that is not loaded is missing."""
_MOST_NAMED = 50


class Restoration(NamedTuple):
    """Result of restoring the state of a rank."""

    leaks: tuple[str, ...]
    kept: tuple[str, ...] = ()
    """Leaks that could not be restored."""
    facts: Facts | None = None
    """State after the restoration; None if something had to be restored."""
    store_keys: tuple[str, ...] = ()
    """Keys that the world must delete from its store."""
    retire: bool = False
    """Whether this process must not run another test."""


class _Unreadable(NamedTuple):
    """Takes the place of the values of a facet that a test has damaged."""

    error: str


def prepare() -> None:
    """Import everything that reading needs, once in a process that forks ranks, so that no rank has to."""
    loaded_facets()


def look_before_forks() -> None:
    """Take the first look at replaceable names before any fork.

    A rank that looks first copies far more memory pages.
    """
    for facet in loaded_facets():
        # With this look, a rank copies a third fewer pages when it starts.
        if facet.kept_since_first:
            _read(facet)


FacetLister = Callable[[], tuple[Facet, ...]]
"""Returns the facets that can be read now."""


def facets_between_tests() -> tuple[Facet, ...]:
    """List the facets of a process that runs several tests."""
    return loaded_facets()


def facets_of_one_test() -> tuple[Facet, ...]:
    """List the facets of a process that runs one test.

    Replaced names vanish with the process, and looking at them would copy memory pages.
    """
    return tuple(facet for facet in loaded_facets() if not facet.kept_since_first)


def read_state(facets: FacetLister = facets_between_tests) -> Facts:
    """Read the whole state of this process."""
    return {facet.kind: _read_anew(facet) for facet in facets()}


def state_before(
    last: Facts | None, *, shared_fixtures: bool, facets: FacetLister = facets_between_tests
) -> Facts:
    """Return the state before a test.

    Args:
        last: state after the previous test, which needs no second look; None if it was restored.
        shared_fixtures: whether fixtures of a wider scope exist; in a slower rank they may have set store keys since.
        facets: lists the facets to read.
    """
    if last is None:
        return read_state(facets)
    return with_current_groups(last) if shared_fixtures else last


def with_current_groups(before: Facts) -> Facts:
    """Read the process groups again: the default group has just been created for the test."""
    return {**before, **{facet.kind: _read_anew(facet) for facet in loaded_facets() if facet.made_for_tests}}


def set_variables(variables: Variables) -> Facts:
    """Set environment variables of this process; return the environment afterwards."""
    facet = next(facet for facet in loaded_facets() if facet.kind == ENVIRONMENT)
    for name, value in variables:
        facet.restore(name, MISSING if value is None else value)
    return {facet.kind: facet.read()}


def restore_state(
    before: Facts,
    at_call: Facts,
    *,
    shared_fixtures: bool,
    at_teardown: Facts | None = None,
    at_start: Facts | None = None,
    facets: FacetLister = facets_between_tests,
) -> Restoration:
    """Restore the state that a test changed.

    Args:
        before: state before the set-up of the test.
        at_call: state when the call began.
        shared_fixtures: whether fixtures of a wider scope than the test are still set up.
        at_teardown: state after the test's own fixtures were torn down, if a fixture of a wider scope followed.
        at_start: state at the start of the rank, if no fixture is set up any more. A fixture may have returned to it before
            the tear-down: in the set-up, if its next parameter needed another one, or by hand in the call.
        facets: lists the facets to read.
    """
    # First, because the limit may be restored below.
    spent = _descriptors_are_spent()
    leaks = [spent] if spent else []
    kept = [*leaks]
    facts: Facts = {}
    store_keys: list[str] = []
    for facet in facets():
        now_of_it = facts[facet.kind] = _read(facet)
        # The test loaded the library, so there is no earlier state to restore.
        if facet.kind not in before:
            continue
        for name, now, then in _changes(now_of_it, before[facet.kind]):
            # A fixture that is still set up has set it.
            if shared_fixtures and is_same(at_call.get(facet.kind, {}).get(name, MISSING), now):
                continue
            # The tear-down of a wider fixture has changed it, perhaps to the value of one that is still set up. A default
            # group that it has destroyed in some ranks needs a new world, however.
            if at_teardown is not None and not facet.made_for_tests:
                if not is_same(at_teardown.get(facet.kind, {}).get(name, MISSING), now):
                    continue
                if at_start is not None and is_same(at_start.get(facet.kind, {}).get(name, MISSING), now):
                    continue
            leak = describe_change(facet, name, now, then)
            leaks.append(leak)
            if facet.by_world and then is MISSING:
                store_keys.append(name)
            elif not _restore(facet, name, then):
                kept.append(leak)
    reset_compiler()
    # After a restoration the facts are out of date, so the next test reads the state again.
    left = None if leaks else facts
    return Restoration(_named(leaks), _named(kept), left, tuple(store_keys), retire=bool(kept))


# State is compared after a test, not guarded during it: wrapped modes and functions would run tests in a different
# torch.
# docs/decisions/0012-compare-state.md
class StateRestorer:
    """Keeps the state snapshots of one rank from test to test."""

    def __init__(self, facets: FacetLister) -> None:
        """Start without a snapshot.

        Args:
            facets: lists the facets to read.
        """
        self._facets = facets
        # State after the previous test, if nothing had to be restored.
        self._last: Facts | None = None
        self._at_start: Facts | None = None
        self._before: Facts = {}
        self._at_call: Facts = {}
        self._at_teardown: Facts = {}

    def begin(self, *, shared_fixtures: bool) -> None:
        """Take the snapshot before a test."""
        before = state_before(self._last, shared_fixtures=shared_fixtures, facets=self._facets)
        self._before = self._at_call = self._at_teardown = before
        self._at_start = self._at_start or before

    def note_call(self) -> None:
        """Take the snapshot before the call; changes made by set-up stay."""
        self._at_call = read_state(self._facets)

    @contextlib.contextmanager
    def accepting(self) -> Iterator[None]:
        """Take what changes meanwhile for changes by set-up."""
        before = read_state(self._facets)
        try:
            yield
        finally:
            for kind, values in read_state(self._facets).items():
                changed = {name: now for name, now, _ in _changes(values, before.get(kind, {}))}
                self._at_call = {**self._at_call, kind: {**self._at_call.get(kind, {}), **changed}}

    def note_teardown(self) -> None:
        """Take the snapshot before the tear-down of wider fixtures."""
        self._at_teardown = read_state(self._facets)

    def note_group(self) -> None:
        """Take over the default group that was created for the test."""
        self._before = with_current_groups(self._before)

    def end(self, *, shared_fixtures: bool, torn_down: bool = False) -> Restoration:
        """Restore the state after a test; ``torn_down`` says whether its tear-down included a fixture of a wider scope."""
        cleanup = restore_state(
            self._before,
            self._at_call,
            shared_fixtures=shared_fixtures,
            at_teardown=self._at_teardown if torn_down else None,
            at_start=None if shared_fixtures else self._at_start,
            facets=self._facets,
        )
        self._last = cleanup.facts
        return cleanup


def reseed(seed: int) -> None:
    """Seed every loaded random generator; all ranks get the same seed."""
    import random

    random.seed(seed)
    if numpy := loaded("numpy"):
        # numpy accepts 32 bits only, and raises ValueError for a larger or negative seed.
        numpy.random.seed(seed % 2**32)
    if torch := loaded("torch"):
        # `torch.manual_seed` also records the seed, with a stack, for accelerators that are initialized later:
        # https://github.com/pytorch/pytorch/pull/62534
        (torch if _has_accelerator(torch) else torch.default_generator).manual_seed(seed)


@functools.cache
def _has_accelerator(torch: Any) -> bool:
    """Whether this process may ever use an accelerator.

    torch's CUDA build alone does not count; worlds on the CPU see no device.
    """
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != "cuda":
        return accelerator is not None
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")  # noqa: TID251  # as torch reads it
    return bool(shown) if shown is not None else torch.cuda.device_count() > 0


def _named(all_leaks: list[str]) -> tuple[str, ...]:
    leaks = [leak for leak in all_leaks if leak]
    more = len(leaks) - _MOST_NAMED
    return (*leaks[:_MOST_NAMED], f"{more} more, which are not listed") if more > 0 else tuple(leaks)


def _read(facet: Facet) -> Values:
    try:
        return facet.read()
    except Exception as error:  # noqa: BLE001 - whatever a test has put in its place
        return {"": _Unreadable(repr(error))}


def _read_anew(facet: Facet) -> Values:
    if facet.forget is not None:
        facet.forget()
    return _read(facet)


def _restore(facet: Facet, name: Any, then: Any) -> bool:
    try:
        return facet.restore(name, then)
    except Exception:  # noqa: BLE001
        return False


def _changes(now: Values, before: Values) -> Iterator[tuple[Any, Any, Any]]:
    # The usual case.
    if is_same(now, before):
        return
    for name in [*now, *(name for name in before if name not in now)]:
        here, then = now.get(name, MISSING), before.get(name, MISSING)
        if not is_same(here, then):
            yield name, here, then


def _descriptors_are_spent() -> str:
    """Describe file descriptors if more than half are in use: leaked ones cannot be told from the others."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest = os.dup(2)
        os.close(lowest)
    # No descriptor is left, or the test has closed stderr.
    except OSError:
        lowest = limit
    # The lowest free number is an upper bound of the leaked descriptors.
    if lowest <= limit // 2:
        return ""
    try:
        count = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # names only, and quickly
    # Not even one descriptor is left to list the others.
    except OSError:
        count = limit
    return f"file descriptors: {count} of {limit} are open" if count > limit // 2 else ""
