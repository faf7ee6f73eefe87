"""What a rank has seen of races in a test, as data."""

from __future__ import annotations

from disttest.extras.sanitizers.order.stream import CallSignature
from disttest.extras.sanitizers.race.race_kinds import RaceKind
from disttest.model import Frozen, short_place

HANDED_OUT = "numpy"
"""What has touched memory that was given to somebody who is not seen."""


class SourceLine(Frozen):
    """A line in the user's code."""

    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """``test_step.py:39``; empty where nobody in Python was."""
        return short_place(self.file, self.line)


class Race(Frozen):
    """A tensor was touched between the issue of a call and the wait for it."""

    call: CallSignature
    seq: int
    """Its number in its group."""
    kind: RaceKind
    what: str
    """What touched it: ``add_``, ``tolist``, ``all_reduce SUM of float32[4]``."""
    at: SourceLine
    in_other_thread: bool = False
    """It was another thread than the one that issued the call."""
    on_other_stream: bool = False
    """A stream of the GPU was made to wait for the call, and it was another one."""
    waited: SourceLine | None = None
    """Where the wait came; None if it never came in this test."""
    is_in_place: bool = False
    """The call reads and writes this tensor."""


class Races(Frozen):
    """Those of one rank in one test."""

    races: tuple[Race, ...] = ()
    beyond: int = 0
    """How many more there were."""
    doubtful: bool = False
    """A call or a wait has raised, which its test may have meant."""
