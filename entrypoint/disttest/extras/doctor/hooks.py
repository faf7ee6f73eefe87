"""Hooks of ``disttest doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl
from disttest.options.option import Option, rows_of
from disttest.options.values import SWITCH, one_of, path, text

if TYPE_CHECKING:
    import click


_doctor = rows_of("doctor")

OPTIONS = (
    _doctor("level", one_of("quick", "full"), "Extent of the preflight.", default="quick"),
    _doctor("json", text("FILE"), "Write everything as JSON; - is standard output."),
    _doctor("junit", text("FILE"), "Write JUnit XML: one case per device and check."),
    _doctor(
        "lease-dir",
        path("DIR"),
        "Directory in which runs on this host lease GPUs; shows the holders and updates the quarantine.",
        has_variable=True,
    ),
    _doctor(
        "clean",
        SWITCH,
        "Remove this user's shared memory that no process uses.",
        default=False,
        inputs=(),
    ),
    _doctor("nvml-library", text("FILE"), "Path of the NVML library.", default="", inputs=(), hidden=True),
    _doctor(
        "compute",
        one_of("cuda", "cpu"),
        "Device for the GPU work.",
        default="cuda",
        inputs=(),
        hidden=True,
    ),
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Options of the command."""
    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest doctor``."""
    from disttest.extras.doctor.command import doctor

    group.add_command(doctor)
