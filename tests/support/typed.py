"""Pages of the docs, typed as they stand there into a shell: they print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from documents import blocks, commands, write_files
from lab import Lab, start_program


def types(text: str, lab: Lab) -> str:
    """Type it into a shell; what was printed."""
    environ = lab.environ | {"NO_COLOR": "1"}
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
    output, _ = start_program(["bash", "-uc", text], lab.folder, environ).communicate(timeout=240)
    return output


def said(text: str, folder: Path, environ: dict[str, str]) -> str:
    """Type it into a shell that stops at the first command that fails; what it prints."""
    done = subprocess.run(
        ["bash", "-euc", text],
        cwd=folder, env=environ, timeout=240, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def without_numbers(text: str) -> str:
    """The text without spaces at its ends and without durations, which differ from run to run."""
    return re.sub(r"\d+(\.\d+)? (ms|s)\b", "N s", text).strip()


def check_page(page: str, title: str, lab: Lab) -> None:
    """Write the files of a section and type its commands: each line that it shows has to be among those printed."""
    found = blocks(page, title)
    write_files(found, lab.folder)

    for typed, shown in commands(found):
        printed = types(typed, lab)
        lines = {without_numbers(line) for line in printed.splitlines()}
        assert [] == [line for line in shown if without_numbers(line) not in lines | {"…"}], printed
