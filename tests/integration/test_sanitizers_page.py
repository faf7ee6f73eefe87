"""docs/sanitizers.md: its examples, typed as they stand there, say what the page shows."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from documents import blocks, commands, write_files
from lab import start_program

PAGE = "docs/sanitizers.md"


def types(text: str, lab) -> str:
    """Type it into a shell; what was printed."""
    environ = lab.environ | {"NO_COLOR": "1"}
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
    output, _ = start_program(["bash", "-uc", text], lab.folder, environ).communicate(timeout=240)
    return output


def without_numbers(text: str) -> str:
    """The text without spaces at its ends and without durations, which differ from run to run."""
    return re.sub(r"\d+(\.\d+)? (ms|s)\b", "N s", text).strip()


@pytest.mark.parametrize("title", ["deadlock", "order", "A tool of your own"])
def test_the_examples_say_what_the_page_shows(lab, title):
    found = blocks(PAGE, title)
    write_files(found, lab.folder)

    for typed, shown in commands(found):
        printed = types(typed, lab)
        lines = {without_numbers(line) for line in printed.splitlines()}
        assert [] == [line for line in shown if without_numbers(line) not in lines | {"…"}], printed
