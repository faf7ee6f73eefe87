"""Bad input gets a clear error and an exit code, and loses nothing."""

import subprocess

import pytest

from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

GOOD = """
    import pytest
    @pytest.mark.world_size(2)
    def test_good(world):
        pass
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuite"], "no suite or path is called 'nosuite'"),
        (["smok"], "Did you mean smoke?"),
        (["./no/such.py"], "no such file or directory: ./no/such.py"),
        (["test_good.py", "--world-sizes", "0"], "--world-sizes: world size 0 is not a whole number from 1"),
        (
            ["test_good.py", "--world-sizes", "-1"],
            "--world-sizes: world size '-1' is not a whole number from 1",
        ),
        (["test_good.py", "--world-sizes", "x"], "--world-sizes: world size 'x' is not a whole number"),
        (["test_good.py", "--world-sizes", "10000"], "--world-sizes: world size 10000 is not"),
        (["test_good.py", "--timeout", "-3"], "--timeout: '-3' is not a number of seconds; 0 means no limit"),
        (["test_good.py", "--nonsense"], "No such option"),
        (["test_good.py", "-n", "2"], "put options of pytest after --, as in: disttest run PATH -- -n"),
        (["plan"], "Missing argument"),
    ],
)
def test_usage_errors(lab, arguments, message):
    ended = lab.write(test_good=GOOD).run(*arguments)

    assert 4 == ended.exit_code
    assert message in ended.output
    assert not ended.results.exists()


@pytest.mark.parametrize("option", [["--device", "cuda"], ["--backend", "nccl"]])
def test_asking_for_gpus_that_are_not_there(lab, option):
    ended = lab.write(test_good=GOOD).run("test_good.py", *option)

    assert 6 == ended.exit_code
    assert "needs a GPU, and this machine has none that works" in ended.output


def test_a_backend_that_torch_lacks_is_an_error_if_asked_for_and_a_skip_if_marked(lab):
    lab.write(
        test_good=GOOD,
        test_marked="""
        import pytest
        @pytest.mark.world_size(2)
        @pytest.mark.backend("mpi")
        def test_mpi(world):
            pass
        """,
    )
    asked = lab.run("test_good.py", "--backend", "mpi")
    marked = lab.run("test_marked.py", "--results", "marked")

    assert 4 == asked.exit_code, asked.output
    assert "--backend mpi: the installed torch has no such backend; it has gloo" in asked.output
    assert 0 == marked.exit_code, marked.output
    assert "torch has no backend mpi" in marked.output


def test_bad_marks_are_errors_of_their_file_and_the_others_run(lab):
    bad = """
    import pytest
    @pytest.mark.world_size(0)
    def test_bad(world):
        pass
    """
    bad_method = """
    import unittest, pytest
    class TestBad(unittest.TestCase):
        @pytest.mark.world_size("two")
        def test_bad(self):
            pass
    """
    ended = lab.write(test_bad=bad, test_method=bad_method, test_good=GOOD, test_syntax="def").run(".")

    assert 2 == ended.exit_code
    assert Outcome.PASSED is ended.result("test_good").outcome
    messages = {error.nodeid: error.message for error in ended.run.collection_errors}
    assert "world size 0 is not a whole number from 1" in messages["test_bad.py"]
    assert "world size 'two' is not a whole number" in messages["test_method.py::TestBad"]
    assert "SyntaxError" in messages["test_syntax.py"]
    assert 3 == len([case for case in ended.junit().iter("testcase") if case.find("error") is not None])


def test_a_bad_timeout_mark_names_its_test(lab):
    bad = """
    import pytest
    @pytest.mark.world_size(1)
    @pytest.mark.timeout(-1)
    def test_bad(world):
        pass
    """
    ended = lab.write(test_bad=bad).run(".")

    assert 4 == ended.exit_code
    assert (
        "test_bad.py::test_bad[1xgloo]: timeout mark: -1 is not a number of seconds above 0" in ended.output
    )


@pytest.mark.slow("compares four ways to run")
def test_a_failed_test_beside_a_file_that_can_not_be_collected_is_one_code_everywhere(lab):
    """The command, plain pytest, a cluster's client, and the merge of that run alone."""
    fails = """
    import pytest

    @pytest.mark.world_size(1)
    def test_fails(world):
        assert False
    """
    lab.write(test_fails=fails, test_syntax="def")

    run = lab.run(".")
    merged = lab.run("merge", "results", "--results", "merged")
    plain = lab.pytest("--continue-on-collection-errors", results="plain")
    nodes = lab.run(".", "--launcher", "local", "--device", "cpu", "--results", "nodes")

    codes = (run.exit_code, merged.exit_code, plain.exit_code, nodes.exit_code)
    assert (2, 2, 2, 2) == codes, (run.output, merged.output, plain.output, nodes.output)


def test_nothing_collected(lab):
    ended = lab.write(test_empty="").run("test_empty.py")

    assert 5 == ended.exit_code
    assert (ended.results / "junit.xml").exists()


def test_one_earlier_run_is_kept(lab):
    lab.write(test_good=GOOD)
    lab.run("test_good.py")
    first = lab.run("test_good.py").run.run_id
    second = lab.run("test_good.py")

    kept = [path for path in lab.folder.iterdir() if path.name.startswith("results-")]
    assert 1 == len(kept)
    assert first in (kept[0] / "events.jsonl").read_text()
    assert first != second.run.run_id


@pytest.mark.parametrize(
    ("words", "code"), [(["--", "--no-such-option"], 4), (["-k", "nothing"], 5)], ids=["usage", "empty"]
)
def test_a_run_without_a_test_leaves_the_results_before_it(lab, words, code):
    before = lab.write(test_good=GOOD).run("test_good.py").run.run_id
    ended = lab.run("test_good.py", *words)

    assert code == ended.exit_code, ended.output
    assert before == ended.run.run_id
    assert ["results"] == [path.name for path in lab.folder.glob("results*")]
    assert "results still has the results of the run before" in ended.output
    on_github = lab.run("test_good.py", *words, GITHUB_ACTIONS="true")
    assert before != on_github.run.run_id


def test_as_many_earlier_runs_are_kept_as_were_asked_for(lab):
    (lab.folder / "pyproject.toml").write_text("[tool.disttest]\nkeep-results = 2\n")
    lab.write(test_good=GOOD)
    for _ in range(3):
        lab.run("test_good.py")
    last = lab.run("test_good.py").run.run_id

    assert 2 == len([*lab.folder.glob("results-*")])
    lab.run("test_good.py", "--keep-results", "0")
    assert last not in "".join(path.name for path in lab.folder.glob("results-*"))
    assert not [*lab.folder.glob("results-*")]


def test_a_full_disk_is_said_before_anything_runs(lab):
    disk = lab.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", disk], check=True)
    try:
        (disk / "full").write_bytes(b'{"event":"run_started"}'.ljust(4096))
        (disk / "full").rename(disk / "events.jsonl")
        ended = lab.write(test_good=GOOD).run("test_good.py", "--results", "disk")
    finally:
        subprocess.run(["umount", disk], check=True)

    assert 7 == ended.exit_code
    assert "No space left on device" in ended.output
    assert "choose another place with --results" in ended.output


def test_crash_codes_that_look_like_success(lab):
    """A conftest that leaves with code 0 in the middle of the run does not make it green."""
    conftest = """
    import os
    def pytest_runtest_logfinish(nodeid):
        if "RANK" not in os.environ:
            os._exit(0)
    """
    ended = lab.write(conftest=conftest, test_good=GOOD + "\n    def test_plain(): pass\n").run(".")

    assert 3 == ended.exit_code
    assert "the pytest process ended with exit code 0 in the middle of the run" in ended.output
    assert Outcome.ERROR is ended.result("test_plain").outcome


def test_ranks_that_break_the_channel(lab):
    lab.write(
        test_channel="""
        import os, socket, stat, pytest
        import torch.distributed as dist

        def sockets():
            for name in os.listdir("/proc/self/fd"):
                try:
                    if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                        yield int(name)
                except OSError:
                    pass

        @pytest.mark.world_size(2)
        def test_garbage():
            if os.environ["RANK"] == "1":
                os.write(max(sockets()), b"this is no message at all")
                import time; time.sleep(600)

        @pytest.mark.world_size(2)
        def test_closes_everything():
            if os.environ["RANK"] == "1":
                os.closerange(3, 1000)

        @pytest.mark.world_size(2)
        def test_closes_everything_and_lives():
            if os.environ["RANK"] == "1":
                os.closerange(3, 1000)
                import time; time.sleep(600)
        """
    )
    ended = lab.run("test_channel.py", "--timeout", "30")

    garbage = ended.result("test_garbage")
    assert (Outcome.ERROR, 1) == (garbage.outcome, garbage.culprit)
    assert "it sent a malformed message" in garbage.message
    for name in ("test_closes_everything", "test_closes_everything_and_lives"):
        result = ended.result(name + "[2xgloo]")
        assert (Outcome.ERROR, 1) == (result.outcome, result.culprit), result
        assert "timed out" not in result.message


def test_worlds_side_by_side_never_collide(lab):
    lab.write(
        test_many="""
        import pytest, torch
        import torch.distributed as dist

        @pytest.mark.fresh_world
        @pytest.mark.world_size(2)
        @pytest.mark.parametrize("number", range(20))
        def test_sum(world, number):
            x = torch.full((2,), float(number))
            dist.all_reduce(x)
            assert x[0] == 2 * number
        """
    )
    ended = lab.run("test_many.py", "--slots", "16")

    assert 0 == ended.exit_code, ended.output
    worlds = ended.run.worlds
    overlapping = [
        (a.world_id, b.world_id)
        for a in worlds
        for b in worlds
        if a.started_at_s < b.started_at_s < a.ended_at_s
    ]
    assert overlapping, "worlds did run side by side"
    assert all(
        not set(a.slots) & set(b.slots)
        for a in worlds
        for b in worlds
        if (a.world_id, b.world_id) in overlapping
    )
