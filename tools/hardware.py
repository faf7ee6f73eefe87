"""Runs what only real GPUs show, and writes docs/hardware/MODEL.md: ``make gpu``.

Each check is one command, which docs/hardware/README.md explains; the page has what each came to. On emulated devices
the page says so, and is written elsewhere only (``--out``).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "hardware"
TAIL_LINES = 40
COUNTS = re.compile(r"\d+ (passed|failed|checks)")


class Check(NamedTuple):
    """One command, and what no emulation shows that it does."""

    name: str
    shows: str
    command: tuple[str, ...]
    """A module that Python runs, and its arguments; ``SIZES`` stands for the sizes of worlds that there are GPUs for."""
    gpus: int = 1
    """With fewer it says nothing."""


def _over_nccl(suite: str, shows: str) -> Check:
    return Check(suite, shows, ("disttest", suite, "--backend", "nccl", "--world-sizes", "SIZES"))


CHECKS = (
    Check(
        "doctor",
        "kernels and their numerics, memory, copies, peer access, NCCL's transports and bandwidth",
        ("disttest", "doctor", "--level", "full"),
    ),
    Check(
        "tests",
        "forks, faults, holders and leftovers: disttest's own tests, without the emulated device",
        ("pytest", "tests/cuda", "--real-gpus", "--quiet", "--no-header"),
    ),
    _over_nccl("smoke", "ranks are forks, each on its own GPU"),
    _over_nccl("collectives", "NCCL's own algorithms and data types"),
    _over_nccl("ddp", "DDP's kernels, streams and overlap"),
    _over_nccl("fsdp", "FSDP over real memory and streams"),
    Check("rpc", "TensorPipe's device maps and CUDA IPC", ("disttest", "rpc", "--world-sizes", "2"), gpus=2),
    Check(
        "dist_autograd",
        "distributed autograd across devices",
        ("disttest", "dist_autograd", "--world-sizes", "2"),
        gpus=2,
    ),
    Check(
        "both backends",
        "worlds on the CPU next to worlds on GPUs",
        ("disttest", "smoke", "--backend", "gloo,nccl", "--world-sizes", "SIZES"),
    ),
)


class Outcome(NamedTuple):
    """What a check came to."""

    check: Check
    command: str
    code: int
    seconds: float
    said: str
    """Its last lines."""


def main() -> int:
    """Ask the machine, run everything, write the page."""
    options = _parse()
    results = options.results.absolute()
    results.mkdir(parents=True, exist_ok=True)
    machine = _ask_doctor(results / "machine.json")
    gpus = machine["torch"]["devices"]
    if not gpus:
        print("no GPU that torch can use: disttest doctor says why")
        return 7
    emulated = any("emulated" in name.lower() for name in gpus)
    if emulated and options.out is None:
        print("these GPUs are emulated: name a file with --out, none is written into docs/hardware")
        return 4
    wanted = [check for check in CHECKS if not options.only or check.name in options.only.split(",")]
    page = options.out or PAGES / f"{_slug(gpus[0])}.md"
    outcomes: list[Outcome] = []
    for check in wanted:
        if check.gpus <= len(gpus):
            outcomes.append(_run(check, len(gpus), results))
        # Written each time: a machine that is lent for minutes may be gone before the last check.
        page.write_text(_render(machine, wanted, outcomes, emulated=emulated))
    print(f"wrote {page}")
    return int(any(outcome.code for outcome in outcomes))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="the page, instead of docs/hardware/MODEL.md")
    parser.add_argument("--only", default="", help="names of checks, separated by commas")
    parser.add_argument("--results", type=Path, default=Path("results-gpu"), help="where runs are kept")
    return parser.parse_args()


def _ask_doctor(target: Path) -> dict[str, dict]:
    subprocess.run([sys.executable, "-m", "disttest", "doctor", "--json", str(target)], check=False)
    return json.loads(target.read_text())


def _run(check: Check, gpus: int, results: Path) -> Outcome:
    sizes = ",".join(map(str, sorted({min(2, gpus), gpus})))
    words = [sizes if word == "SIZES" else word for word in check.command]
    is_run = words[0] == "disttest" and words[1] != "doctor"
    kept = ["--results", str(results / _slug(check.name))] if is_run else []
    print(f"--- {' '.join(words)}", flush=True)
    started_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", *words, *kept],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "COLUMNS": "160"},
        check=False,
    )
    print(ended.stdout, flush=True)
    said = "\n".join(ended.stdout.rstrip().splitlines()[-TAIL_LINES:])
    return Outcome(check, " ".join(words), ended.returncode, time.monotonic() - started_s, said)


def _render(machine: dict[str, dict], wanted: list[Check], outcomes: list[Outcome], *, emulated: bool) -> str:
    torch, host = machine["torch"], machine["machine"]
    names = sorted(set(torch["devices"]))
    facts = (
        f"{len(torch['devices'])} × {', '.join(names)}; driver {host.get('driver', 'unknown')} (CUDA up to "
        f"{host.get('cuda_driver', 'unknown')}); torch {torch['version']}, CUDA {torch['cuda']}, "
        f"NCCL {torch['nccl']}, cuDNN {torch['cudnn']}; disttest {machine['disttest']}, "
        f"commit {_commit()}; {datetime.datetime.now(datetime.UTC):%Y-%m-%d}."
    )
    warning = ["**Emulated devices: nothing here was tested on a GPU.**", ""] if emulated else []
    rows = [
        f"| {each.check.name} | {each.check.shows} | `{each.command}` | {_came_to(each)} | {each.seconds:.0f} s |"
        for each in outcomes
    ]
    done = {each.check for each in outcomes}
    for each in [check for check in wanted if check not in done]:
        why = f": needs {each.gpus} GPUs" if each.gpus > len(torch["devices"]) else ""
        rows.append(f"| {each.name} | {each.shows} | | not run{why} | |")
    failed = [f"\n## {each.check.name}\n\n```\n{each.said}\n```" for each in outcomes if each.code]
    head = [f"# {names[0]}", "", *warning, "Made by `make gpu`.", "", facts, ""]
    table = ["| check | shows | command | result | time |", "|---|---|---|---|---|", *rows]
    return "\n".join([*head, *table, *failed]) + "\n"


def _came_to(outcome: Outcome) -> str:
    """The line in which the command counts what it has done."""
    counted = [line for line in outcome.said.splitlines() if COUNTS.search(line)]
    return f"{f'exit code {outcome.code}: ' if outcome.code else ''}{counted[-1] if counted else 'nothing'}"


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # a copy without its history, or no git
        return os.environ.get("COMMIT", "unknown")
    return found.stdout.strip()


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    raise SystemExit(main())
