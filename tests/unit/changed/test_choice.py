"""The selection, and the record: bad files, another project, two writers, tests that were renamed."""

from __future__ import annotations

import fcntl
import os

import msgspec
import pytest

from disttest.errors import UsageError
from disttest.extras.changed import record as records
from disttest.extras.changed.changes import Changes
from disttest.extras.changed.choice import choose, difference, failed_canaries
from disttest.extras.changed.record import Miss, Ran, Record, outcome_of, read_record, update_record, with_run
from disttest.extras.changed.sources import LOST, MODULE, UNKNOWN, Sources
from disttest.model import Outcome

HERE = {"python": "3.11.2"}
ONE, TWO = ("lib.py", "one"), ("lib.py", "two")
SOURCE = "def one():\n    return 1\n\ndef two():\n    return 2\n"


@pytest.fixture
def sources(tmp_path) -> Sources:
    (tmp_path / "lib.py").write_text(SOURCE)
    return Sources(tmp_path, ["lib.py"])


def ran(sources: Sources, *units: tuple[str, str], outcome: Outcome = Outcome.PASSED, gpus: int = 0) -> Ran:
    return Ran(units={u: sources.digest(u) for u in units}, outcome=outcome, duration_s=2.0, gpus=gpus)


def chosen(tests: list[str], record: Record, sources: Sources, **given):
    changes = Changes(
        base="b",
        head=given.pop("head", "h"),
        units=given.pop("units", frozenset()),
        renamed=given.pop("renamed", {}),
    )
    given = {"environment": HERE, "canaries": 0.0, **given}
    return choose(tests, record, changes, sources, **given)


def why(choice) -> dict[str, tuple[str, str]]:
    return {test: (reason.why, reason.by) for test, reason in choice.selected.items()}


def test_what_changed_selects_what_uses_it(sources, tmp_path):
    tests = {
        "t.py::a": ran(sources, ONE),
        "t.py::b": ran(sources, TWO, gpus=2),
        "t.py::c": ran(sources, ONE, TWO),
    }
    record = with_run(Record(), tests, HERE, [])
    assert why(chosen([*tests], record, sources)) == {}

    (tmp_path / "lib.py").write_text(SOURCE.replace("return 1", "return 3"))
    choice = chosen([*tests, "t.py::d"], record, Sources(tmp_path, ["lib.py"]))
    by = ("affected", "lib.py::one")
    assert why(choice) == {"t.py::a": by, "t.py::c": by, "t.py::d": ("new", "")}
    assert (choice.left_out, choice.saved_s, choice.saved_gpu_s) == (1, 2.0, 4.0)


def test_a_change_since_the_revision_counts_although_it_is_recorded(sources):
    record = with_run(Record(), {"t.py::a": ran(sources, ONE), "t.py::b": ran(sources, TWO)}, HERE, [])
    assert set(chosen(["t.py::a", "t.py::b"], record, sources, units=frozenset([TWO])).selected) == {
        "t.py::b"
    }


def test_tests_that_always_run(sources):
    tests = {
        "failed": ran(sources, ONE, outcome=Outcome.FAILED),
        "unfinished": ran(sources, ONE, outcome=Outcome.NOT_RUN),
        "skipped": ran(sources, ONE, outcome=Outcome.SKIPPED),
        "quarantined": ran(sources, ONE),
        "lost": Ran(units={LOST: UNKNOWN}, outcome=Outcome.PASSED, duration_s=0.0, gpus=0),
    }
    choice = chosen([*tests], with_run(Record(), tests, HERE, []), sources, quarantined={"quarantined"})
    assert {test: reason.why for test, reason in choice.selected.items()} == {
        "failed": "failed last time",
        "unfinished": "failed last time",
        "skipped": "skipped last time",
        "quarantined": "in quarantine",
        "lost": "affected",
    }


PASSED, SKIPPED, FAILED = Outcome.PASSED, Outcome.SKIPPED, Outcome.FAILED


@pytest.mark.parametrize(
    ("reported", "wanted"),
    [
        ([("setup", PASSED), ("call", PASSED), ("teardown", PASSED)], PASSED),
        ([("call", PASSED), ("teardown", PASSED)], PASSED),
        ([("setup", PASSED)], Outcome.NOT_RUN),
        ([("setup", PASSED), ("call", PASSED)], Outcome.NOT_RUN),
        ([], Outcome.NOT_RUN),
        ([("setup", SKIPPED), ("teardown", PASSED)], SKIPPED),
        ([("setup", PASSED), ("call", SKIPPED), ("teardown", PASSED)], SKIPPED),
        ([("call", SKIPPED), ("call", PASSED), ("teardown", PASSED)], SKIPPED),
        ([("call", FAILED), ("call", PASSED), ("teardown", PASSED)], FAILED),
        ([("call", SKIPPED), ("teardown", FAILED)], FAILED),
    ],
)
def test_a_test_has_passed_only_if_all_of_it_ran(reported, wanted):
    assert outcome_of(reported) is wanted


def test_another_environment_selects_everything_recorded_in_the_earlier_one(sources):
    record = with_run(Record(), {"old": ran(sources, ONE)}, HERE, [])
    now = {"python": "3.12.1"}
    record = with_run(record, {"now": ran(sources, ONE)}, now, [])
    choice = chosen(["old", "now"], record, sources, environment=now)
    assert why(choice) == {"old": ("environment", "python: 3.11.2 -> 3.12.1")}
    assert difference({str(n): "" for n in range(5)}, {}).endswith("and 2 more")


def test_a_renamed_file_keeps_its_tests_and_functions(sources, tmp_path):
    record = with_run(Record(), {"old.py::a": ran(sources, ONE), "old.py::b": ran(sources, TWO)}, HERE, [])
    (tmp_path / "lib.py").unlink()
    (tmp_path / "moved.py").write_text(SOURCE.replace("return 1", "return 3"))
    now = Sources(tmp_path, ["moved.py"])
    renamed = {"old.py": "new.py", "lib.py": "moved.py"}
    assert why(chosen(["new.py::a", "new.py::b"], record, now, renamed=renamed)) == {
        "new.py::a": ("affected", "moved.py::one")
    }
    assert set(chosen(["new.py::a"], record, now).selected) == {"new.py::a"}


@pytest.mark.parametrize(
    ("conftest", "moved_to", "wanted"),
    [
        ("sub/conftest.py", "sub/t.py", {"sub/t.py::a"}),
        ("conftest.py", "sub/t.py", {"sub/t.py::a", "other/t.py::b"}),
        ("new/conftest.py", "sub/t.py", set()),
        ("new/conftest.py", "new/t.py", {"new/t.py::a"}),
    ],
)
def test_a_conftest_that_did_not_apply_before_selects_tests(tmp_path, conftest, moved_to, wanted):
    files = ["sub/t.py", "other/t.py", "other/conftest.py"]
    before = Sources(tmp_path, files)
    tests = {
        "sub/t.py::a": ran(before, ("sub/t.py", MODULE)),
        "other/t.py::b": ran(before, ("other/t.py", MODULE), ("other/conftest.py", MODULE)),
    }
    record = with_run(Record(), tests, HERE, [])
    now = Sources(tmp_path, [*files, moved_to, conftest])
    moved = {"sub/t.py": moved_to}
    choice = chosen([f"{moved_to}::a", "other/t.py::b"], record, now, renamed=moved)
    assert why(choice) == dict.fromkeys(wanted, ("affected", conftest))


def test_canaries_are_drawn_by_the_commit(sources):
    tests = {f"t{number}": ran(sources, ONE) for number in range(100)}
    record = with_run(Record(), tests, HERE, [])
    few = chosen([*tests], record, sources, canaries=0.02)
    assert len(few.selected) == 2
    assert few.selected == chosen([*reversed(tests)], record, sources, canaries=0.02).selected
    assert few.selected != chosen([*tests], record, sources, canaries=0.02, head="other").selected
    assert len(chosen(["t1", "t2"], record, sources, canaries=0.02).selected) == 1
    assert len(chosen(["t1", "t2"], record, sources, canaries=1.0).selected) == 2


def test_only_canaries_that_failed_are_misses(sources):
    tests = {test: ran(sources, ONE) for test in ("failed", "passed", "skipped", "unfinished", "not begun")}
    choice = chosen([*tests], with_run(Record(), tests, HERE, []), sources, canaries=1.0)
    outcomes = {"failed": FAILED, "passed": PASSED, "skipped": SKIPPED, "unfinished": Outcome.NOT_RUN}
    ended = {test: ran(sources, ONE, outcome=outcome) for test, outcome in outcomes.items()}
    assert failed_canaries(choice, ended) == [Miss(test="failed", base="b")]


def test_a_run_replaces_its_tests_and_drops_parts_that_no_test_uses(sources):
    record = with_run(Record(), {"a": ran(sources, ONE), "b": ran(sources, TWO)}, HERE, [])
    record = with_run(record, {"b": ran(sources, ONE)}, {"python": "4"}, [Miss(test="b", base="x")] * 200)
    assert [unit[:2] for unit in record.units] == [ONE]
    assert [record.environments[record.tests[name].environment]["python"] for name in "ab"] == ["3.11.2", "4"]
    assert len(record.misses) == 100


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "damaged"),
        (b'{"version":2,"tests":{"a"', "damaged"),
        (b'{"version":2,"units":7}', "damaged"),
        (b'{"version":2,"tests":{"a":{"units":[3],"outcome":"passed","environment":0}}}', "damaged"),
        (b'{"version":2,"tests":{"a":{"units":[],"outcome":"passed","environment":1}}}', "damaged"),
        (b'{"version":2,"tests":{"a":{"units":[],"outcome":"passed","environment":-1}}}', "damaged"),
        (b"\xff\xfe", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b'{"version":3,"units":"of another kind"}', "of version 3"),
        (b'{"version":1,"tests":{"a":{"units":[],"passed":true,"environment":0}}}', "of an earlier version"),
        (b'{"units":[["lib.py","one",""]]}', "of an earlier version"),
        (b'{"version":2,"project":"example.org/b"}', "of another repository"),
    ],
)
def test_a_record_that_cannot_be_used(tmp_path, content, why):
    path = tmp_path / "record.json"
    path.write_bytes(content)
    record, trouble = read_record(path, "example.org/a")
    assert why in trouble
    assert record == Record(project="example.org/a")


def test_a_record_that_is_missing_or_a_folder(tmp_path):
    assert "there is no record" in read_record(tmp_path / "none.json", "")[1]
    assert "cannot be read: Is a directory" in read_record(tmp_path, "")[1]


def test_a_record_is_replaced_as_a_whole_by_one_writer_at_a_time(tmp_path, sources, monkeypatch):
    path = tmp_path / "record.json"
    path.write_bytes(b"damaged")
    update_record(path, lambda record: with_run(record, {"a": ran(sources, ONE)}, HERE, []), "p")
    update_record(path, lambda record: with_run(record, {"b": ran(sources, ONE)}, HERE, []), "p")
    before = read_record(path, "p")
    assert msgspec.json.decode(path.read_bytes())["version"] == 2
    assert (set(before[0].tests), before[1]) == ({"a", "b"}, "")

    monkeypatch.setattr(records, "LOCK_S", 0.0)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another process has been writing the record"):
        update_record(path, lambda record: record, "p")
    os.close(other)
    assert read_record(path, "p") == before


def test_a_newer_record_is_left_as_it_is(tmp_path):
    path = tmp_path / "record.json"
    path.write_bytes(msgspec.json.encode({"version": 3}))
    with pytest.raises(UsageError, match="of version 3, and this disttest reads 2; it is left as it is"):
        update_record(path, lambda record: record, "")
    assert msgspec.json.decode(path.read_bytes()) == {"version": 3}
