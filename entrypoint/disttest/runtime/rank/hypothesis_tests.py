"""hypothesis in a rank: all ranks draw the same examples, and a rank that finds a failing one says so at once.

Ranks meet in collectives, example by example. One that would replay its failure, or make it smaller, would do so alone, while
the others are at the next example and wait for it there.
"""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest


class HypothesisTests:
    """A pytest plugin of a rank."""

    def __init__(self, seed: int) -> None:
        """Draw the examples that this seed of the run leads to, unless hypothesis was given one."""
        self._seed = seed

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
        function.hypothesis.inner_test = _once(inner)
        function._hypothesis_internal_use_settings = _for_ranks(settings)  # noqa: SLF001
        try:
            return (yield)
        except _FoundError as found:
            raise found.error from None
        finally:
            core.global_force_seed = forced
            function.hypothesis.inner_test = inner
            function._hypothesis_internal_use_settings = settings  # noqa: SLF001


class _FoundError(BaseException):
    """The way out of hypothesis, which takes an ``Exception`` as one more example to look into."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _for_ranks(settings: Any) -> Any:
    """What no rank can decide by itself is left out: examples of earlier runs, and time, which passes unequally."""
    import hypothesis

    allowed = {*settings.suppress_health_check, hypothesis.HealthCheck.function_scoped_fixture}
    return hypothesis.settings(
        settings, deadline=None, database=None, suppress_health_check=sorted(allowed, key=str)
    )


def _once(inner: Callable[..., Any]) -> Callable[..., Any]:
    from hypothesis.errors import HypothesisException

    @functools.wraps(inner)
    def example(*args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except HypothesisException:  # an assumption that does not hold, among others
            raise
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
            drawn = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
            error.add_note(
                f"Falsifying example: {inner.__name__}({drawn})\n"
                "(the first that was found: ranks do not make it smaller, since each would do so alone)"
            )
            raise _FoundError(error) from None

    return example
