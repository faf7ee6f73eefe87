"""action.yml and the tables of the docs, as the code's own tables say they have to be."""

from __future__ import annotations

import json
import re
from pathlib import Path

from disttest.launch.inputs import INPUTS
from disttest.reports.outputs import OUTPUTS

ROOT = Path(__file__).resolve().parents[2]


def blocks() -> dict[str, list[str]]:
    """Marker -> the lines between it and its end, in action.yml."""
    return {
        "inputs": [
            line
            for one in INPUTS
            for line in (
                f"{one.name}:",
                f"  description: {json.dumps(one.help, ensure_ascii=False)}",
                f"  default: {json.dumps(one.default)}",
            )
        ],
        "outputs": [
            line
            for name, text in OUTPUTS.items()
            for line in (
                f"{name}:",
                f"  description: {json.dumps(text, ensure_ascii=False)}",
                f"  value: ${{{{ steps.run.outputs.{name} }}}}",
            )
        ],
        "variables": [f"{one.variable}: ${{{{ inputs.{one.name} }}}}" for one in INPUTS],
    }


def tables() -> dict[str, list[str]]:
    """Marker -> the lines between it and its end, in docs/action.md."""
    inputs = [
        f"| `{one.name}` | {_cell(one.help)} | {f'`{one.default}`' if one.default else ''} |"
        for one in INPUTS
    ]
    outputs = [f"| `{name}` | {_cell(text)} |" for name, text in OUTPUTS.items()]
    return {
        "inputs": ["| input | what it is | default |", "|---|---|---|", *inputs],
        "outputs": ["| output | what it says |", "|---|---|", *outputs],
    }


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def filled(text: str, content: dict[str, list[str]], *, begin: str, end: str) -> str:
    """The text with the lines between each pair of markers replaced; indented as its marker is."""
    for name, lines in content.items():
        opening, closing = re.escape(begin.format(name)), re.escape(end.format(name))
        pattern = re.compile(rf"^( *){opening}\n.*?^ *{closing}\n", re.DOTALL | re.MULTILINE)
        match = pattern.search(text)
        assert match is not None, f"no block {begin.format(name)}"
        inner = "".join(f"{match[1]}{line}\n" for line in lines)
        block = f"{match[1]}{begin.format(name)}\n{inner}{match[1]}{end.format(name)}\n"
        text = text[: match.start()] + block + text[match.end() :]
    return text


def expected() -> dict[Path, str]:
    """File -> what it should hold."""
    action, page = ROOT / "action.yml", ROOT / "docs" / "action.md"
    return {
        action: filled(action.read_text(), blocks(), begin="# <{}>", end="# </{}>"),
        page: filled(page.read_text(), tables(), begin="<!-- <{}> -->", end="<!-- </{}> -->"),
    }


if __name__ == "__main__":
    for path, content in expected().items():
        path.write_text(content)
