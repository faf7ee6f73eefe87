"""What a sanitizer is: a recorder in each rank, and a judge of what all of them have seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from disttest.model import Frozen, PluginFinding
from disttest.observe import Tool


class SanitizerRecorder(Tool):
    """The part that is in a rank; it notes of one test after another what its judge has to know."""

    def begin(self) -> None:
        """A test begins."""

    def report(self) -> Frozen:
        """What was seen since, as data."""
        raise NotImplementedError


class Consequence(NamedTuple):
    """What a kind of finding leads to, and what to do."""

    effect: str
    advice: str


class Judgement(NamedTuple):
    """What the calls of a test came to."""

    findings: tuple[PluginFinding, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be looked at."""


class Sanitizer(Frozen):
    """A row of the table."""

    make_recorder: Callable[[int, str], SanitizerRecorder]
    """For the rank with this number, and the policy that was chosen (empty: none)."""
    judge: Callable[[Mapping[int, msgspec.Raw]], Judgement]
    """From what the recorders of all ranks have reported, as JSON, in a test that has passed on all of them."""
    kept_as: str = ""
    """Name of the file beside a test's logs in which the reports are kept (:mod:`disttest.sanitizers.recording`);
    empty: they are not."""
