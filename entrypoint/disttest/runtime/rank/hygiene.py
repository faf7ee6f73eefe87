"""What a test may leave behind in a living rank: noticed, named, and put back before the next test.

State is read as facts, by facet (``environment`` -> ``FOO`` -> value), before set-up and after tear-down; while fixtures of
a wider scope are alive also before the call: a fact that ends as it was then was changed by set-up, is theirs, and
stays. Every other difference is a leak.

What is read, and how it is put back, is in :mod:`disttest.runtime.rank.facets`.
"""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from disttest.host.loaded import loaded, reset_compiler
from disttest.runtime.messages.protocol import Variables
from disttest.runtime.rank.facets.facet import MISSING, Facet, Values, describe_change, is_same
from disttest.runtime.rank.facets.facet_table import loaded_facets

Facts = dict[str, Values]
"""Facet -> its values; a facet of a library that is not loaded is not there."""
ENVIRONMENT = "environment"
"""The facet whose values are the variables of the environment."""
_MOST_NAMED = 50


class Cleanup(NamedTuple):
    """What the cleaning of a rank found."""

    leaks: tuple[str, ...]
    kept: tuple[str, ...] = ()
    """Those that could not be put back."""
    facts: Facts | None = None
    """What holds now; None where something had to be put back."""
    store_keys: tuple[str, ...] = ()
    """What the world is to delete in its store."""

    @property
    def retire(self) -> bool:
        """Whether this process must not run another test."""
        return bool(self.kept)


class _Unreadable(NamedTuple):
    """Stands for the values of a facet that a test has damaged so that they cannot be read."""

    error: str


def prepare() -> None:
    """Import what reading takes, once in a process that forks ranks: each would do it by itself."""
    loaded_facets()


def look_before_forks() -> None:
    """Look once at what tests may replace, when all is loaded: a rank whose look is the first copies far more pages."""
    for facet in loaded_facets():
        if facet.kept_since_first:
            _read(facet)


FacetsThere = Callable[[], tuple[Facet, ...]]
"""Says which facets there are by now."""


def facets_between_tests() -> tuple[Facet, ...]:
    """Those that are looked at in a process that runs one test after another."""
    return loaded_facets()


def facets_of_one_test() -> tuple[Facet, ...]:
    """Those in a process that runs one test: what that replaces goes with it, and to look would copy pages."""
    return tuple(facet for facet in loaded_facets() if not facet.kept_since_first)


def read_facts(facets: FacetsThere = facets_between_tests) -> Facts:
    """All facts of this process."""
    return {facet.kind: _read_anew(facet) for facet in facets()}


def facts_before(
    last: Facts | None, *, shared_fixtures: bool, facets: FacetsThere = facets_between_tests
) -> Facts:
    """The facts before a test.

    Args:
        last: as the last test has left them, which need no second look.
        shared_fixtures: those of another rank, slower than this one, may have set keys in the store since.
        facets: those that are looked at.
    """
    if last is None:
        return read_facts(facets)
    return with_own_groups(last) if shared_fixtures else last


def with_own_groups(before: Facts) -> Facts:
    """The facts with the process groups as they are now: the default group has just been made for the test."""
    return {**before, **{facet.kind: _read_anew(facet) for facet in loaded_facets() if facet.made_for_tests}}


def set_variables(variables: Variables) -> Facts:
    """Set these in the environment of this process; what it holds then."""
    facet = next(facet for facet in loaded_facets() if facet.kind == ENVIRONMENT)
    for name, value in variables:
        facet.restore(name, MISSING if value is None else value)
    return {facet.kind: facet.read()}


def clean_up(
    before: Facts,
    at_call: Facts,
    *,
    pristine: Facts,
    shared_fixtures: bool,
    facets: FacetsThere = facets_between_tests,
) -> Cleanup:
    """Put back what a test changed.

    Args:
        pristine: facts when the rank started; a fixture of a wider scope that is torn down returns to them.
        before: facts before the set-up of the test.
        at_call: facts when its call began.
        shared_fixtures: fixtures of a wider scope than the test are still set up.
        facets: those that are looked at.
    """
    spent = _descriptors_are_spent()  # by the limit that the test has left
    leaks = [spent] if spent else []
    kept = [*leaks]
    facts: Facts = {}
    store_keys: list[str] = []
    for facet in facets():
        now_of_it = facts[facet.kind] = _read(facet)
        if facet.kind not in before:  # its library was loaded meanwhile: there is nothing to go back to
            continue
        fine = [] if facet.made_for_tests else [pristine.get(facet.kind, {})]
        fine += [at_call.get(facet.kind, {})] if shared_fixtures else []
        for name, now, then in _changes(now_of_it, before[facet.kind]):
            if any(is_same(values.get(name, MISSING), now) for values in fine):
                continue
            leak = describe_change(facet, name, now, then)
            leaks.append(leak)
            if facet.by_world and then is MISSING:
                store_keys.append(name)
            elif not _restore(facet, name, then):
                kept.append(leak)
    reset_compiler()
    return Cleanup(_named(leaks), _named(kept), None if leaks else facts, tuple(store_keys))


class Tidying:
    """Keeps the state of one rank, from test to test."""

    def __init__(self, facets: FacetsThere) -> None:
        """Of a rank as it is now.

        Args:
            facets: those that are looked at.
        """
        self._facets = facets
        self._pristine = read_facts(facets)
        # After the last test, if nothing had to be put back.
        self._last: Facts | None = None
        self._before: Facts = {}
        self._at_call: Facts = {}

    def begin(self, *, shared_fixtures: bool) -> None:
        """A test begins."""
        before = facts_before(self._last, shared_fixtures=shared_fixtures, facets=self._facets)
        self._before = self._at_call = before

    def note_call(self) -> None:
        """Its call begins, and what its set-up has changed stays."""
        self._at_call = read_facts(self._facets)

    def note_group(self) -> None:
        """The default group has been made for it."""
        self._before = with_own_groups(self._before)

    def end(self, *, shared_fixtures: bool) -> Cleanup:
        """It is over."""
        cleanup = clean_up(
            self._before,
            self._at_call,
            pristine=self._pristine,
            shared_fixtures=shared_fixtures,
            facets=self._facets,
        )
        self._last = cleanup.facts
        return cleanup


def reseed(seed: int) -> None:
    """Seed every random generator that is loaded, the same on all ranks."""
    import random

    random.seed(seed)
    if numpy := loaded("numpy"):
        numpy.random.seed(seed % 2**32)
    if torch := loaded("torch"):
        # Else torch notes each seed, with a stack, for accelerators that never come.
        (torch if _has_accelerator(torch) else torch.default_generator).manual_seed(seed)


@functools.cache
def _has_accelerator(torch: Any) -> bool:
    """Whether this process may ever compute on one: torch's CUDA build is none, and worlds on the CPU are shown none."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != "cuda":
        return accelerator is not None
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")  # noqa: TID251  # as torch reads it
    return bool(shown) if shown is not None else torch.cuda.device_count() > 0


def _named(leaks: list[str]) -> tuple[str, ...]:
    more = len(leaks) - _MOST_NAMED
    return (*leaks[:_MOST_NAMED], f"{more} more things, which are not listed") if more > 0 else tuple(leaks)


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
    if is_same(now, before):  # nearly always
        return
    for name in [*now, *(name for name in before if name not in now)]:
        here, then = now.get(name, MISSING), before.get(name, MISSING)
        if not is_same(here, then):
            yield name, here, then


def _descriptors_are_spent() -> str:
    """Whether the next test would find no file descriptors left; they cannot be told from those in use."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest = os.dup(2)
        os.close(lowest)
    except OSError:  # none is left, or the test has closed its output
        lowest = limit
    if lowest <= limit // 2:  # the first that is free: no more than so many can be a leak
        return ""
    try:
        count = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # names only, and quickly
    except OSError:  # not even one is left to look
        count = limit
    return f"file descriptors: {count} of {limit} are open" if count > limit // 2 else ""
