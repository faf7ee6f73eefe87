"""The recorders of the sanitizers in this rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from disttest import observe
from disttest.sanitizers.choice import Chosen
from disttest.sanitizers.table import SANITIZERS

_encoder = msgspec.json.Encoder()


class Recorders:
    """They are told of every call from when they are made, and asked at the end of each test.

    Args:
        chosen: the sanitizers that the run wants.
        rank: of this process.
    """

    def __init__(self, chosen: Sequence[Chosen], rank: int) -> None:
        # A rank without torch calls no collectives, and is not to pay for the import.
        wanted = chosen if "torch.distributed" in sys.modules else ()
        self._recorders = {
            each.name: SANITIZERS[each.name].make_recorder(rank, each.policy) for each in wanted
        }
        if self._recorders:
            observe.install(*self._recorders.values())

    def begin(self) -> None:
        """A test begins."""
        for recorder in self._recorders.values():
            recorder.begin()

    def reports(self) -> dict[str, msgspec.Raw]:
        """What each has seen since."""
        return {
            name: msgspec.Raw(_encoder.encode(recorder.report()))
            for name, recorder in self._recorders.items()
        }
