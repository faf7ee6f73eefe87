"""A rank and its running test in the form that plugins see."""

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
"""Reports a failed test to the process that started this rank; returns its headline and its traceback."""
PostMortem = Callable[[BaseException, Report], None]
"""Shows the exception of a test to the user; calls the report function once the report may end the world."""

_encoder = msgspec.json.Encoder()


class Rank:
    """This rank.

    Args:
        spec: specification of the rank.
        config: pytest's configuration.
        channel: channel to its world.
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
        """The options of the run; ``OPTION.of(rank.settings)`` is the value of a plugin's option."""
        return self.spec.settings

    @property
    def is_launched(self) -> bool:
        """Whether the suite runs as under torchrun: it creates its groups, and no state is restored between tests."""
        return self.spec.settings.ranks_collect

    @property
    def spans_nodes(self) -> bool:
        """Whether its world has ranks on other machines, whose reports no single process receives."""
        return self.spec.partition is not None

    def observe(self, *tools: Tool) -> None:
        """Notify tools of every collective and wait from now on; does nothing if torch is not imported."""
        if "torch.distributed" in sys.modules:
            observe.install(*tools)

    def note(self, name: str, data: Any) -> None:
        """Send data to the plugin's part in the world immediately: the rank may die with its next instruction.

        Args:
            name: name of the plugin.
            data: JSON data, or a :class:`disttest.model.Frozen` struct; replaces earlier data under this name.
        """
        self._channel.send(RankNoted(name=name, data=_raw(data)))


class RankTest:
    """The running test of this rank.

    Args:
        rank: this process.
        order: the order of the world.
        item: pytest's item of the test.
        seed: seed of the random generators.
    """

    def __init__(self, rank: Rank, order: RunTest, item: pytest.Item, seed: int) -> None:
        self.rank = rank
        self.order = order
        self.item = item
        self.seed = seed
        self.reported: dict[str, msgspec.Raw] = {}
        """Plugin name -> its report."""
        self.leaves = False
        """Set it to end this process after the test, as if the test were a program that has finished."""

    @property
    def nodeid(self) -> str:
        """The id of the test, including its world."""
        return self.item.nodeid

    @property
    def log(self) -> Path:
        """The log of this rank and test. Plugins write their files to the same folder."""
        return Path(self.order.log)

    @property
    def data(self) -> Mapping[str, Any]:
        """Plugin name -> JSON data that its ``disttest_test_data`` attached to the test."""
        return self.order.data

    def report(self, name: str, data: Any) -> None:
        """Send data to the plugin's part in the world when the test is done.

        Args:
            name: name of the plugin.
            data: JSON data, or a :class:`disttest.model.Frozen` struct.
        """
        self.reported[name] = _raw(data)


def _raw(data: Any) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(data))
