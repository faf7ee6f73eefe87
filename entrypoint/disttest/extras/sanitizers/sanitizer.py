"""Interface of a sanitizer: a recorder in each rank, and a judge of all reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from disttest.model import Frozen, PluginFinding
from disttest.observe import Tool


class SanitizerRecorder(Tool):
    """Part of a sanitizer in a rank: records one test after another for the judge."""

    def begin(self) -> None:
        """Begin a test."""

    def report(self) -> Frozen:
        """Return the records since then, as data."""
        raise NotImplementedError


class Consequence(NamedTuple):
    """Effect of a kind of finding, and advice."""

    effect: str
    advice: str


class Judgement(NamedTuple):
    """Judgement of a test."""

    findings: tuple[PluginFinding, ...] = ()
    notes: tuple[str, ...] = ()
    """Descriptions of what was not examined."""


class Sanitizer(Frozen):
    """A row of the table of sanitizers."""

    make_recorder: Callable[[int, str], SanitizerRecorder]
    """Makes the recorder for a rank, with the chosen policy (empty: none)."""
    judge: Callable[[Mapping[int, msgspec.Raw]], Judgement]
    """Judges the reports of all ranks, as JSON, of a test that passed on all of them."""
    kept_as: str = ""
    """Name of the file next to a test's logs that keeps the reports
    (:mod:`disttest.extras.sanitizers.values.values_file`); empty: they are not kept."""
