"""Only what earlier runs have left is deleted, and only what is older than the user wants to keep."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from disttest.results import directory, earlier_runs
from disttest.results.directory import claim, no_run_writes, remove_old
from disttest.results.journal import FILE_NAME

DAY_S = 86_400.0


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def ran(results: Path, day: int) -> None:
    """A run that ended on a day, after the earlier ones were kept aside."""
    claim(results).release()
    (results / "logs").mkdir()
    (results / FILE_NAME).write_text('{"event":"run_started"}')
    os.utime(results / FILE_NAME, (day * DAY_S,) * 2)


def asides(results: Path) -> list[str]:
    return sorted(path.name for path in results.parent.iterdir() if path != results)


def no_word(message: str) -> None:
    raise AssertionError(message)


def test_the_newest_stay(results: Path):
    for day in (3, 1, 4, 2):
        ran(results, day)
    remove_old(results, 2, no_word)
    assert asides(results) == ["results-19700104-000000", "results-19700105-000000"]
    remove_old(results, 0, no_word)
    assert asides(results) == [] and (results / FILE_NAME).exists()


def test_those_next_to_the_target_of_a_link(tmp_path: Path):
    (tmp_path / "disk/kept").mkdir(parents=True)
    results = tmp_path / "results"
    results.symlink_to("disk/kept")
    for day in (1, 2, 3):
        ran(results, day)
    remove_old(results, 1, no_word)
    assert asides(tmp_path / "disk/kept") == ["kept-19700103-000000"]
    assert (results / FILE_NAME).exists()


def test_those_of_one_second_are_told_apart(results: Path):
    for _ in range(4):
        ran(results, 1)
    assert asides(results) == [f"results-19700102-000000{more}" for more in ("", "-2", "-3")]
    remove_old(results, 0, no_word)
    assert asides(results) == []


def test_what_a_directory_that_cannot_be_renamed_has_inside(results: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path, target: Path) -> None:
        if path == results:
            raise OSError
        os.rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    for day in (1, 2, 3):
        ran(results, day)
    remove_old(results, 1, no_word)
    assert [path.name for path in (results / "earlier").iterdir()] == ["19700103-000000"]


def test_what_somebody_has_named_or_made_stays(results: Path, tmp_path: Path):
    ran(results, 1)
    mine = ("results-good", "results-19700101-000000", "results-2-19700102-000000", "other-19700102-000000")
    for name in mine:
        shutil.copytree(results, tmp_path / name)
    (tmp_path / "results-19700102-000000").mkdir()
    (tmp_path / "results-19700102-000000/notes.txt").touch()
    (tmp_path / "results-19700102-000000-2").symlink_to(results)
    (tmp_path / "results-19700102-000000-3").touch()
    before = asides(results)

    remove_old(results, 0, no_word)

    assert asides(results) == before
    assert (results / FILE_NAME).exists()


def test_what_is_written_into_stays_for_now(results: Path, tmp_path: Path):
    for day in (1, 2):
        ran(results, day)
    with no_run_writes(tmp_path / "results-19700102-000000"):
        pass  # a report does not keep it for ever
    held = claim_of(tmp_path / "results-19700102-000000")
    remove_old(results, 0, no_word)
    assert asides(results) == ["results-19700102-000000"]
    os.close(held)
    remove_old(results, 0, no_word)
    assert asides(results) == []


def test_what_another_run_deletes_meanwhile_is_no_error(results: Path, monkeypatch: pytest.MonkeyPatch):
    for day in (1, 2, 3):
        ran(results, day)
    gone = "results-19700102-000000"
    journal_of, rmtree = earlier_runs._journal_of, shutil.rmtree

    def deleted_before(path: Path) -> Path | None:
        if path.name == gone:
            rmtree(path)
            raise FileNotFoundError(2, "No such file or directory")
        return journal_of(path)

    def deleted_during(path: Path) -> None:
        rmtree(path)
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(earlier_runs, "_journal_of", deleted_before)
    monkeypatch.setattr(directory.shutil, "rmtree", deleted_during)
    remove_old(results, 0, no_word)
    assert asides(results) == []


def claim_of(path: Path) -> int:
    """A descriptor with the lock of a run."""
    import fcntl

    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def test_what_cannot_be_deleted_is_said(results: Path, monkeypatch: pytest.MonkeyPatch):
    for day in (1, 2, 3):
        ran(results, day)
    deleted, said = [], []

    def rmtree(path: Path) -> None:
        if "0103" in path.name:
            raise PermissionError(13, "Permission denied")
        deleted.append(path.name)

    monkeypatch.setattr(directory.shutil, "rmtree", rmtree)
    remove_old(results, 0, said.append)

    assert deleted == ["results-19700102-000000"]
    assert said == [f"{results}-19700103-000000 cannot be deleted (--keep-results 0): Permission denied"]
