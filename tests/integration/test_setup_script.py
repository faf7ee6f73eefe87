"""``--setup``: a script of the user's before the tests, whose failure is no test's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from lab import Lab

from disttest.host.proc import is_alive

TESTS = """
    import os
    from pathlib import Path

    def test_made():
        assert Path("made").read_text().strip() == str(os.getuid())
"""


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return tmp_path / "outputs"


def write(lab: Lab, script: str) -> None:
    lab.write(test_made=TESTS)
    (lab.folder / "set up.sh").write_text(script)


def test_it_comes_before_the_tests_and_what_it_leaves_running_ends_with_them(lab: Lab) -> None:
    write(lab, 'id -u > made\necho "ready $0"\nsleep 1000 > /dev/null 2>&1 &\necho $! > server\n')
    ended = lab.run("test_made.py", "--setup", "set up.sh", "--deadline", "200")
    assert ended.exit_code == 0, ended.output
    assert ended.output.index("ready set up.sh") < ended.output.index("1 passed")
    assert not is_alive(int((lab.folder / "server").read_text()))


def test_its_failure_is_told_with_its_last_lines(lab: Lab, outputs: Path) -> None:
    write(lab, "seq 100\necho hunter22 is missing >&2\nexit 3\n")
    ended = lab.run(
        "test_made.py", "--setup", "set up.sh", GITHUB_OUTPUT=str(outputs), DISTTEST_MASK="hunter22"
    )
    assert ended.exit_code == 10, ended.output
    told = ended.output.partition("disttest: ")[2]
    assert told.startswith(
        "--setup set up.sh ended with exit code 3, so no test was run; its last lines:\n  90\n"
    )
    assert told.endswith("\n  100\n  *** is missing\ndisttest: what to do: disttest explain setup-failed\n")
    assert "hunter22" not in ended.output
    assert "exit-code" in outputs.read_text()
    assert not ended.results.exists()


def test_it_may_take_what_the_run_may_take(lab: Lab) -> None:
    write(lab, "exec > /dev/null 2>&1\nsleep 1000\n")
    ended = lab.run("test_made.py", "--setup", "set up.sh", "--deadline", "1")
    assert ended.exit_code == 10, ended.output
    assert "--setup set up.sh did not end within 1 s" in ended.output


def test_a_signal_ends_it_with_all_that_it_has_started(lab: Lab, outputs: Path) -> None:
    write(lab, "(sleep 1000 & echo $!; wait) &\nwait\n")
    process = lab.start("test_made.py", "--setup", "set up.sh", GITHUB_OUTPUT=str(outputs))
    assert process.stdout is not None
    started = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "\ncancelled\n" in outputs.read_text()
    assert not is_alive(started)


def test_a_plan_has_it_before_tests_are_collected(lab: Lab) -> None:
    write(lab, "echo 'def test_more(): pass' > test_more.py\n")
    ended = lab.run("plan", ".", "--setup", "set up.sh", "--shards", "1")
    assert ended.exit_code == 0, ended.output
    assert "test_more" in (lab.folder / "plan.json").read_text()


def test_what_makes_no_sense_is_refused(lab: Lab) -> None:
    write(lab, "touch made\n")
    missing = lab.run("test_made.py", "--setup", "none.sh")
    assert (missing.exit_code, "--setup none.sh: no such file in" in missing.output) == (4, True)
    far = lab.run("test_made.py", "--setup", "set up.sh", "--launcher", "slurm")
    assert (far.exit_code, "--setup works on one machine only" in far.output) == (4, True), far.output
    assert not (lab.folder / "made").exists()


def test_what_it_asks_to_mask_is_hidden_there_and_in_the_tests(lab: Lab) -> None:
    write(lab, 'echo "::add-mask::hunter$((20 + 2))"\ntouch made\n')
    lab.write(test_says="def test_says():\n    print('hunter' + '22')\n    assert False\n")
    ended = lab.run("test_says.py", "--setup", "set up.sh", GITHUB_ACTIONS="true")
    assert ended.exit_code == 1, ended.output
    assert "add-mask::***" in ended.output
    assert "hunter22" not in ended.output + (ended.results / "junit.xml").read_text()


@pytest.mark.slow("two pytest processes with ranks")
def test_servers_that_the_script_starts_serve_every_pytest_process_of_the_run(lab: Lab) -> None:
    lab.write(
        test_served="""
        import os, pathlib

        def test_served():
            os.kill(int(pathlib.Path("server").read_text()), 0)
    """
    )
    (lab.folder / "set_up.sh").write_text("sleep 600 > /dev/null 2>&1 &\necho $! > server\n")

    ended = lab.run("run", "test_served.py", "--spmd", "1,2", "--setup", "set_up.sh")

    assert ended.exit_code == 0, ended.output
    assert len(ended.run.tests) == 2
    assert not is_alive(int((lab.folder / "server").read_text()))
