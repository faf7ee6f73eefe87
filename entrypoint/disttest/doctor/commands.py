"""The ``doctor`` command. Registered in :mod:`disttest.cli`, which alone leaves the process."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from disttest.doctor.examine import Diagnosis, Examination, examine, update_quarantine
from disttest.doctor.report import print_diagnosis, render_diagnosis_junit, render_json
from disttest.errors import UsageError
from disttest.host.leftovers import remove_litter
from disttest.host.lockfiles import DEFAULT_DIRECTORY
from disttest.host.preflight import Level


@click.command()
@click.option("--level", type=click.Choice(list(Level)), default=Level.QUICK, help="How much work to do.")
@click.option("--json", "json_path", metavar="FILE", help="Write everything as JSON; - is standard output.")
@click.option("--junit", "junit_path", metavar="FILE", help="Write JUnit XML: one case per device and check.")
@click.option("--lease-dir", type=click.Path(path_type=Path), help="Also update the quarantine notes there.")
@click.option("--clean", is_flag=True, help="Remove shared memory of ours that no process uses.")
@click.option("--nvml-library", default="", hidden=True, help="Path of the NVML library.")
@click.option("--compute", type=click.Choice(["cuda", "cpu"]), default="cuda", hidden=True)
@click.pass_context
def doctor(
    ctx: click.Context,
    level: str,
    json_path: str | None,
    junit_path: str | None,
    lease_dir: Path | None,
    clean: bool,
    nvml_library: str,
    compute: str,
) -> None:
    """Show what this machine has and prove that it works; exit code 7 where it does not."""
    examination = Examination(level=Level(level), library=nvml_library, compute=compute)
    diagnosis = examine(examination)
    # With JSON there, standard output is for the JSON alone. A log file has no width, so lines stay whole.
    say = Console(stderr=json_path == "-", highlight=False)
    say = say if say.is_terminal else Console(stderr=json_path == "-", highlight=False, width=160)
    _write(json_path, render_json(diagnosis))
    if junit_path:
        _write(junit_path, render_diagnosis_junit(diagnosis, Path(junit_path).parent))
    print_diagnosis(diagnosis, say)
    for line in _tidy(diagnosis, lease_dir, clean=clean):
        say.print(line, soft_wrap=True, markup=False)
    ctx.exit(int(diagnosis.exit_code))


def _tidy(diagnosis: Diagnosis, lease_dir: Path | None, *, clean: bool) -> list[str]:
    lines: list[str] = []
    if lease_dir is None and DEFAULT_DIRECTORY.is_dir():
        lease_dir = DEFAULT_DIRECTORY
    if lease_dir is not None and lease_dir.is_dir():
        lines += update_quarantine(diagnosis, lease_dir)
    if clean:
        lines += remove_litter(diagnosis.litter)
        lines.append(f"removed {len(diagnosis.litter)} unused files from /dev/shm")
    return lines


def _write(path: str | None, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
    elif path:
        try:
            Path(path).write_text(text)
        except OSError as error:
            raise UsageError(f"{path} can not be written: {error.strerror}") from error
