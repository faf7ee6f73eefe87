"""A run of 10,000 tests is cancelled: how long until its reports are there and the command has gone?

    python bench/kill.py                       half the tests in warm worlds of one rank, one in twenty fails
    python bench/kill.py --signal KILL         the pytest process dies without a word

GitHub ends what is left 7.5 s after its first signal, so the aim is 5 s. Cancelled in the last test, when there is most
to report; the wait for the ranks to be ended is part of the figure.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = """
import pathlib, time, pytest

@pytest.mark.world_size(1)
@pytest.mark.parametrize("number", range({worlds}))
def test_in_a_world(world, number):
    assert number % 20, f"{{number}} is a multiple of 20"

@pytest.mark.parametrize("number", range({ordinary}))
def test_without(number):
    assert number % 20, f"{{number}} is a multiple of 20"

def test_last():
    pathlib.Path("up").touch()
    time.sleep(600)
"""
REPORTS = ("junit.xml", "results.json", "summary.md", "report.html")
LIMIT_S = 540


def command(folder: Path) -> subprocess.Popen[bytes]:
    source = Path(__file__).parents[1] / "entrypoint"
    paths = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    argv = [sys.executable, "-m", "disttest", "run", "test_many.py"]
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(argv, cwd=folder, stdout=output, env={**os.environ, "PYTHONPATH": paths})


def wait_until_up(folder: Path, process: subprocess.Popen[bytes]) -> float:
    began_s = time.monotonic()
    while not (folder / "up").exists():
        if process.poll() is not None or time.monotonic() - began_s > LIMIT_S:
            sys.exit(f"the run never came to its last test: {(folder / 'output.txt').read_text()[-2000:]}")
        time.sleep(0.02)
    return time.monotonic() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tests", type=int, default=10_000)
    parser.add_argument("--signal", choices=["TERM", "INT", "KILL"], default="TERM")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-kill-") as name:
        folder = Path(name)
        worlds = arguments.tests // 2
        (folder / "test_many.py").write_text(
            TESTS.format(worlds=worlds, ordinary=arguments.tests - worlds - 1)
        )
        process = command(folder)
        ran_s = wait_until_up(folder, process)
        pid = process.pid
        if arguments.signal == "KILL":  # of the controller: no process supervises the command
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        began_s = time.monotonic()
        os.kill(pid, getattr(signal, f"SIG{arguments.signal}"))
        process.wait()
        took_s = time.monotonic() - began_s
        sizes = {report: (folder / "results" / report).stat().st_size for report in REPORTS}
        listed = ", ".join(f"{report} {size / 1e6:.1f} MB" for report, size in sizes.items())
        print(
            f"{arguments.tests} tests in {ran_s:.0f} s; after SIG{arguments.signal} {took_s:.2f} s; {listed}"
        )


if __name__ == "__main__":
    main()
