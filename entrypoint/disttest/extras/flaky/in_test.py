"""Perturbations inside the process of a test: late collectives, and fewer compute threads."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from disttest.clock import sleep
from disttest.extras.flaky.perturb import Perturbed
from disttest.observe import Call, Tool, observing


class Jitter(Tool):
    """Makes the rank late at each call, or behind it.

    Args:
        longest_s: the longest delay.
        key: text that determines the delays.
    """

    def __init__(self, longest_s: float, key: str) -> None:
        self._longest_s = longest_s
        # Its own generator: numbers of the test's generators must not change.
        self._random = random.Random(key)  # noqa: S311

    def take(self, call: Call, run: Callable[[], Any]) -> Any:
        """Wait, and run the call, or the other way around."""
        del call
        delay_s = self._random.uniform(self._longest_s / 2, self._longest_s)
        is_before = self._random.random() < 0.5
        if is_before:
            sleep(delay_s)
        result = run()
        # A rank may be late behind a call, too: its next step, such as a key in a store, then comes after that of a
        # peer that assumes both to return together. Not both delays at once: the second would give a late peer time.
        if not is_before:
            sleep(delay_s)
        return result


def _is_late(nodeid: str) -> bool:
    """Whether this rank is the late one. All ranks draw the same one from the id of the repetition."""
    # One rank only: delays of several ranks would make up for each other. A test that needs rank 1 to be 0.15 s behind
    # rank 0 failed in 1 of 20 runs with delays of both.
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))  # noqa: TID251  # set for each rank
    return not size.isdecimal() or random.Random(nodeid).randrange(int(size)) == int(rank or 0)  # noqa: S311


@contextmanager
def perturbing_test(perturbed: Perturbed, nodeid: str) -> Iterator[None]:
    """Perturb this process while a test runs in it. A process without torch has nothing to perturb."""
    torch = sys.modules.get("torch")
    with ExitStack() as stack:
        if perturbed.delay and "torch.distributed" in sys.modules and _is_late(nodeid):
            # Each repetition has other delays, and has them again when it is repeated.
            stack.enter_context(observing(Jitter(perturbed.delay, nodeid)))
        if perturbed.threads and torch is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(perturbed.threads)
        yield
