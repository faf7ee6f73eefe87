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


class Check(NamedTuple):
    """One command, and what no emulation shows that it does."""

    name: str
    shows: str
    command: tuple[str, ...]
    """Arguments of ``disttest``; ``GPUS`` stands for how many there are."""


CHECKS = (
    Check(
        "doctor",
        "kernels and their numerics, memory, copies, peer access, NCCL's transports and bandwidth",
        ("doctor", "--level", "full"),
    ),
    Check("smoke", "ranks are forks, each on its own GPU, at every size", ("smoke", "--backend", "nccl")),
    Check(
        "collectives",
        "NCCL's own algorithms and data types",
        ("collectives", "--backend", "nccl", "--world-sizes", "2,GPUS"),
    ),
    Check(
        "ddp", "DDP's kernels, streams and overlap", ("ddp", "--backend", "nccl", "--world-sizes", "2,GPUS")
    ),
    Check(
        "fsdp", "FSDP over real memory and streams", ("fsdp", "--backend", "nccl", "--world-sizes", "2,GPUS")
    ),
    Check("rpc", "TensorPipe's device maps and CUDA IPC", ("rpc", "--world-sizes", "2")),
    Check("dist_autograd", "distributed autograd across devices", ("dist_autograd", "--world-sizes", "2")),
    Check(
        "both backends",
        "worlds on the CPU beside worlds on GPUs",
        ("smoke", "--backend", "gloo,nccl", "--world-sizes", "2"),
    ),
)


class Outcome(NamedTuple):
    """What a check came to."""

    check: Check
    code: int
    seconds: float
    tail: str


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
    outcomes = [_run(check, len(gpus), results) for check in wanted]
    page = options.out or PAGES / f"{_slug(gpus[0])}.md"
    page.write_text(_render(machine, outcomes, emulated=emulated))
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
    arguments = [word.replace("GPUS", str(max(gpus, 2))) for word in check.command]
    if check.command[0] != "doctor":
        arguments += ["--results", str(results / _slug(check.name))]
    print(f"--- disttest {' '.join(arguments)}", flush=True)
    started_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "disttest", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "COLUMNS": "160"},
        check=False,
    )
    print(ended.stdout, flush=True)
    tail = "\n".join(ended.stdout.splitlines()[-TAIL_LINES:])
    return Outcome(check, ended.returncode, time.monotonic() - started_s, tail)


def _render(machine: dict[str, dict], outcomes: list[Outcome], *, emulated: bool) -> str:
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
        f"| {each.check.name} | {each.check.shows} | `disttest {' '.join(each.check.command)}` "
        f"| {'passed' if each.code == 0 else f'exit code {each.code}'} | {each.seconds:.0f} s |"
        for each in outcomes
    ]
    failed = [f"\n## {each.check.name}\n\n```\n{each.tail}\n```" for each in outcomes if each.code]
    head = [f"# {names[0]}", "", *warning, "Made by `make gpu`.", "", facts, ""]
    table = ["| check | what it shows | command | came to | time |", "|---|---|---|---|---|", *rows]
    return "\n".join([*head, *table, *failed]) + "\n"


def _commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    raise SystemExit(main())
