"""A rank and its running test, as plugins see them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from disttest import observe
from disttest.observe import Tool
from disttest.options.run import WorldSettings
from disttest.runtime.messages.protocol import Channel, RankNoted, RunTest
from disttest.runtime.rank.rank_spec import RankSpec

Report = Callable[[], tuple[str, str]]
"""Reports the failure of a test to the process that has started this rank; returns its headline and its traceback."""
PostMortem = Callable[[BaseException, Report], None]
"""Shows the user the exception of a test; calls the other function as soon as the report may end the world."""

_encoder = msgspec.json.Encoder()


class Rank:
    """This rank.

    Args:
        spec: of the rank.
        config: pytest's.
        channel: to its world.
    """

    def __init__(self, spec: RankSpec, config: pytest.Config, channel: Channel) -> None:
        self.spec = spec
        self.config = config
        self._channel = channel

    @property
    def number(self) -> int:
        """Its rank in the world."""
        return self.spec.rank

    @property
    def settings(self) -> WorldSettings:
        """The options of the run; ``OPTION.of(rank.settings)`` is the value of one of a plugin."""
        return self.spec.settings

    @property
    def is_launched(self) -> bool:
        """Whether the suite runs as under a launcher: it makes its groups by itself, and nothing is put back."""
        return self.spec.settings.ranks_collect

    @property
    def spans_nodes(self) -> bool:
        """Whether ranks of its world are on other machines; what those report, no process sees together."""
        return self.spec.partition is not None

    def observe(self, *tools: Tool) -> None:
        """Tell tools of every collective and wait from here on; nothing happens in a rank that has not imported torch."""
        if "torch.distributed" in sys.modules:
            observe.install(*tools)

    def note(self, name: str, data: Any) -> None:
        """Send data to the plugin's part in the world immediately; the rank may die with its next instruction.

        Args:
            name: of the plugin.
            data: JSON data, or a :class:`disttest.model.Frozen` struct; replaces what was noted under this name before.
        """
        self._channel.send(RankNoted(name=name, data=_raw(data)))


class RankTest:
    """The running test of this rank.

    Args:
        rank: this process.
        order: the world's.
        item: pytest's item of the test.
        seed: of the random generators.
    """

    def __init__(self, rank: Rank, order: RunTest, item: pytest.Item, seed: int) -> None:
        self.rank = rank
        self.order = order
        self.item = item
        self.seed = seed
        self.reported: dict[str, msgspec.Raw] = {}
        """Name of a plugin -> its report."""
        self.leaves = False
        """Set it, and this process ends after the test, as if the test were a program that has ended."""

    @property
    def nodeid(self) -> str:
        """The id of the test, its world included."""
        return self.item.nodeid

    @property
    def log(self) -> Path:
        """The log of this rank and test. Files of plugins lie beside it."""
        return Path(self.order.log)

    @property
    def data(self) -> Mapping[str, Any]:
        """Name of a plugin -> what its ``disttest_test_data`` said of the test, as JSON data."""
        return self.order.data

    def report(self, name: str, data: Any) -> None:
        """Send data to the plugin's part in the world when the test is done.

        Args:
            name: of the plugin.
            data: JSON data, or a :class:`disttest.model.Frozen` struct.
        """
        self.reported[name] = _raw(data)


def _raw(data: Any) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(data))
