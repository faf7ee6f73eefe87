"""action.yml and the tables of the docs, as the code's own tables say they have to be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import disttest
from disttest.extras.cluster.option_rows import RUN_OPTIONS as CLUSTER_OPTIONS
from disttest.extras.github_action.step import INPUTS, Input
from disttest.options.option import PLANS, Option
from disttest.options.registry import RUN_OPTIONS, SELECTION_OPTIONS
from disttest.plugins.floors.hooks import OPTIONS as FLOOR_OPTIONS
from disttest.plugins.github.outputs import OUTPUTS

ROOT = Path(__file__).resolve().parents[2]
PLAN_OUTPUTS = {"matrix": "The matrix, as one line of JSON.", "plan": "The plan's file."}


CLUSTER_INPUTS = tuple(one for one in INPUTS["run"] if one.own and one.own.elsewhere and one.launch is None)
"""Inputs of runs on a cluster: the step runs in place on a submitting machine, and the scheduler has the nodes."""

_COMMON = (
    *("suite", "project", "setup", "pytest-args", "world-sizes", "device", "timeout", "deadline", "retries"),
    *("results", "directories", "pool", "labels", "shards", "level", "json", "junit"),
)
"""Inputs that most users need, in their order: ten of the action that runs tests."""
_GROUPS: tuple[tuple[str, Callable[[Input], bool]], ...] = (
    ("Common", lambda one: one.name in _COMMON),
    (PLANS, lambda one: one.own in SELECTION_OPTIONS or (one.own is not None and one.own.title == PLANS)),
    ("How tests run", lambda one: one.own in RUN_OPTIONS),
    ("Nodes of a cluster", lambda one: one in CLUSTER_INPUTS),
    ("The step and its container", lambda _: True),
)


def groups_of_inputs(command: str) -> dict[str, tuple[Input, ...]]:
    """Return the inputs of an action by group title, common ones first. Each is in exactly one group."""
    groups: dict[str, list[Input]] = {title: [] for title, _ in _GROUPS}
    for one in INPUTS[command]:
        groups[next(title for title, takes in _GROUPS if takes(one))].append(one)
    groups["Common"].sort(key=lambda one: _COMMON.index(one.name))
    return {title: tuple(inputs) for title, inputs in groups.items() if inputs}


def blocks(
    command: str, outputs: Mapping[str, str], value: str, without: tuple[Input, ...] = ()
) -> dict[str, list[str]]:
    """Marker -> the lines between it and its end, in an action.yml."""
    inputs = [one for one in INPUTS[command] if one not in without]
    groups = groups_of_inputs(command).items()
    kept = {title: [one for one in group if one not in without] for title, group in groups}
    return {
        "inputs": [
            line
            for title, group in kept.items()
            if group
            for line in (f"# {title}", *(line for one in group for line in _input(one)))
        ],
        "outputs": [line for name, text in outputs.items() for line in _output(name, text, value)],
        "variables": [f"{one.variable}: ${{{{ inputs.{one.name} }}}}" for one in inputs],
    }


def _input(one: Input) -> tuple[str, ...]:
    return (f"{one.name}:", f"  description: {_quoted(one.help)}", f"  default: {_quoted(one.default)}")


def _output(name: str, text: str, value: str) -> tuple[str, ...]:
    lines = (f"{name}:", f"  description: {_quoted(text)}")
    return (*lines, f"  value: ${{{{ {value.format(name)} }}}}") if value else lines


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def tables(command: str, outputs: Mapping[str, str]) -> dict[str, list[str]]:
    """Marker -> the lines between it and its end, in docs/action.md; inputs that the action has as well are only named."""
    known = set() if command == "run" else {_row(one) for one in INPUTS["run"]}
    own = {
        title: [_row(one) for one in inputs if _row(one) not in known]
        for title, inputs in groups_of_inputs(command).items()
    }
    groups = [
        (f"**{title}**", "", "| input | meaning | default |", "|---|---|---|", *rows, "")
        for title, rows in own.items()
        if rows
    ]
    same = ", ".join(f"`{one.name}`" for one in INPUTS[command] if _row(one) in known)
    shared = [f"As those of [the action](#inputs): {same}.", ""] if same else []
    table = {f"{command}-inputs": ["", *(line for group in groups for line in group), *shared]}
    if outputs == OUTPUTS and command != "run":
        return table | {f"{command}-outputs": ["The outputs are those of [the action](#outputs)."]}
    rows = [f"| `{name}` | {_cell(text)} |" for name, text in outputs.items()]
    return table | ({f"{command}-outputs": ["| output | content |", "|---|---|", *rows]} if outputs else {})


def _row(one: Input) -> str:
    return f"| `{one.name}` | {_cell(one.help)} | {f'`{one.default}`' if one.default else ''} |"


def table_of(name: str, options: Sequence[Option]) -> dict[str, list[str]]:
    """Some options of a command, without variables."""
    names = {one: one.name if one.no_flag else one.flag for one in options}
    notes = {one: " (setting)" if one.no_flag else "" for one in options}
    rows = [f"| `{names[one]} {_cell(one.form)}`{notes[one]} | {_cell(one.description)} |" for one in options]
    return {name: ["| option | meaning |", "|---|---|", *rows]}


def versions() -> dict[str, list[str]]:
    """What this major of the action brings, from the version, the lock files and the Dockerfile."""
    python = found(r"^ARG BASE_IMAGE=\S+/python:([\d.]+)", "Dockerfile")
    lines = ["| action | image | torch | CUDA | NCCL | Python |", "|---|---|---|---|---|---|"]
    for target in ("cpu", "cuda"):
        lock = f"requirements/{target}.lock"
        torch = found(r"^torch==([\d.]+)", lock)
        cuda = found(r"^cuda-toolkit==(\d+\.\d+)", lock) if target == "cuda" else "none"
        nccl = found(r"^nvidia-nccl-cu\d+==([\d.]+)", lock) if target == "cuda" else "none"
        image = f"`ghcr.io/org/dist-tests:{disttest.__version__}-{target}`"
        lines.append(f"| `v1` | {image} | {torch} | {cuda} | {nccl} | {python} |")
    return {"versions": lines}


def found(pattern: str, file: str) -> str:
    match = re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert match is not None, f"{file} has nothing like {pattern}"
    return match[1]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def filled(text: str, content: dict[str, list[str]], *, begin: str, end: str) -> str:
    """The text with the lines between each pair of markers replaced; indented as its marker is."""
    for name, lines in content.items():
        if not lines:
            continue
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
    actions = {
        "action.yml": blocks("run", OUTPUTS, "steps.run.outputs.{}"),
        "actions/docker/action.yml": blocks("run", OUTPUTS, "", CLUSTER_INPUTS),
        "actions/plan/action.yml": blocks("plan", PLAN_OUTPUTS, "steps.matrix.outputs.{}"),
        "actions/merge/action.yml": blocks("merge", OUTPUTS, "steps.run.outputs.{}"),
        "actions/doctor/action.yml": blocks("doctor", {}, ""),
    }
    files = {
        ROOT / name: filled((ROOT / name).read_text(), content, begin="# <{}>", end="# </{}>")
        for name, content in actions.items()
    }
    page = ROOT / "docs" / "action.md"
    content = tables("run", OUTPUTS) | tables("plan", PLAN_OUTPUTS) | tables("merge", OUTPUTS)
    content |= tables("doctor", {}) | versions()
    pages = {
        page: content,
        ROOT / "docs" / "clusters.md": table_of("cluster-options", CLUSTER_OPTIONS),
        ROOT / "docs" / "planning.md": table_of("floor-options", FLOOR_OPTIONS),
    }
    return files | {
        path: filled(path.read_text(), content, begin="<!-- <{}> -->", end="<!-- </{}> -->")
        for path, content in pages.items()
    }


if __name__ == "__main__":
    for path, content in expected().items():
        path.write_text(content)
