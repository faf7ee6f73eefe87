"""The ``doctor`` command. Registered in :mod:`disttest.cli`, which alone leaves the process.

What it needs is imported when it runs: ``disttest --help`` does not wait for it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disttest.errors import UsageError

if TYPE_CHECKING:
    from disttest.doctor.examine import Diagnosis


@click.command()
@click.option("--level", type=click.Choice(["quick", "full"]), default="quick", help="How much work to do.")
@click.option("--json", "json_path", metavar="FILE", help="Write everything as JSON; - is standard output.")
@click.option("--junit", "junit_path", metavar="FILE", help="Write JUnit XML: one case per device and check.")
@click.option(
    "--lease-dir",
    type=click.Path(path_type=Path),
    envvar="DISTTEST_LEASE_DIR",
    help="Where the runs of this host lease GPUs: shows who holds which, and updates the quarantine notes.",
)
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
    from disttest.doctor.examine import Examination, examine
    from disttest.doctor.report import print_diagnosis, render_diagnosis_junit, render_json
    from disttest.host.lockfiles import usual_directory
    from disttest.host.preflight import Level

    lease_dir = lease_dir or usual_directory()
    diagnosis = examine(
        Examination(level=Level(level), library=nvml_library, compute=compute, lease_dir=lease_dir)
    )
    _write(json_path, render_json(diagnosis))
    if junit_path:
        _write(junit_path, render_diagnosis_junit(diagnosis, Path(junit_path).parent))
    # With JSON on standard output, that is for the JSON alone.
    print_diagnosis(diagnosis, to_stderr=json_path == "-")
    for line in _tidy(diagnosis, lease_dir, clean=clean):
        click.echo(line, err=json_path == "-")
    ctx.exit(int(diagnosis.exit_code))


def _tidy(diagnosis: Diagnosis, lease_dir: Path, *, clean: bool) -> list[str]:
    from disttest.doctor.examine import update_quarantine
    from disttest.host.leftovers import remove_litter

    lines: list[str] = []
    if lease_dir.is_dir():
        lines += update_quarantine(diagnosis, lease_dir)
    if clean:
        lines += remove_litter(diagnosis.litter)
        lines.append(f"removed {len(diagnosis.litter)} unused files from shared memory")
    return lines


def _write(path: str | None, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
    elif path:
        try:
            Path(path).write_text(text)
        except OSError as error:
            raise UsageError(f"{path} can not be written: {error.strerror}") from error
