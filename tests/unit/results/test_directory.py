"""One run, one results directory: who may claim it, who is told what, and what becomes of it when somebody removes it."""

import errno
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from disttest.errors import JournalError, UsageError
from disttest.results.directory import DirectoryInUse, claim, claim_default, no_run_writes
from disttest.results.earlier_runs import BEFORE, IGNORED, PROBE
from disttest.results.events import Noted
from disttest.results.journal import FILE_NAME, Journal, read_events

HELLO = Noted(at_s=1.0, message="hello")


def begun(name):
    """The first line of a journal."""
    return json.dumps({"event": "run_started", "run_id": name}, separators=(",", ":"))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def held(tmp_path):
    """A directory with the journal of a run that goes on."""
    directory = claim(tmp_path / "results")
    journal = Journal(directory.path / FILE_NAME)
    journal.append(HELLO)
    yield directory, journal
    journal.close()
    directory.release()


def test_a_directory_that_a_run_holds_is_refused_with_the_holder(held):
    directory, _ = held

    with pytest.raises(DirectoryInUse) as refused:
        claim(directory.path)

    assert str(refused.value) == (
        f"results directory {directory.path} is in use by another run (pid {os.getpid()}): "
        "wait until it has ended, or choose another with --results"
    )
    assert [HELLO] == list(read_events(directory.path / FILE_NAME))


def test_the_next_name_is_taken_where_that_was_asked_for(held):
    directory, _ = held
    said = []
    second, third = (claim_default(said.append) for _ in range(2))

    assert said == [
        f"results is in use by another run (pid {os.getpid()}): this run writes into results-{number}"
        for number in (2, 3)
    ]
    assert ["results-2", "results-3"] == [second.path.name, third.path.name]
    assert [HELLO] == list(read_events(directory.path / FILE_NAME))
    second.release()
    third.release()


def test_names_with_files_of_others_are_passed_over(held, tmp_path):
    (tmp_path / "results-2").mkdir()
    (tmp_path / "results-2" / "thesis.tex").touch()

    third = claim_default(lambda _: None)

    assert "results-3" == third.path.name
    third.release()


@pytest.mark.parametrize("text", ['{"loss": 1}\n', ""])
def test_a_folder_with_events_of_another_program_is_refused(tmp_path, text):
    """It was renamed, and deleted by the run after the next."""
    results = tmp_path / "results"
    results.mkdir()
    (results / FILE_NAME).write_text(text)
    (results / "checkpoint.bin").touch()

    with pytest.raises(UsageError, match="contains files that are not from a disttest run"):
        claim(results)


def test_results_of_a_run_that_was_killed_at_once_are_kept_aside(tmp_path):
    directory = claim(tmp_path / "results")
    (directory.path / FILE_NAME).touch()
    (directory.path / "plan.json").touch()
    directory.release()

    claim(tmp_path / "results").release()

    assert 1 == len([*tmp_path.glob("results-*/plan.json")])


def test_foreign_files_are_refused_even_where_the_next_name_would_do(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "thesis.tex").touch()

    with pytest.raises(UsageError, match="contains files that are not from a disttest run"):
        claim_default(print)


def test_a_disk_that_was_full_leaves_no_file_that_a_later_run_refuses(tmp_path, monkeypatch):
    results = tmp_path / "results"

    def write(path, _data):
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(type(results), "write_bytes", write)
        with pytest.raises(JournalError):
            claim(results)

    assert [] == [*results.iterdir()]
    claim(results).release()


def test_the_probe_of_a_command_that_was_killed_is_not_a_file_of_others(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / PROBE).touch()

    claim(tmp_path / "results").release()

    assert [IGNORED] == [path.name for path in (tmp_path / "results").iterdir()]


def test_a_run_that_came_no_further_than_the_one_before_it_is_kept_aside(tmp_path):
    before = tmp_path / "results" / BEFORE
    before.mkdir(parents=True)
    (before / FILE_NAME).write_text("")

    claim(tmp_path / "results").release()

    assert [IGNORED] == [path.name for path in (tmp_path / "results").iterdir()]
    assert len([*tmp_path.glob(f"results-*/{BEFORE}/{FILE_NAME}")]) == 1


def test_results_of_runs_in_a_directory_of_others_are_left_where_they_are(tmp_path):
    for name in (BEFORE, "shard-1"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / FILE_NAME).write_text("")

    with pytest.raises(UsageError, match="contains files that are not from a disttest run"):
        claim(tmp_path / "results")


@pytest.mark.slow("fifty races of ten threads")
def test_what_is_claimed_at_the_same_moment_is_claimed_once(tmp_path):
    """Ten at a time, on top of an earlier run each time."""
    for _ in range(50):
        with ThreadPoolExecutor(10) as pool:
            claimed = list(pool.map(lambda _: claim_default(len), range(10)))
        for directory in claimed:
            (directory.path / FILE_NAME).write_text(begun(directory.path.name))
        assert len({directory.path for directory in claimed}) == 10
        assert "results" in {directory.path.name for directory in claimed}
        for directory in claimed:
            assert {FILE_NAME, IGNORED} == {path.name for path in directory.path.iterdir()}
            directory.release()
    assert 500 == sum(1 for _ in tmp_path.glob(f"*/{FILE_NAME}"))


def test_a_link_to_another_disk_stays_one(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    first = claim(tmp_path / "results")
    (first.path / FILE_NAME).write_text(begun("first"))
    first.release()

    second = claim(tmp_path / "results")

    assert (tmp_path / "results").is_symlink()
    assert [IGNORED] == [path.name for path in (tmp_path / "disk").iterdir()]
    assert [begun("first")] == [(path / FILE_NAME).read_text() for path in tmp_path.glob("disk-*")]
    second.release()


def test_a_directory_that_was_removed_comes_back_under_its_name(held):
    directory, journal = held
    log = "logs/a/rank0.log"
    shutil.rmtree(directory.path)
    later = directory.home.now() / log
    later.parent.mkdir(parents=True)
    later.write_text("said later")

    note = directory.restore(journal)

    assert note.startswith("the results directory was removed while the run wrote into it: ")
    assert [HELLO] == list(read_events(directory.path / FILE_NAME))
    assert "said later" == (directory.path / log).read_text()
    assert directory.home.now() == directory.path
    assert ["results"] == [path.name for path in directory.path.parent.iterdir()]
    assert "" == directory.restore(journal)


def test_a_directory_that_another_run_has_taken_meanwhile_is_left_to_it(held):
    directory, journal = held
    path = directory.path
    shutil.rmtree(path)
    other = claim(path)
    (path / FILE_NAME).write_text("of the other run")

    assert directory.home.now() == path.with_name(f"results-{os.getpid()}")
    note = directory.restore(journal)

    assert note.endswith(
        f"and {path} no longer belongs to this run: journal and reports are in {path}-{os.getpid()}, "
        "the logs of the ranks up to then are lost"
    )
    assert "of the other run" == (path / FILE_NAME).read_text()
    assert [HELLO] == list(read_events(directory.path / FILE_NAME))
    with pytest.raises(DirectoryInUse):
        claim(directory.path)
    other.release()


def test_a_file_in_the_place_of_the_directory_stays_one(held):
    directory, journal = held
    path = directory.path
    shutil.rmtree(path)
    path.write_text("not yours")

    assert f"{path} no longer belongs to this run" in directory.restore(journal)
    assert "not yours" == path.read_text()
    assert [HELLO] == list(read_events(directory.path / FILE_NAME))


def test_a_journal_of_others_in_the_directory_is_not_written(held):
    directory, journal = held
    journal.path.unlink()
    journal.path.write_text("of somebody else")

    assert "cannot be restored: File exists" in directory.restore(journal)
    assert "of somebody else" == journal.path.read_text()
    assert [HELLO] == list(journal.events())


def test_a_directory_that_can_not_come_back_is_a_note(held):
    directory, journal = held
    shutil.rmtree(directory.path.parent)
    directory.path.parent.write_text("a file")

    assert "cannot be restored: " in directory.restore(journal)
    directory.path.parent.unlink()


def test_reports_are_not_written_while_a_run_goes_on(held):
    directory, _ = held
    with pytest.raises(DirectoryInUse), no_run_writes(directory.path):
        pass
    directory.release()
    with no_run_writes(directory.path), no_run_writes(directory.path), pytest.raises(DirectoryInUse):
        claim(directory.path)


@pytest.mark.parametrize("renamed", [True, False])
def test_the_results_before_come_back_in_the_place_of_an_empty_run(tmp_path, monkeypatch, renamed):
    results = tmp_path / "results"
    claim(results).release()
    (results / "logs").mkdir()
    (results / FILE_NAME).write_text(begun("before"))
    if not renamed:
        monkeypatch.setattr(
            type(results), "rename", lambda path, to: fail() if path == results else os.rename(path, to)
        )

    empty = claim(results)
    (results / FILE_NAME).write_text(begun("empty"))
    (results / "report.html").touch()
    empty.put_back_earlier()

    assert {FILE_NAME, IGNORED, "logs"} == {path.name for path in results.iterdir()} - {"earlier"}
    assert begun("before") == (results / FILE_NAME).read_text()
    assert "*\n" == (results / IGNORED).read_text()
    assert [] == [*tmp_path.glob("results-*"), *results.glob("earlier/*")]
    with pytest.raises(DirectoryInUse):
        claim(results)
    empty.release()


def test_results_kept_inside_come_back_with_the_results_before(tmp_path):
    results = tmp_path / "results"
    older = results / "earlier/20250101-000000" / FILE_NAME
    older.parent.mkdir(parents=True)
    older.write_text(begun("older"))
    (results / FILE_NAME).write_text(begun("before"))

    empty = claim(results)
    (results / FILE_NAME).write_text(begun("empty"))
    empty.put_back_earlier()
    empty.release()

    assert begun("older") == older.read_text()
    assert begun("before") == (results / FILE_NAME).read_text()
    assert [results] == [*tmp_path.iterdir()]


def fail():
    raise OSError
