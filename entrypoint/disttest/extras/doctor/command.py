"""The ``doctor`` command. It imports its modules when it runs, so that ``disttest --help`` does not wait for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disttest.cli.purposes import Purpose, serves
from disttest.errors import UsageError
from disttest.options.flags import ShowingCommand, flags

if TYPE_CHECKING:
    from disttest.extras.doctor.examine import Diagnosis


@serves(Purpose.MACHINES)
@click.command(cls=ShowingCommand)
@flags("doctor")
@click.pass_context
def doctor(
    ctx: click.Context,
    level: str,
    json: str | None,
    junit: str | None,
    lease_dir: Path | None,
    clean: bool,
    nvml_library: str,
    compute: str,
) -> None:
    """Show what this machine has and prove that it works; exit code 7 if it does not."""
    from disttest.extras.doctor.examine import (
        Examination,
        examine,
        print_diagnosis,
        render_diagnosis_junit,
        render_json,
    )
    from disttest.plugins.gpus.detect import read_probe
    from disttest.plugins.gpus.leases.lockfiles import usual_directory
    from disttest.plugins.gpus.preflight.messages import Level

    lease_dir = lease_dir or usual_directory()
    diagnosis = examine(
        Examination(
            level=Level(level),
            library=nvml_library or read_probe().library,
            compute=compute,
            lease_dir=lease_dir,
        )
    )
    # Files first: the output may be a pipe whose reader goes away.
    _write(json, render_json(diagnosis))
    if junit:
        _write(junit, render_diagnosis_junit(diagnosis, Path(junit).parent))
    # With --json -, standard output carries only the JSON.
    print_diagnosis(diagnosis, to_stderr=json == "-")
    for line in _tidy(diagnosis, lease_dir, clean=clean):
        click.echo(line, err=json == "-")
    ctx.exit(int(diagnosis.exit_code))


def _tidy(diagnosis: Diagnosis, lease_dir: Path, *, clean: bool) -> list[str]:
    from disttest.extras.doctor.examine import update_quarantine
    from disttest.host.proc import sees_all_users
    from disttest.plugins.leftovers.shared_memory import remove_entry

    lines: list[str] = []
    if lease_dir.is_dir():
        lines += update_quarantine(diagnosis, lease_dir)
    # Processes of other containers are invisible in /proc, but may use the same shared memory.
    if clean and not sees_all_users():
        lines.append(
            "shared memory is not cleaned: processes of other containers, which are not visible here, may use it"
        )
    elif clean:
        failures = list(filter(None, (remove_entry(entry) for entry in diagnosis.litter)))
        lines += failures
        lines.append(f"removed {len(diagnosis.litter) - len(failures)} unused files from shared memory")
    return lines


def _write(path: str | None, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
    elif path:
        try:
            Path(path).write_text(text)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error
