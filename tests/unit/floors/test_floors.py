"""Floors: almost everything skipped is red."""

from __future__ import annotations

import pytest
from sample_runs import SampleRun

from disttest.errors import UsageError
from disttest.model import Outcome
from disttest.plugins.floors.floors import Floors, check_floors, idle_suites, parse_manifest
from disttest.results.fold import RunResult, fold


def run_of(passed: int = 0, skipped: int = 0) -> RunResult:
    run = SampleRun()
    for number in range(passed):
        run.test(name=f"test_p{number}")
    for number in range(skipped):
        run.test(Outcome.SKIPPED, name=f"test_s{number}", message="needs 2 GPUs")
    return fold(run.events)


def ids(run: RunResult) -> list[str]:
    return [test.test.nodeid for test in run.tests]


def test_no_floors_are_never_broken() -> None:
    assert () == check_floors(run_of(0, 3), Floors())
    assert () == check_floors(run_of(), Floors())


def test_a_suite_of_which_nothing_ran_is_idle() -> None:
    (message,) = idle_suites(run_of(0, 3))

    assert "3 were skipped: most often (3 times) because needs 2 GPUs" in message
    assert () == idle_suites(run_of(1, 3))
    assert () == idle_suites(run_of())


def test_too_few_tests() -> None:
    run = run_of(2, 8)

    assert () == check_floors(run, Floors(min_tests=2))
    assert (
        (
            "only 2 tests ran and --min-tests asks for 3 (8 of 10 were skipped): "
            "see the skip reasons, or lower the floor"
        ),
    ) == check_floors(run, Floors(min_tests=3))


def test_too_few_tests_in_worlds() -> None:
    run = run_of(2, 8)

    assert () == check_floors(run, Floors(min_worlds=2))
    (message,) = check_floors(run, Floors(min_worlds=3))
    assert message.startswith("only 2 tests ran in a world and --min-worlds asks for 3")


def test_too_much_skipped() -> None:
    run = run_of(2, 8)

    assert () == check_floors(run, Floors(max_skip_ratio=0.8))
    assert (
        (
            "8 of 10 tests were skipped (80%) and --max-skip-ratio allows 79%: "
            "most often (8 times) because needs 2 GPUs"
        ),
    ) == check_floors(run, Floors(max_skip_ratio=0.79))


def test_expected_tests_must_run() -> None:
    run = run_of(1, 1)
    passed, skipped = ids(run)
    floors = Floors(expect=parse_manifest(f"# the core\n\n{passed}\n{skipped}\ngone.py::x\n", "must.txt"))

    assert (
        f"must.txt:4 expects {skipped} to run, and it was skipped or not run: run it, or take out the line",
        "must.txt:5 expects gone.py::x to run, and it does not exist: run it, or take out the line",
    ) == check_floors(run, floors)


@pytest.mark.parametrize("line", ["{id}", "{file}", "{base}", "*test_p0*", "{file}::*"])
def test_what_a_line_may_name(line: str) -> None:
    run = run_of(1)
    nodeid = ids(run)[0]
    file = nodeid.split("::")[0]
    text = line.format(id=nodeid, file=file, base=nodeid.split("[")[0])

    assert () == check_floors(run, Floors(expect=parse_manifest(text, "must.txt")))


@pytest.mark.parametrize("line", ["test_p", "{file}::test_p", "x*", "{id}x"])
def test_what_names_no_test(line: str) -> None:
    run = run_of(1)
    nodeid = ids(run)[0]

    manifest = parse_manifest(line.format(id=nodeid, file=nodeid.split("::")[0]), "must.txt")

    assert check_floors(run, Floors(expect=manifest))


def test_a_manifest_that_expects_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"must\.txt names no test"):
        parse_manifest("# nothing\n", "must.txt")


def test_patterns_take_brackets_literally() -> None:
    run = run_of(1)
    (nodeid,) = ids(run)
    name, _, size = nodeid.partition("[")

    assert not check_floors(run, Floors(expect=parse_manifest(f"*[{size}", "must.txt")))
    assert check_floors(run, Floors(expect=parse_manifest(f"*{name}{size[0]}", "must.txt")))
