"""Warnings and facts that a test recorded for its report."""

from __future__ import annotations

from enum import StrEnum

from disttest.model.frozen import Frozen


class RecordedWarning(Frozen):
    """A warning that pytest's filters let pass."""

    category: str
    """Its class, with the module: ``builtins.UserWarning``."""
    message: str
    file: str
    line: int


class FactKind(StrEnum):
    """The part of a report to which a fact belongs."""

    PROPERTY = "property"
    """``record_property``."""
    ATTRIBUTE = "attribute"
    """``record_xml_attribute``."""
    SUITE_PROPERTY = "suite property"
    """``record_testsuite_property``."""
    SECTION = "section"
    """``add_report_section``."""


class RecordedFact(Frozen):
    """A name and a value, as text."""

    kind: FactKind
    name: str
    value: str


class Recorded(Frozen):
    """All warnings and facts of one process in one attempt of a test."""

    warnings: tuple[RecordedWarning, ...] = ()
    facts: tuple[RecordedFact, ...] = ()
