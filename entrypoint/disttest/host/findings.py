"""Findings about the devices of a machine."""

from __future__ import annotations

from enum import StrEnum

from disttest.model import Frozen


class Advice(Frozen):
    """One line of advice. ``slug`` names its entry in the docs, which ``disttest explain`` prints."""

    slug: str
    action: str

    def __str__(self) -> str:
        return f"{self.action} (disttest explain {self.slug})"


class Grade(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """Tests run, but slower, or not all of them."""
    BROKEN = "broken"
    """The device must not be used."""


class DeviceFinding(Frozen):
    """The result of one check of one device."""

    device: str
    """``machine``, ``GPU 3 (uuid, bus id)``, or both GPUs of a pair."""
    check: str
    grade: Grade = Grade.OK
    message: str = ""
    """The observation, in one line."""
    advice: Advice | None = None
    duration_s: float = 0.0
