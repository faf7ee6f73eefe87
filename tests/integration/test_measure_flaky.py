"""``disttest flaky TEST`` and ``--perturb`` over real runs."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path

import pytest


def test_perturbations_reach_ranks_and_isolated_tests_and_end_with_the_run(lab):
    test = """
        import os
        import pathlib
        import pytest
        import torch

        def test_ordinary():
            assert torch.get_num_threads() == len(os.sched_getaffinity(0)) == 1

        def test_each_busy_process_has_a_share_of_the_processor():
            lines = {entry.parent.name: entry.read_bytes() for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline")}
            busy = [int(pid) for pid, line in lines.items() if b"while os.getppid() == parent" in line]
            assert busy and all(os.getsid(pid) == pid for pid in busy)

        @pytest.mark.world_size(2)
        def test_ranks(world):
            assert torch.get_num_threads() == len(os.sched_getaffinity(0)) == 1
            assert len(torch.empty(1 << 20)) > 0

        @pytest.mark.world_size(2)
        def test_much(world):
            assert len(torch.empty(1 << 30)) > 0
    """
    perturb = ("--isolate-files", "--perturb", "threads:1,cpu:1,memory:1g")
    ended = lab.write(test_mine=test).run("run", "test_mine.py", *perturb)

    assert [each.test.nodeid.partition("::")[2] for each in ended.run.bad] == ["test_much[2xgloo]"]
    assert "allocate memory" in ended.result("test_much").message


@pytest.mark.slow("isolated processes, one after another and at the same time")
def test_a_crowd_runs_isolated_tests_at_the_same_time_and_nothing_else_does(lab):
    test = """
        import pathlib
        import time

        def meets_the_other(name):
            pathlib.Path(f"{name}.here").touch()
            end = time.monotonic() + LIMIT_S
            while time.monotonic() < end:
                if len(list(pathlib.Path().glob("*.here"))) == 2:
                    return True
                time.sleep(0.01)
            return False

        def test_a():
            assert meets_the_other("a")

        def test_b():
            assert meets_the_other("b")
    """
    alone = ("--isolate-files", "--isolation", "fresh", "--slots", "2")
    lab.write(test_mine=test.replace("LIMIT_S", "0.1"))
    assert lab.run("run", "test_mine.py::test_a", "test_mine.py::test_b", *alone).exit_code == 1
    for file in lab.folder.glob("*.here"):
        file.unlink()

    lab.write(test_mine=test.replace("LIMIT_S", "60"))
    ended = lab.run("run", "test_mine.py", *alone, "--perturb", "crowd")
    assert ended.exit_code == 0, ended.output


@pytest.mark.slow("runs a world twice")
def test_one_rank_is_late_and_the_delays_are_the_same_again(lab):
    test = """
        import pytest
        import time
        import torch.distributed as dist

        @pytest.mark.world_size(2)
        def test_late(world, tmp_path):
            import disttest.extras.flaky.in_test as part

            naps = []
            part.sleep = naps.append
            for _ in range(3):
                dist.barrier()
            print("naps", world.rank, naps)
            assert len(naps) in (0, 3) and max(naps, default=5) <= 5
    """
    lab.write(test_mine=test)
    naps = []
    for _ in range(2):
        ended = lab.run("run", "test_mine.py", "--perturb", "delay:5")
        assert ended.exit_code == 0, ended.output
        naps.append([ended.log("test_late", rank).partition("naps")[2].split("\n")[0] for rank in (0, 1)])

    assert naps[0] == naps[1]
    assert [line.endswith("[]") for line in sorted(naps[0], key=len)] == [True, False]


@pytest.mark.slow("measures with tens of runs")
def test_a_deterministic_failure_is_not_called_flaky(lab):
    lab.write(test_mine="def test_x():\n    assert False\n\ndef test_y():\n    pass\n")
    ended = lab.run(
        "flaky", "test_mine.py::test_x", "--repeat", "4", "--budget", "40", "--json", "found.json"
    )
    found = json.loads((lab.folder / "found.json").read_text())["tests"][0]

    assert (ended.exit_code, found["cause"]) == (1, "deterministic"), ended.output
    assert found["rows"][0]["failed"] == found["rows"][0]["ran"]
    assert "cause: deterministic" in ended.output


@pytest.mark.slow("measures with tens of runs")
def test_the_polluter_is_found_and_the_printed_command_fails(lab):
    test = """
        LEFT = []

        def test_a():
            LEFT.append("a")

        def test_b():
            pass

        def test_x():
            assert not LEFT
    """
    lab.write(test_mine=test)
    ended = lab.run("flaky", "test_mine.py::test_x", "--repeat", "12", "--budget", "600", "--json", "-")
    found = json.loads(ended.output[ended.output.index("\n{") :])["tests"][0]

    assert (found["cause"], found["by"]) == ("order of tests", "after others"), ended.output
    assert "run test_mine.py::test_a test_mine.py::test_x" in found["command"]
    assert lab.run(*found["command"].split()[1:]).exit_code == 1


@pytest.mark.thorough("unit tests find the seed, and the polluter's test runs the printed command")
def test_the_seed_of_a_planted_test_is_found_and_the_printed_command_fails(lab):
    planted = (Path(__file__).parents[1] / "planted_flaky" / "seed.py").read_text()
    lab.write(test_mine=planted)
    ended = lab.run("flaky", "test_mine.py::test_python", "--json", "found.json")
    (found,) = json.loads((lab.folder / "found.json").read_text())["tests"]

    assert found["cause"] == "seed", ended.output
    assert lab.run(*shlex.split(found["command"])[1:]).exit_code == 1


@pytest.mark.slow("measures with tens of runs")
def test_until_fail_stops_at_a_failure_of_a_test_in_quarantine_too(lab):
    lab.write(test_mine="import random\n\ndef test_x():\n    assert random.random() > 0.9\n")
    entry = (
        '[[test]]\ntest = "test_mine.py::test_x"\nowner = "ann"\nreason = "chance"\nexpires = 2999-01-01\n'
    )
    (lab.folder / "flaky.toml").write_text(entry)
    ended = lab.run("flaky", "test_mine.py::test_x", "--until-fail", "--repeat", "30", "--budget", "60")

    assert ended.exit_code == 1, ended.output
    assert len([*(lab.folder / "results-flaky" / "001").glob("*.txt")]) == 1


def test_an_interrupt_prints_the_findings_so_far(lab):
    lab.write(test_mine="def test_x():\n    assert False\n")
    process = lab.start("flaky", "test_mine.py::test_x", "--repeat", "2", PYTHONUNBUFFERED="1")
    assert process.stdout is not None
    lines = [process.stdout.readline(), process.stdout.readline()]
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)

    assert process.returncode == 130, output
    assert "plain" in lines[1]
    assert "cause: deterministic" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("test_mine.py", "--slots", "3"), "leave --slots out"),
        (("test_mine.py", "--budget", "no"), "'no' is not a number of seconds"),
        (("test_gone.py",), "test_gone.py"),
    ],
)
def test_refusals(lab, words, message):
    lab.write(test_mine="def test_x():\n    pass\n")
    ended = lab.run("flaky", *words)

    assert ended.exit_code == 4, ended.output
    assert message in ended.output
    assert not (lab.folder / "results-flaky").exists()
