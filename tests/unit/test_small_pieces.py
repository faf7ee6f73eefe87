"""Slugs, targets, logs, stacks: small pieces with sharp edges."""

from functools import partial
from types import SimpleNamespace

import pytest

from disttest.errors import UsageError
from disttest.host import descendants
from disttest.model import Outcome, RankEnd, RankRecord, TestResult
from disttest.planning import targets
from disttest.results.directory import claim
from disttest.results.journal import FILE_NAME
from disttest.results.narrative import describe_ranks, shorten_stacks
from disttest.runtime.controller.collect import slug_of
from disttest.runtime.controller.session_options import _without_ours
from disttest.runtime.world.logs import AT_ONCE, RankLog, RankLogs


def test_slugs_are_short_safe_and_distinct():
    ids = [
        "a.py::t[x/y]",
        "a.py::t[x-y]",
        "a.py::t[x y]",
        "a.py::" + "é" * 300,
        "a.py::" + "é" * 301,
        "a.py::t[\udc80]",
    ]
    slugs = [slug_of(nodeid) for nodeid in ids]

    assert len(set(slugs)) == len(ids)
    assert slugs[0].startswith("a.py-t-x-y-")
    assert slug_of("some/folder/a.py::t[x/y]").startswith("a.py-t-x-y-")
    assert all(len(slug) <= 91 and slug.isascii() and not set(slug) & set('/\\:*?"<>| ') for slug in slugs)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["/usr/bin/python3", "-m", "worker"], "python3 -m worker"),
        (["python3", *["word"] * 14], " ".join(["python3", *["word"] * 14])),
        (["python3", *["some"] * 13, "multiprocessing"], " ".join(["python3", *["some"] * 13, "…"])),
        (["python3", *["x" * 9] * 8], " ".join(["python3", *["x" * 9] * 7, "…"])),
        (["python3", "a" * 90], "python3 " + "a" * 71 + "…"),
    ],
    ids=["whole", "just whole", "long last word", "several left out", "long path"],
)
def test_a_shown_command_ends_with_a_whole_word(monkeypatch, command, shown):
    monkeypatch.setattr(
        descendants.psutil, "Process", lambda _pid: SimpleNamespace(cmdline=lambda: command, name=lambda: "")
    )

    assert descendants.shown_command(1) == shown
    assert len(shown) <= 80


def test_targets(tmp_path, monkeypatch):
    suites = tmp_path / "suites"
    for name in ("ddp", "smoke"):
        (suites / name).mkdir(parents=True)
        (suites / name / "__init__.py").touch()
    monkeypatch.setattr(targets, "suites_dir", lambda: suites)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_mine.py").touch()

    assert targets.resolve_targets(["ddp"]).bundled
    mixed = targets.resolve_targets(["ddp", "test_mine.py::test_x"])
    assert (str(suites / "ddp"), "test_mine.py::test_x") == mixed.arguments
    assert not mixed.bundled
    with pytest.raises(UsageError, match=r"no suite or path is called 'dpd'\. Did you mean ddp"):
        targets.resolve_targets(["dpd"])
    with pytest.raises(UsageError, match=r"no such file or directory: tests/none\.py"):
        targets.resolve_targets(["tests/none.py"])


def test_a_part_of_a_suite_goes_by_the_suite_s_name_unless_there_is_such_a_path(tmp_path, monkeypatch):
    suites = tmp_path / "suites"
    (suites / "ddp").mkdir(parents=True)
    (suites / "ddp" / "__init__.py").touch()
    (suites / "ddp" / "test_join.py").touch()
    monkeypatch.setattr(targets, "suites_dir", lambda: suites)
    monkeypatch.chdir(tmp_path)

    named = targets.resolve_targets(["ddp/test_join.py::test_x[2xgloo]"])
    assert ((f"{suites}/ddp/test_join.py::test_x[2xgloo]",), True) == (named.arguments, named.bundled)
    with pytest.raises(UsageError):
        targets.resolve_targets(["ddp/../../secret.py"])
    (tmp_path / "ddp").mkdir()
    (tmp_path / "ddp" / "test_join.py").touch()
    assert not targets.resolve_targets(["ddp/test_join.py"]).bundled


def test_a_long_log_keeps_head_and_tail(tmp_path):
    path = tmp_path / "rank0.log"
    path.write_bytes(b"head\n" + b"x" * 100_000 + b"\ntail")
    log = RankLog(path, limit=16_384)

    log.trim()
    assert path.stat().st_blocks * 512 < 60_000, "the middle is given back while the rank still writes"
    log.finish()

    text = path.read_bytes()
    assert text.startswith(b"head\n")
    assert text.endswith(b"\ntail")
    assert b"[disttest: 83626 bytes cut here: log-limit of [tool.disttest] is 16384 bytes]" in text
    assert len(text) < 17_000


def test_a_short_log_is_left_alone(tmp_path):
    path = tmp_path / "rank0.log"
    path.write_bytes(b"short")
    log = RankLog(path, limit=16_384)

    log.trim()
    log.finish()

    assert b"short" == path.read_bytes()
    RankLog(tmp_path / "none", limit=1).finish()


@pytest.mark.parametrize(("count", "after"), [(3, [2] * 3), (AT_ONCE + 10, [2] * (AT_ONCE - 10) + [1] * 20)])
def test_many_logs_are_trimmed_in_turn(count, after):
    trimmed = [0] * count

    def count_up(number):
        trimmed[number] += 1

    logs = RankLogs([SimpleNamespace(trim=partial(count_up, number)) for number in range(count)])
    logs.trim()
    logs.trim()

    assert sorted(after) == sorted(trimmed)
    RankLogs([]).trim()


def test_an_earlier_run_is_kept_aside(tmp_path):
    results = tmp_path / "results"
    first = claim(results)
    (results / FILE_NAME).write_text('{"event":"first"}')
    first.release()

    claim(results).release()

    assert [".gitignore"] == [path.name for path in results.iterdir()]
    (kept,) = [path for path in tmp_path.iterdir() if path.name.startswith("results-")]
    assert '{"event":"first"}' == (kept / FILE_NAME).read_text()


def test_foreign_files_are_never_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("do not lose")

    with pytest.raises(UsageError, match="contains files that are not from a disttest run"):
        claim(tmp_path)
    assert "do not lose" == (tmp_path / "thesis.tex").read_text()


def test_a_results_directory_that_can_not_be(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match=r"results directory .*file.* cannot be used: "):
        claim(tmp_path / "file" / "results")
    with pytest.raises(UsageError, match="cannot be used"):
        claim(tmp_path / "file")


STACK = """Current thread 0x00007f1 (most recent call first):
  File "/venv/disttest/observe/patches.py", line 133 in method
  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 5 in barrier
  File "/repo/tests/test_x.py", line 7 in test_x
  File "/venv/_pytest/python.py", line 187 in pytest_pyfunc_call
  File "/venv/pluggy/_callers.py", line 1 in _multicall

Thread 0x00007f2 (most recent call first):
  File "/repo/tests/test_x.py", line 9 in worker"""


def test_stacks_end_at_the_test():
    short = shorten_stacks(STACK)

    assert "line 7 in test_x" in short
    assert "line 9 in worker" in short
    assert "_pytest" not in short
    assert "disttest" not in short
    assert "0x" not in short


def test_equal_stacks_are_told_once():
    stacks = shorten_stacks(STACK)
    ranks = [
        RankRecord(
            rank=rank, end=RankEnd.KILLED, phase="call", hung=True, stacks=stacks if rank < 2 else "other"
        )
        for rank in range(3)
    ]
    lines = list(describe_ranks(TestResult(nodeid="x", outcome=Outcome.FAILED, ranks=tuple(ranks))))

    assert "stacks of ranks 0, 1:" in lines
    assert "stacks of rank 2:" in lines
    assert 1 == sum("line 7 in test_x" in line for line in lines)


@pytest.mark.parametrize(("after", "ran"), [(("a",), "1 test ran"), (("b", "a"), "2 tests ran")])
def test_the_tests_that_ran_before_are_counted_and_the_last_is_named(after: tuple[str, ...], ran: str):
    result = TestResult(nodeid="x", outcome=Outcome.FAILED, after=after)

    assert [f"{ran} before it in the same processes, the last: a"] == [*describe_ranks(result)]


def test_who_has_no_children_looks_at_no_other_process(monkeypatch):
    monkeypatch.setattr(descendants, "has_children", lambda: False)
    monkeypatch.setattr(descendants.psutil, "Process", None)

    assert set() == descendants.children_of()
    assert () == descendants.kill_descendants()


def test_killing_the_rest_of_a_world_spares_what_other_worlds_fork_meanwhile(monkeypatch):
    trees = {None: {10, 11, 20, 21}, 20: {21}}
    killed = []

    def children_of(pid=None):
        found = set(trees[pid])
        trees[None] = {20, 21, 22} if pid is None else trees[None]
        trees[20] = {21, 22}  # forked after the first look
        return found

    monkeypatch.setattr(descendants, "children_of", children_of)
    monkeypatch.setattr(descendants, "send_signal", lambda pid, _signum: killed.append(pid))

    assert () == descendants.kill_descendants(spare_trees=[20])
    assert [10, 11] == sorted(killed)


def test_what_is_ours_is_taken_out_of_pytest_s_arguments():
    given = [
        "--disttest-timeout",
        "3",
        "-k",
        "x",
        "--disttest-slots=2",
        "--disttest-order=7",
        "--my-option",
    ]

    assert ["-k", "x", "--my-option"] == [*_without_ours(given)]
