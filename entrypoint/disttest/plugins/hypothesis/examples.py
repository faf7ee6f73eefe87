"""hypothesis in a rank: all ranks draw the same examples, and take each one's end alike, so that they go on alike.

Ranks meet in collectives, example by example. One that replayed its failure, or made it smaller, would do so alone; so they
agree after each example, in the store of their world, and an example that fails in one of them has failed in all. Where the
others cannot come, since they wait in a collective for the rank that has failed, that one says so at once.
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
"""What a rank says of an example that has passed."""
_REJECTED = "assume"
"""… in which an assumption does not hold."""


def draw_alike(config: pytest.Config, spec: RankSpec, *, together: bool = False) -> None:
    """Have hypothesis draw the same examples in all ranks.

    Args:
        config: pytest's.
        spec: of the rank.
        together: whether all ranks run each test, and their world's store is there for it.
    """
    agreement = functools.partial(_agreement, spec) if together else lambda _nodeid: None
    config.pluginmanager.register(HypothesisTests(spec.settings.seed, agreement), "disttest-hypothesis")


def _agreement(spec: RankSpec, nodeid: str) -> Agreement | None:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not spec.master_port:
        return None
    store = dist.TCPStore(spec.master_address, spec.master_port, is_master=False)
    name = f"disttest/examples/{zlib.crc32(nodeid.encode())}"
    return Agreement(dist.PrefixStore(name, store), spec.rank, spec.shape.size)


class HypothesisTests:
    """A pytest plugin of a rank."""

    def __init__(self, seed: int, agreement: Callable[[str], Agreement | None]) -> None:
        """Draw the examples that this seed of the run leads to, unless hypothesis was given one.

        Args:
            seed: of the run.
            agreement: how the ranks of a test, by its node id, agree on its examples; None if they cannot.
        """
        self._seed = seed
        self._agreement = agreement

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Around the call of a test that hypothesis runs, before its own plugin looks at the settings."""
        test: Any = getattr(item, "obj", None)
        function: Any = getattr(test, "__func__", test)
        if not getattr(function, "is_hypothesis_test", False):
            return (yield)
        core: Any = importlib.import_module("hypothesis.core")
        inner, settings = function.hypothesis.inner_test, function._hypothesis_internal_use_settings  # noqa: SLF001
        forced = core.global_force_seed
        if forced is None:
            core.global_force_seed = zlib.crc32(item.nodeid.encode()) ^ self._seed
        agreement = self._agreement(item.nodeid)
        function.hypothesis.inner_test = _once(inner) if agreement is None else _together(inner, agreement)
        function._hypothesis_internal_use_settings = _for_ranks(settings)  # noqa: SLF001
        try:
            return (yield)
        except _FoundError as found:
            raise found.error from None
        except _FalsifiedError as falsified:
            _tell_own(falsified)
        finally:
            core.global_force_seed = forced
            function.hypothesis.inner_test = inner
            function._hypothesis_internal_use_settings = settings  # noqa: SLF001
        return None


class Agreement:
    """How the ranks of a test agree on what its examples come to."""

    def __init__(self, store: Any, rank: int, size: int, *, limit_s: float = EXAMPLE_AGREED_S) -> None:
        """Begin with the first example.

        Args:
            store: of the world, for this test alone.
            rank: this one.
            size: how many ranks there are.
            limit_s: how long a rank that has failed waits for the others.
        """
        self._store, self._rank, self._size = store, rank, size
        self._limit_s = limit_s
        self._example = 0
        self._failures: dict[str, type[_FalsifiedError]] = {}

    def agree(self, said: str) -> str | None:
        """What the next example comes to for all ranks, from what each says: the first failure, else that it is rejected.

        Returns:
            None where the others do not come, and this rank has failed.
        """
        self._example += 1
        keys = [f"{self._example}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], said)
        has_failed = said not in (_HELD, _REJECTED)
        try:
            limit_s = self._limit_s if has_failed else NO_LIMIT_S
            self._store.wait(keys, datetime.timedelta(seconds=limit_s))
        except RuntimeError:
            if has_failed:
                return None
            raise
        words = [self._store.get(key).decode() for key in keys]
        self._store.delete_key(f"{self._example - 1}/{self._rank}")  # whoever is here has read it
        failed = [f"rank {rank}: {word}" for rank, word in enumerate(words) if word not in (_HELD, _REJECTED)]
        return failed[0] if failed else max(words)

    def failure(self, agreed: str) -> type[_FalsifiedError]:
        """The type of an error by which hypothesis knows a failure, the same in all ranks."""
        return self._failures.setdefault(agreed, type("FalsifiedError", (_FalsifiedError,), {}))


class _FoundError(BaseException):
    """The way out of hypothesis, which takes an ``Exception`` as one more example to look into."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class _FalsifiedError(Exception):
    """An example has failed, in this rank or in another one."""

    def __init__(self, agreed: str, own: BaseException | None) -> None:
        super().__init__(agreed)
        self.own = own
        """What it raised here; None where it did not fail."""


def _tell_own(falsified: _FalsifiedError) -> None:
    """Raise what this rank has to tell, with hypothesis's notes; nothing if it failed in others only, who tell it."""
    if falsified.own is None:
        return
    for note in getattr(falsified, "__notes__", ()):
        falsified.own.add_note(note)
    raise falsified.own from None


def _for_ranks(settings: Any) -> Any:
    """What no rank can decide by itself is left out: examples of earlier runs, and time, which passes unequally."""
    import hypothesis

    slow = {hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow}
    return hypothesis.settings(
        settings,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=[phase for phase in settings.phases if phase is not hypothesis.Phase.explain],
        suppress_health_check=sorted({*settings.suppress_health_check, *slow}, key=str),
    )


def _together(inner: Callable[..., Any], agreement: Agreement) -> Callable[..., Any]:
    from hypothesis import reject
    from hypothesis.errors import HypothesisException, UnsatisfiedAssumption

    @functools.wraps(inner)
    def example(*args: Any, **kwargs: Any) -> None:
        said, own = _HELD, None
        try:
            inner(*args, **kwargs)
        except UnsatisfiedAssumption:
            said = _REJECTED
        except HypothesisException:
            raise
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
            said, own = _place_of(error), error
        agreed = agreement.agree(said)
        if agreed is None:
            assert own is not None
            _give_up(inner, own, kwargs)
        elif agreed == _REJECTED:
            reject()
        elif (
            agreed != _HELD
        ):  # outside of the except clause: hypothesis tells failures apart by their context, too
            raise agreement.failure(agreed)(agreed, own)

    return example


def _place_of(error: BaseException) -> str:
    """``AssertionError at test_step.py:12``."""
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
        except HypothesisException:  # an assumption that does not hold, among others
            raise
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
            _give_up(inner, error, kwargs)

    return example


def _give_up(inner: Callable[..., Any], error: BaseException, drawn: dict[str, Any]) -> None:
    """Say at once that this example fails here."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in drawn.items())
    error.add_note(
        f"Falsifying example: {inner.__name__}({arguments})\n"
        "(as it was drawn: this rank cannot make it smaller alone, and the others wait for it in the example)"
    )
    raise _FoundError(error) from None
