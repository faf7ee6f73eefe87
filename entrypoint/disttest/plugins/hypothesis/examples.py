"""hypothesis in a rank: all ranks draw the same examples and agree on each outcome, so that they continue alike.

Ranks meet in collectives, example by example. A rank that replayed or shrank its failure would do so alone. Ranks
therefore agree after each example in the store of their world, and an example that fails in one rank has failed in
all: every rank then takes the same path through hypothesis. If the others cannot come, because they wait in a
collective for the failed rank, that rank reports its failure immediately.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from disttest.limits import NO_LIMIT_S
from disttest.plugins.hypothesis.limits import EXAMPLE_AGREED_S
from disttest.runtime.rank.rank_spec import RankSpec

_HELD = ""
"""Outcome of an example that has passed."""
_REJECTED = "assume"
"""Outcome of an example in which an assumption does not hold."""


def draw_alike(config: pytest.Config, spec: RankSpec, *, together: bool = False) -> None:
    """Have hypothesis draw the same examples in all ranks.

    Args:
        config: pytest's configuration.
        spec: description of the rank.
        together: whether all ranks run each test and have their world's store.
    """
    agreement = functools.partial(_agreement, spec) if together else lambda _nodeid: None
    config.pluginmanager.register(HypothesisTests(spec.settings.seed, agreement), "disttest-hypothesis")


def _agreement(spec: RankSpec, nodeid: str) -> Agreement | None:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not spec.master_port:
        return None
    # A connection for this alone: a thread that waits for a key locks the store for all others.
    store = dist.TCPStore(spec.master_address, spec.master_port, is_master=False)
    name = f"disttest/examples/{zlib.crc32(nodeid.encode())}"
    return Agreement(dist.PrefixStore(name, store), spec.rank, spec.shape.size)


class HypothesisTests:
    """The pytest plugin of a rank."""

    def __init__(self, seed: int, agreement: Callable[[str], Agreement | None]) -> None:
        """Draw the examples that this seed of the run leads to, unless hypothesis was given a seed.

        Args:
            seed: seed of the run.
            agreement: returns the agreement of the ranks for a test's node id; None if they cannot agree.
        """
        self._seed = seed
        self._agreement = agreement

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Wrap the call of a test of hypothesis, before hypothesis's own plugin reads the settings."""
        test: Any = getattr(item, "obj", None)
        function: Any = getattr(test, "__func__", test)
        if not getattr(function, "is_hypothesis_test", False):
            return (yield)
        core: Any = importlib.import_module("hypothesis.core")
        forced = core.global_force_seed
        if forced is None:
            # A separate seed for each test, the same in all ranks, and another one with another `--seed`.
            core.global_force_seed = zlib.crc32(item.nodeid.encode()) ^ self._seed
        # The `TestCase` of a state machine has no inner test.
        if not hasattr(function, "hypothesis"):
            try:
                return (yield)
            finally:
                core.global_force_seed = forced
        # hypothesis 6 has no public way to replace the settings of a test:
        # https://github.com/HypothesisWorks/hypothesis/blob/master/hypothesis-python/src/hypothesis/core.py
        inner, settings = function.hypothesis.inner_test, function._hypothesis_internal_use_settings  # noqa: SLF001
        agreement = self._agreement(item.nodeid)
        function.hypothesis.inner_test = _once(inner) if agreement is None else _together(inner, agreement)
        function._hypothesis_internal_use_settings = _for_ranks(settings)  # noqa: SLF001
        try:
            return (yield)
        except _FoundError as found:
            raise found.error from None
        except _FalsifiedError as falsified:
            _print_examples(falsified)
        finally:
            core.global_force_seed = forced
            function.hypothesis.inner_test = inner
            function._hypothesis_internal_use_settings = settings  # noqa: SLF001
        return None


class Agreement:
    """The agreement of a test's ranks on the outcomes of its examples."""

    def __init__(self, store: Any, rank: int, size: int, *, limit_s: float = EXAMPLE_AGREED_S) -> None:
        """Start with the first example.

        Args:
            store: store of the world, for this test alone.
            rank: this rank.
            size: number of ranks.
            limit_s: time that a failed rank waits for the others.
        """
        self._store, self._rank, self._size = store, rank, size
        self._limit_s = limit_s
        self._example = 0
        self._failures: dict[str, type[_FalsifiedError]] = {}

    def agree(self, result: str) -> str | None:
        """Return the common outcome of the next example from the outcomes of all ranks: the first failure, else a
        rejection.

        Returns:
            None if the others do not come and this rank has failed.
        """
        self._example += 1
        keys = [f"{self._example}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], result)
        has_failed = result not in (_HELD, _REJECTED)
        try:
            # Without a failure the others come, however long their example takes. After one they may wait
            # for this rank in a collective.
            limit_s = self._limit_s if has_failed else NO_LIMIT_S
            self._store.wait(keys, datetime.timedelta(seconds=limit_s))
        except RuntimeError:
            if has_failed:
                return None
            raise
        words = [self._store.get(key).decode() for key in keys]
        self._store.delete_key(f"{self._example - 1}/{self._rank}")  # all ranks that are here have read it
        failed = [f"rank {rank}: {word}" for rank, word in enumerate(words) if word not in (_HELD, _REJECTED)]
        # "assume" is greater than "", so one rejection rejects the example in all ranks.
        return failed[0] if failed else max(words)

    def failure(self, agreed: str) -> type[_FalsifiedError]:
        """Return the exception type by which hypothesis recognises a failure, the same for all ranks."""
        # hypothesis distinguishes failures by type and line. All are raised in one line here, so each has
        # its type.
        return self._failures.setdefault(agreed, type("FalsifiedError", (_FalsifiedError,), {}))


class _FoundError(BaseException):
    """Leaves hypothesis, which treats an ``Exception`` as another example to examine."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class _FalsifiedError(Exception):
    """An example has failed in this rank or in another one."""

    def __init__(self, agreed: str, own: BaseException | None) -> None:
        super().__init__(agreed)
        self.own = own
        """The exception of this rank; None if the example passed here."""


def _print_examples(falsified: _FalsifiedError) -> None:
    """Raise this rank's exception with hypothesis's notes; nothing if it failed only in others, which report it."""
    if falsified.own is None:
        return
    for note in getattr(falsified, "__notes__", ()):
        falsified.own.add_note(note)
    raise falsified.own from None


def _for_ranks(settings: Any) -> Any:
    """Remove criteria that ranks cannot decide alone: examples of earlier runs, and time limits."""
    import hypothesis

    slow = {hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow}
    return hypothesis.settings(
        settings,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        # The explain phase compares the lines that this rank has run, which say nothing where only another
        # rank fails.
        phases=[phase for phase in settings.phases if phase is not hypothesis.Phase.explain],
        # Each example takes as long as it does in the slowest rank.
        suppress_health_check=sorted({*settings.suppress_health_check, *slow}, key=str),
    )


def _together(inner: Callable[..., Any], agreement: Agreement) -> Callable[..., Any]:
    from hypothesis import reject
    from hypothesis.errors import HypothesisException, UnsatisfiedAssumption

    @functools.wraps(inner)
    def example(*args: Any, **kwargs: Any) -> None:
        result, own = _HELD, None
        try:
            inner(*args, **kwargs)
        except UnsatisfiedAssumption:
            result = _REJECTED
        # Such as StopTest. All ranks draw alike, so it ends the example in all of them at the same draw.
        except HypothesisException:
            raise
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
            result, own = _place_of(error), error
        agreed = agreement.agree(result)
        if agreed is None:
            assert own is not None
            _give_up(inner, own, kwargs)
        elif agreed == _REJECTED:
            reject()
        elif (
            agreed != _HELD
        ):  # outside of the except clause: hypothesis also distinguishes failures by their context
            raise agreement.failure(agreed)(agreed, own)

    return example


def _place_of(error: BaseException) -> str:
    """Describe an exception: ``AssertionError at test_step.py:12``."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    place = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback else ""
    return f"{type(error).__name__} at {place}"


def _once(inner: Callable[..., Any]) -> Callable[..., Any]:
    from hypothesis.errors import HypothesisException

    @functools.wraps(inner)
    def example(*args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except HypothesisException:  # for example an unsatisfied assumption
            raise
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
            _give_up(inner, error, kwargs)

    return example


def _give_up(inner: Callable[..., Any], error: BaseException, drawn: dict[str, Any]) -> None:
    """Report immediately that this example fails in this rank."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in drawn.items())
    error.add_note(
        f"Falsifying example: {inner.__name__}({arguments})\n"
        "(as drawn: this rank cannot shrink it alone, because the others wait for it in the example)"
    )
    raise _FoundError(error) from None
