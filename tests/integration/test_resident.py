"""Runs that are forks of a resident parent: the same as others, and never a trap."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from lab import Ended, Lab
from resident import ResidentLab, resident_lab, wait_until
from terminal import Terminal

import disttest.extras.resident.client as client_module
from disttest.extras.resident.handover import send_with_file
from disttest.extras.resident.messages import ForkRefused, receive_answer
from disttest.extras.resident.place import short
from disttest.host.proc import is_alive

__all__ = ["resident_lab"]

SUITE = """
    import os, sys, warnings
    import numpy, pytest, torch
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("number", range(2))
    def test_good(world, number):
        total = torch.ones(3)
        dist.all_reduce(total)
        torch.testing.assert_close(total, torch.full((3,), 2.0))

    @pytest.mark.world_size(2)
    def test_bad(world):
        print("said by a rank")
        assert world.rank == 0, "not on rank 1"

    @pytest.mark.world_size(2)
    @pytest.mark.xfail(strict=True)
    def test_expected(world):
        assert False

    def test_skipped():
        pytest.skip("for a reason")

    def test_process():
        warnings.warn("take care")
        assert sys.modules["__main__"].__spec__.name == "pytest.__main__"
        assert os.getsid(0) == os.getpid() and os.getcwd() in sys.path
        assert not sys.stdin.isatty() and "DISTTEST_OWN" not in os.environ
"""
WAITS = """
    import os, pathlib, time, pytest

    @pytest.mark.world_size(2)
    def test_waits(world):
        pathlib.Path(f"up{world.rank}").write_text(str(os.getpid()))
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
"""
ONE = """
    import pytest

    @pytest.mark.world_size(2)
    def test_one(world):
        pass
"""
NEW = "disttest: starting a resident parent"
REPLACED = "disttest: replacing the resident parent: "
WITHOUT = "running without"


def run(lab: Lab, *arguments: str, **environ: str) -> Ended:
    return lab.run("run", "--resident", *arguments, **environ)


def waiting_run(lab: Lab, wrapper: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A run whose ranks wait for a file ``go``."""
    process = lab.write(test_waits=WAITS).start("run", "--resident", "test_waits.py", wrapper=wrapper)
    files = [lab.folder / f"up{rank}" for rank in range(2)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return process


# --- the same run


PASSING = re.compile(r"0x[0-9a-f]+|\bpid \d+|\d+(\.\d+)? m?s\b|:\d{4,5}\b|/tmp/\S+|\d\d:\d\d:\d\d\S*|\d{3,}")


def without_what_passes(value):
    """What the results say, without times, pids, addresses and endpoints."""
    if isinstance(value, dict):
        return {key: without_what_passes(each) for key, each in value.items() if key != "pid"}
    if isinstance(value, list):
        return [without_what_passes(each) for each in value]
    if isinstance(value, str):
        return PASSING.sub("…", value)
    return 0 if isinstance(value, float) else value


def told(ended: Ended) -> dict:
    found = json.loads((ended.results / "results.json").read_text())
    run_only = {
        key: found[key] for key in found if key not in ("argv", "invocation", "run_id", "cost", "attempts")
    }
    return without_what_passes(run_only)


def test_the_results_are_those_of_a_run_without_it(resident_lab: ResidentLab):
    resident_lab.write(test_suite=SUITE, test_broken="import no_such_module")
    unhurried = {"DISTTEST_GRACE": "60"}  # or a slow machine has ranks killed that were about to report
    plain = resident_lab.run("run", ".", "--results", "plain", **unhurried)
    forked = [run(resident_lab, ".", "--results", f"forked{number}", **unhurried) for number in range(2)]
    plain = Ended(plain.exit_code, plain.output, resident_lab.folder / "plain")
    for number, each in enumerate(forked):
        ended = Ended(each.exit_code, each.output, resident_lab.folder / f"forked{number}")
        assert ended.exit_code == plain.exit_code
        assert told(ended)["tests"]
        assert told(ended) == told(plain)
        assert sorted(p.name for p in ended.results.iterdir()) == sorted(
            p.name for p in plain.results.iterdir()
        )
    assert forked[0].output.startswith(NEW) and "resident" not in forked[1].output


def test_each_run_sees_what_was_saved(resident_lab: ResidentLab):
    resident_lab.write(
        test_one=ONE + "        import helper\n        assert helper.VALUE\n", helper="VALUE = 1"
    )
    assert run(resident_lab, ".").exit_code == 0
    resident_lab.write(helper="VALUE = 0 # longer")
    assert run(resident_lab, ".").exit_code == 1
    resident_lab.write(test_one=ONE)
    again = run(resident_lab, ".")
    assert again.exit_code == 0 and "resident" not in again.output


@pytest.mark.parametrize("arguments", [("no_such.py",), (".", "--timeout", "never"), (".", "-k", "nothing")])
def test_exit_codes_and_messages_are_those_of_the_command(
    resident_lab: ResidentLab, arguments: tuple[str, ...]
):
    resident_lab.write(test_one=ONE)
    plain = resident_lab.run("run", *arguments)
    # The note about the results of the run before would differ.
    shutil.rmtree(plain.results, ignore_errors=True)
    forked = run(resident_lab, *arguments)
    assert forked.exit_code == plain.exit_code != 0
    said = [line for line in forked.output.splitlines() if not line.startswith(NEW)]
    assert without_what_passes(said) == without_what_passes(plain.output.splitlines())


LEFT_AT_THE_END = """
    import atexit, ctypes, pathlib, sys, weakref
    import torch

    class Last:
        def __del__(self):
            print("collected", file=STREAM)

    def at_exit():
        import torch.distributed
        print("exit handler", file=STREAM)

    STREAM = open("left.txt", "w")
    KEPT = Last()
    NAMES = {}
    NAMES["self"] = Last(), NAMES
    FINALIZER = weakref.finalize(Last, lambda: print("finalizer", file=STREAM))
    atexit.register(at_exit)

    def test_leaves():
        libc = ctypes.CDLL(None)
        libc.printf(b"said by C\\n")
        libc.fopen.restype = ctypes.c_void_p
        libc.fputs(b"written by C", ctypes.c_void_p(libc.fopen(b"left_by_c.txt", b"w")))
        print("never flushed", file=STREAM)
"""


def test_a_run_ends_as_any_interpreter_does(resident_lab: ResidentLab):
    """What it has opened is written, what it has registered is run, though torch is not taken apart."""
    resident_lab.write(test_leaves=LEFT_AT_THE_END)
    left = resident_lab.folder / "left.txt"
    plain = resident_lab.run("run", "test_leaves.py", "--", "-s")
    expected = left.read_text()
    left.unlink()
    (resident_lab.folder / "left_by_c.txt").unlink()
    forked = [run(resident_lab, "test_leaves.py", "--", "-s") for _ in range(2)][1]
    assert "exit handler" in expected and "never flushed" in expected and "finalizer" in expected
    assert sorted(left.read_text().splitlines()) == sorted(expected.splitlines())
    assert (resident_lab.folder / "left_by_c.txt").read_text() == "written by C"
    assert ("said by C" in forked.output) == ("said by C" in plain.output) is True
    assert forked.output.rpartition("\n\n")[2].count("\n") == plain.output.rpartition("\n\n")[2].count("\n")


STREAMS = """
    import pathlib, sys

    def described(stream):
        text = (stream.encoding, stream.errors, stream.line_buffering, stream.write_through)
        return type(stream.buffer).__name__, stream.fileno(), stream.isatty(), *text

    said = [described(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)]
    pathlib.Path("streams").write_text("\\n".join(map(str, said)))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_its_streams_are_those_of_a_new_process(resident_lab: ResidentLab, unbuffered: str):
    """A job's log shows at once what is written at once there."""
    resident_lab.write(conftest=STREAMS, test_one=ONE)
    streams = resident_lab.folder / "streams"
    resident_lab.run("run", ".", "--", "-s", PYTHONUNBUFFERED=unbuffered)
    expected = streams.read_text()
    assert ("FileIO" in expected) == bool(unbuffered)
    for _ in range(2):
        streams.unlink()
        ended = run(resident_lab, ".", "--", "-s", PYTHONUNBUFFERED=unbuffered)
        assert expected == streams.read_text()
    assert "resident" not in ended.output


LEARNED = """
    import json, pathlib, sys, pytest, torch
    PART = "torch.fx.experimental.symbolic_shapes"
    pathlib.Path("found").write_text(json.dumps(PART in sys.modules))

    @pytest.mark.world_size(2)
    def test_close(world):
        torch.testing.assert_close(torch.ones(1), torch.ones(1))
"""


def test_what_a_run_made_torch_import_the_next_one_finds(resident_lab: ResidentLab):
    resident_lab.write(test_learned=LEARNED)
    found = []
    for _ in range(2):
        ended = run(resident_lab, ".")
        assert ended.exit_code == 0, ended.output
        found.append(json.loads((resident_lab.folder / "found").read_text()))
    assert found == [False, True]
    assert "resident" not in ended.output


# --- never a trap


LARGE = """
    import os
    IMPORTED_BY = os.getpid()
"""
USES_LARGE = """
    import os, pathlib, large, near

    def test_who_has_imported_it():
        files = {"large": large, "near": near}
        for name, module in files.items():
            pathlib.Path(f"{name}.pid").write_text(str(module.IMPORTED_BY))
"""


@pytest.fixture
def large_lab(resident_lab: ResidentLab, tmp_path_factory: pytest.TempPathFactory) -> ResidentLab:
    """A lab with an installed module, one that lies beside the tests, and a test that uses both."""
    resident_lab.installed = tmp_path_factory.mktemp("installed")
    (resident_lab.installed / "large.py").write_text(textwrap.dedent(LARGE))
    return resident_lab.write(test_large=USES_LARGE, near=LARGE)


def run_large(lab: ResidentLab, *arguments: str, imports: str = "") -> Ended:
    path = f"{lab.installed}:{lab.environ.get('PYTHONPATH', '')}"
    ended = run(lab, "test_large.py", *arguments, PYTHONPATH=path, DISTTEST_RESIDENT_IMPORTS=imports)
    assert ended.exit_code == 0, ended.output
    return ended


def importer(lab: ResidentLab, name: str = "large") -> int:
    return int((lab.folder / f"{name}.pid").read_text())


def test_installed_modules_that_are_named_are_kept(large_lab: ResidentLab):
    named = "numpy,large,near,no_such"
    run_large(large_lab, imports=named)
    parent = large_lab.parent.pid
    assert importer(large_lab) != parent

    again = run_large(large_lab, imports=named)
    assert importer(large_lab) == parent and importer(large_lab, "near") != parent
    assert "resident" not in again.output
    assert f"pid {parent} for {large_lab.folder}: 2 runs in " in (
        told := large_lab.run("resident", "status").output
    )
    assert "MiB, with large, ends after" in told

    without = run_large(large_lab)
    assert f"{REPLACED}resident-imports no longer names large\n" in without.output
    assert importer(large_lab) not in (parent, large_lab.parent.pid)


def test_a_plugin_whose_asserts_pytest_rewrites_is_imported_by_each_run(large_lab: ResidentLab):
    run_large(large_lab, "--", "-p", "large", imports="large")
    again = run_large(large_lab, "--", "-p", "large", imports="large")

    assert "rewritten" not in again.output and importer(large_lab) != large_lab.parent.pid


def test_a_project_names_them_and_a_change_of_one_means_a_new_parent(large_lab: ResidentLab):
    (large_lab.folder / "pyproject.toml").write_text('[tool.disttest]\nresident-imports = ["large"]\n')
    run_large(large_lab)
    run_large(large_lab)
    parent = large_lab.parent.pid
    assert importer(large_lab) == parent

    (large_lab.installed / "large.py").write_text("IMPORTED_BY = 1")
    changed = run_large(large_lab)
    assert (
        f"{REPLACED}{large_lab.installed}/large.py changed\n" in changed.output and importer(large_lab) == 1
    )


def test_what_leaves_no_process_that_can_be_forked_is_not_kept(large_lab: ResidentLab):
    waits = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (large_lab.installed / "large.py").write_text(f"{waits}IMPORTED_BY = 1\n")
    run_large(large_lab, imports="large")
    parent = large_lab.parents

    again = run_large(large_lab, imports="large")
    reason = "a process that has imported torch, pytest and large (resident-imports) cannot be forked: "
    assert f"{REPLACED}{reason}1 thread" in again.output and large_lab.parents != parent


def test_another_environment_means_a_new_parent(resident_lab: ResidentLab):
    resident_lab.write(test_one=ONE)
    run(resident_lab, ".")
    first = resident_lab.parents
    passing = run(resident_lab, ".", TERM="xterm", SSH_TTY="/dev/pts/9", DISTTEST_TIMEOUT="99", COLUMNS="150")
    assert "resident" not in passing.output and resident_lab.parents == first
    other = run(resident_lab, ".", SOME_SECRET="value", OTHER="2")
    assert f"{REPLACED}OTHER, SOME_SECRET in the environment changed" in other.output
    assert "value" not in other.output
    assert resident_lab.parents != first
    assert (
        f"{REPLACED}PYTHONHASHSEED in the environment changed"
        in run(resident_lab, ".", "--seed", "5", SOME_SECRET="value", OTHER="2").output
    )


def test_a_secret_does_not_stay_in_it(resident_lab: ResidentLab):
    resident_lab.write(test_one=ONE)
    run(resident_lab, ".", "--mask", "hunter-two", DISTTEST_MASK="hunter-three")
    environ = Path(f"/proc/{resident_lab.parent.pid}/environ").read_bytes()
    assert b"hunter" not in environ
    assert b"hunter" not in Path(f"/proc/{resident_lab.parent.pid}/cmdline").read_bytes()


def test_a_changed_file_means_a_new_parent(resident_lab: ResidentLab):
    packages = resident_lab.folder / "packages"
    packages.mkdir()
    (packages / "sitecustomize.py").write_text("# first\n")
    where = {"PYTHONPATH": os.pathsep.join([str(packages), resident_lab.environ["PYTHONPATH"]])}
    resident_lab.write(test_one=ONE)
    started = run(resident_lab, ".", **where)
    assert f"{WITHOUT} a resident parent: it would keep modules of {resident_lab.folder}" in started.output
    assert started.exit_code == 0


def test_what_cannot_be_forked_is_said(resident_lab: ResidentLab, tmp_path_factory: pytest.TempPathFactory):
    packages = tmp_path_factory.mktemp("packages")
    where = {"PYTHONPATH": os.pathsep.join([str(packages), resident_lab.environ["PYTHONPATH"]])}
    (packages / "sitecustomize.py").write_text("VALUE = 1\n")
    resident_lab.write(test_one=ONE)
    run(resident_lab, ".", **where)
    (packages / "sitecustomize.py").write_text(
        "import sys, threading\n"
        "if sys.argv[0] == '-m' and 'disttest.extras.resident.parent' in sys.orig_argv:\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (packages / "msgspec").mkdir()
    changed = run(resident_lab, ".", **where)
    assert f"{REPLACED}{packages}/sitecustomize.py changed" in changed.output
    assert (
        f"{WITHOUT} a resident parent: a process that has imported torch and pytest cannot be forked: 1 thread"
        in (changed.output)
    )
    assert changed.exit_code == 0


def test_another_interpreter_means_a_new_parent(resident_lab: ResidentLab):
    resident_lab.write(test_one=ONE)
    run(resident_lab, ".")
    other = resident_lab.folder / "python"
    other.symlink_to(sys.executable)
    resident_lab.python = str(other)
    assert f"{REPLACED}the interpreter is {other}" in run(resident_lab, ".").output


def test_its_folder_is_private_and_takes_its_own_user_only(resident_lab: ResidentLab):
    resident_lab.write(test_one=ONE)
    run(resident_lab, ".")
    (endpoint,) = resident_lab.endpoints
    assert endpoint.folder.stat().st_mode & 0o777 == 0o700
    if os.getuid() == 0:
        resident_lab.runtime.chmod(0o755)
        endpoint.folder.chmod(0o755)
        endpoint.socket.chmod(0o777)
        ask = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
            "s.connect(sys.argv[1]); s.settimeout(20); print(s.recv(9))"
        )
        stranger = subprocess.run(
            ["/usr/bin/env", "python3", "-c", ask, endpoint.socket],
            user=65534,
            capture_output=True,
            text=True,
            check=True,
        )
        assert stranger.stdout == "b''\n"
    endpoint.folder.chmod(0o755)
    refused = run(resident_lab, ".")
    assert refused.exit_code == 4 and "with mode 0700; remove it, or set XDG_RUNTIME_DIR" in refused.output
    endpoint.folder.chmod(0o700)


def test_a_request_of_another_version_means_a_new_parent(resident_lab: ResidentLab):
    resident_lab.write(test_one=ONE)
    run(resident_lab, ".")
    (endpoint,) = resident_lab.endpoints
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line, short(str(endpoint.socket)) as address:
        line.connect(address)
        send_with_file(line, b'{"type": "run", "other": 1}')
        (answer, _) = receive_answer(line)
    assert isinstance(answer, ForkRefused) and "version" in answer.reason


def test_a_killed_parent_costs_one_slower_run(resident_lab: ResidentLab):
    process = waiting_run(resident_lab)
    resident_lab.parent.kill()
    (resident_lab.folder / "go").touch()
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert "1 passed" in output
    again = run(resident_lab, ".")
    assert again.exit_code == 0 and NEW in again.output


def test_a_stopped_parent_is_replaced(resident_lab: ResidentLab):
    resident_lab.write(test_one=ONE)
    run(resident_lab, ".")
    stopped = resident_lab.parent
    stopped.suspend()
    replaced = run(resident_lab, ".")
    assert replaced.exit_code == 0
    assert f"{REPLACED}pid {stopped.pid} was stopped" in replaced.output
    (again,) = resident_lab.parents
    assert again != stopped.pid
    wait_until(lambda: not is_alive(stopped.pid))
    psutil.Process(again).suspend()
    assert resident_lab.run("resident", "stop").output == f"ended pid {again}\n"


@pytest.mark.parametrize(
    "signum",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.thorough("SIGINT takes the same way")),
        signal.SIGHUP,
    ],
)
def test_signals_reach_the_run(resident_lab: ResidentLab, signum: signal.Signals):
    process = waiting_run(resident_lab)
    ranks = [int((resident_lab.folder / f"up{rank}").read_text()) for rank in range(2)]
    process.send_signal(signum)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 128 + signum
    assert "cancelled" in (resident_lab.folder / "results" / "results.json").read_text(), output
    wait_until(lambda: not any(map(is_alive, ranks)))


def test_the_run_ends_with_its_command(resident_lab: ResidentLab):
    process = waiting_run(resident_lab)
    ranks = [int((resident_lab.folder / f"up{rank}").read_text()) for rank in range(2)]
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(is_alive, ranks)))
    wait_until((resident_lab.folder / "results" / "results.json").exists)


def test_the_run_ends_with_its_command_if_an_earlier_one_started_the_parent_under_nohup(
    resident_lab: ResidentLab,
):
    resident_lab.write(test_one=ONE).run("run", "--resident", "test_one.py", wrapper=("nohup",))
    test_the_run_ends_with_its_command(resident_lab)


def test_what_is_left_when_all_of_a_run_is_killed_is_ended(resident_lab: ResidentLab):
    process = waiting_run(resident_lab)
    ranks = [int((resident_lab.folder / f"up{rank}").read_text()) for rank in range(2)]
    (command,) = resident_lab.parent.children()
    for each in [command, *command.children(recursive=False)]:
        if each.pid not in ranks and len(each.children()) > 0:
            each.kill()  # not the reaper, which has no children
    assert process.wait(240) == 128 + signal.SIGKILL
    wait_until(lambda: not any(map(is_alive, ranks)))


def test_ctrl_z_stops_the_run_and_fg_has_it_go_on(resident_lab: ResidentLab):
    process = waiting_run(resident_lab)
    (command,) = resident_lab.parent.children()
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: command.status() == psutil.STATUS_STOPPED)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    process.send_signal(signal.SIGCONT)
    (resident_lab.folder / "go").touch()
    process.communicate(timeout=240)
    assert process.returncode == 0


def test_two_terminals_at_once_share_one_parent(resident_lab: ResidentLab):
    resident_lab.write(test_one=ONE)
    commands = [
        resident_lab.start("run", "--resident", ".", "--results", f"r{number}") for number in range(2)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in commands]
    assert [process.returncode for process in commands] == [0, 0], outputs
    assert sum(NEW in output for output in outputs) == 1
    assert len(resident_lab.parents) == 1
    assert "2 runs" in resident_lab.run("resident", "status").output


def test_other_limits_have_another_parent(resident_lab: ResidentLab):
    resident_lab.write(test_one=ONE)
    run(resident_lab, ".")
    fewer = ("sh", "-c", 'ulimit -n 900; exec "$@"', "sh")
    assert NEW in resident_lab.run("run", "--resident", ".", wrapper=fewer).output
    assert len(resident_lab.parents) == 2
    assert resident_lab.run("resident", "stop").output.count("ended pid") == 2
    assert resident_lab.run("resident", "status").output == "no resident parent\n"


# --- at a terminal

ASKS = """
    import pytest

    @pytest.mark.world_size(2)
    def test_bad(world):
        found = world.rank + 40
        assert world.rank != 1
"""


def test_the_terminal_and_the_debugger_are_those_of_the_command(resident_lab: ResidentLab):
    resident_lab.write(test_asks=ASKS)
    terminal = Terminal(resident_lab, "--resident", "test_asks.py", "--debug-rank", "1", columns=77)
    terminal.read_until(lambda screen: "(rank 1) " in screen)
    terminal.answer("p found\n")
    terminal.read_until(lambda screen: "41" in screen.rpartition("p found")[2])
    terminal.answer("q\n")
    ended = terminal.end()
    assert ended.exit_code == 1, ended.output
    plain = re.sub(r"\x1b\[[0-9;]*m", "", ended.output)
    (header,) = re.findall(r"^=+ test session starts =+$", plain, re.MULTILINE)
    assert len(header) == 77


# --- where it is asked for


@pytest.mark.parametrize(
    ("arguments", "environ", "is_used"),
    [
        ((), {}, True),
        ((), {"CI": "true"}, False),
        (("--resident",), {"CI": "true"}, True),
        (("--resident=false",), {}, False),
        ((), {"CI": "true", "DISTTEST_RESIDENT": "true"}, True),
    ],
)
def test_the_project_asks_for_it_but_not_in_ci(
    resident_lab: ResidentLab, arguments: tuple[str, ...], environ: dict[str, str], is_used: bool
):
    resident_lab.write(test_one=ONE)
    (resident_lab.folder / "pyproject.toml").write_text("[tool.disttest]\nresident = true\n")
    ended = resident_lab.run("run", "test_one.py", *arguments, **environ)
    assert ended.exit_code == 0
    assert bool(resident_lab.parents) == is_used


def test_a_parent_that_is_there_is_used_only_if_it_is_asked_for(resident_lab: ResidentLab):
    resident_lab.write(test_one=ONE)
    assert run(resident_lab, ".").exit_code == 0
    for arguments in ((".",), (".", "--resident=false"), (".", "--resident", "--no-such-option")):
        resident_lab.run("run", *arguments)
    assert ": 1 run in" in resident_lab.run("resident", "status").output
    helped = [resident_lab.run("run", *words, "--help").output for words in ((), ("--resident",))]
    assert helped[0] == helped[1] != ""


def test_what_needs_new_processes_goes_without(resident_lab: ResidentLab):
    resident_lab.write(test_one=ONE)
    (resident_lab.folder / "setup.sh").write_text("true\n")
    ended = run(resident_lab, ".", "--setup", "setup.sh")
    assert ended.exit_code == 0
    assert f"--setup needs new processes; {WITHOUT} a resident parent" in ended.output
    assert resident_lab.parents == []


# --- its end


def test_it_ends_by_itself_and_leaves_nothing(resident_lab: ResidentLab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_module, "RESIDENT_IDLE_S", 0.5)
    for name, value in resident_lab.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(resident_lab.folder)
    endpoint = client_module.endpoint_of(resident_lab.folder, resident_lab.environ)
    with endpoint.locked():
        client_module._start(endpoint, dict(os.environ))
    parent = resident_lab.parent
    parent.wait(240)
    wait_until(lambda: not endpoint.folder.exists())


# --- for long

MODULE = "VALUE = {number}\n"
EDITED = """
    import pytest
    from edited import VALUE

    @pytest.mark.world_size(2)
    def test_edited(world):
        assert VALUE % 2 == 0, f"found {VALUE}"
"""


def test_every_run_is_that_of_the_last_edit(resident_lab: ResidentLab, request: pytest.FixtureRequest):
    """``--trials 1000``: the verdict is that of what was saved last, and the parent does not grow."""
    resident_lab.write(test_edited=EDITED, edited=MODULE.format(number=0))
    run(resident_lab, ".", PYTHONDONTWRITEBYTECODE="")
    parent, before = resident_lab.parents, resident_lab.parent.memory_info().rss
    for number in range(request.config.getoption("--trials") or 4):
        resident_lab.write(edited=MODULE.format(number=number))
        as_for_users = {"PYTHONDONTWRITEBYTECODE": ""}
        ended = run(resident_lab, ".", "--results", "results", DISTTEST_GRACE="0.1", **as_for_users)
        assert ended.exit_code == number % 2, ended.output
        assert number % 2 == 0 or f"found {number}" in ended.output
    assert resident_lab.parents == parent
    assert resident_lab.parent.memory_info().rss < before + (16 << 20)


def test_what_was_just_saved_leaves_no_byte_code_and_all_else_does(resident_lab: ResidentLab):
    """An edit in the same second, of the same size, would be taken for it; without any, all is compiled in each run."""
    resident_lab.write(
        test_edited=EDITED, test_settled=EDITED, edited="from settled import VALUE", settled="VALUE = 0"
    )
    ages_s = {
        "test_edited": -60,
        "edited": -60,
        "test_settled": 60,
        "settled": 60,
    }  # younger than any start-up is long
    for name, age_s in ages_s.items():
        os.utime(resident_lab.folder / f"{name}.py", (time.time() - age_s,) * 2)
    ended = run(resident_lab, ".", PYTHONDONTWRITEBYTECODE="")
    assert ended.exit_code == 0, ended.output
    kept = {path.name.partition(".")[0] for path in resident_lab.folder.rglob("*.pyc")}
    assert kept == {"test_settled", "settled"}


def test_kills_at_any_moment_cost_no_verdict(resident_lab: ResidentLab, request: pytest.FixtureRequest):
    """``--trials 50``: whenever the parent dies, the run that goes on or begins has its verdict."""
    resident_lab.write(test_one=ONE)
    chance = random.Random(request.config.getoption("--seed"))
    for number in range(request.config.getoption("--trials") or 4):
        if is_there := bool(number % 2):  # what is hit is then the handing over, or the run
            run(resident_lab, ".")
        process = resident_lab.start("run", "--resident", ".")
        moment_s = time.monotonic() + chance.uniform(0, 0.5 if is_there else 3)
        while process.poll() is None and time.monotonic() < moment_s:
            time.sleep(0.01)
        for pid in resident_lab.parents:
            os.kill(pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
        assert "1 passed" in output


def test_a_checkout_of_another_branch_is_seen(resident_lab: ResidentLab):
    def git(*words: str) -> None:
        own = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=good")
        subprocess.run(["git", *own, *words], cwd=resident_lab.folder, check=True, capture_output=True)

    (resident_lab.folder / ".gitignore").write_text("results*\n__pycache__\n")
    resident_lab.write(test_edited=EDITED, edited=MODULE.format(number=0))
    git("init")
    git("add", ".")
    git("commit", "-m", "good")
    git("checkout", "-b", "bad")
    resident_lab.write(edited=MODULE.format(number=1), test_more=ONE)
    git("add", ".")
    git("commit", "-m", "bad")
    for branch, code in (("bad", 1), ("good", 0), ("bad", 1)):
        git("checkout", branch)
        ended = run(resident_lab, ".", "--results", "results")
        assert ended.exit_code == code, ended.output
        assert len(ended.run.tests) == 1 + code
    assert len(resident_lab.parents) == 1


def _file_for_folder(runtime: Path, _name: str) -> None:
    (runtime / "disttest").touch()


def _folder_for(suffix: str) -> Callable[[Path, str], None]:
    def make(runtime: Path, name: str) -> None:
        (runtime / "disttest").mkdir(mode=0o700, exist_ok=True)
        (runtime / "disttest" / f"{name}.{suffix}").mkdir()

    return make


OTHERS_SHOW_IT = pytest.mark.thorough("a file for the folder and a full one are refused in the same place")


def _full(runtime: Path, _name: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "tmpfs", str(runtime)], check=True)
    (runtime / "ballast").touch()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(_file_for_folder, id="a file for the folder"),
        *(
            pytest.param(_folder_for(name), id=f"a folder for the {name}", marks=OTHERS_SHOW_IT)
            for name in ("lock", "socket", "log")
        ),
        pytest.param(_full, id="full"),
    ],
)
def test_a_folder_of_parents_that_cannot_be_used_is_said_and_the_run_has_no_parent(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory, spoil: Callable[[Path, str], None]
) -> None:
    runtime = tmp_path_factory.mktemp("runtime")
    if spoil is _full and os.getuid() != 0:
        pytest.skip("a file system cannot be mounted here")
    lab.write(test_one="import pytest\n\n@pytest.mark.world_size(2)\ndef test_one(world):\n    pass\n")
    environ = {"XDG_RUNTIME_DIR": str(runtime), "CI": ""}
    lab.run("test_one.py", "--resident", **environ)
    (lock,) = (runtime / "disttest").glob("*.lock")
    lab.run("resident", "stop", **environ)
    spoil(runtime, lock.stem)
    try:
        ended = lab.run("test_one.py", "--resident", **environ)
    finally:
        if spoil is _full:
            subprocess.run(["umount", str(runtime)], check=True)

    assert 0 == ended.exit_code, ended.output
    assert "Traceback" not in ended.output
    assert f"running without a resident parent: {runtime / 'disttest'} cannot be used: " in ended.output
