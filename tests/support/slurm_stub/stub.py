#!/usr/bin/env python3
"""Slurm's client commands without a Slurm: `srun` starts its tasks here, and the others know of no job.

For what a task's command does (a container, say), where a cluster would only be in the way. Called by the names of the
commands, through links to it; `STUB_LOG` names a file that every command line is appended to, as JSON, and `STUB_QUEUE`
holds the names of jobs in the queue.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

CAPACITY = "2|(null)|8|idle|1:00:00|test*"


def main() -> int:
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    with open(os.environ["STUB_LOG"], "a") as log:
        print(json.dumps([name, *words]), file=log)
    if name == "sinfo":
        print(CAPACITY)
    if name == "squeue" and words[-1] == "%j":
        print(*os.environ.get("STUB_QUEUE", "").split(), sep="\n")
    if name == "srun" and words == ["--version"]:
        print("slurm-wlm 22.05.8")
    elif name == "srun":
        return srun(words)
    return 0


def srun(words: list[str]) -> int:
    """Start the tasks, one for each node; all get what comes in, and what they say goes out."""
    split = next(place for place, word in enumerate(words) if not word.startswith("--"))
    flags = dict(word.lstrip("-").partition("=")[::2] for word in words[:split])
    exported = {name: os.environ[name] for name in flags["export"].split(",") if name in os.environ}
    tasks = [
        subprocess.Popen(
            words[split:],
            stdin=subprocess.PIPE,
            env=exported | place(node, flags["nodes"], flags["job-name"]),
        )
        for node in range(int(flags["nodes"]))
    ]
    threading.Thread(target=feed, args=(tasks,), daemon=True).start()
    code = max(abs(task.wait()) for task in tasks)
    os._exit(code)  # the thread may be waiting for input that never comes


def place(node: int, nodes: str, name: str) -> dict[str, str]:
    """What Slurm tells a task of where it is."""
    return {
        "SLURM_NODEID": str(node),
        "SLURM_STEP_NUM_NODES": nodes,
        "SLURM_NNODES": nodes,
        "SLURMD_NODENAME": f"stub{node}",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_JOB_NAME": name,
        **({"DOCKER_HOST": os.environ["DOCKER_HOST"]} if "DOCKER_HOST" in os.environ else {}),
    }


def feed(tasks: list[subprocess.Popen[bytes]]) -> None:
    """Hand every line to every task; the end of the input is the end of theirs."""
    for line in iter(sys.stdin.buffer.readline, b""):
        for task in tasks:
            write(task, line)
    for task in tasks:
        if task.stdin is not None:
            task.stdin.close()


def write(task: subprocess.Popen[bytes], line: bytes) -> None:
    try:
        assert task.stdin is not None
        task.stdin.write(line)
        task.stdin.flush()
    except OSError:
        pass  # it has ended


if __name__ == "__main__":
    sys.exit(main())
