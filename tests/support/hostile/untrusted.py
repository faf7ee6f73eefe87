"""Folders and files that somebody else has made or can write to."""

from __future__ import annotations

import os
import stat

from lab import Lab

from hostile import Trial

FAILS = """
    import pytest
    @pytest.mark.world_size(1)
    def test_fails(world):
        raise ValueError("no")
"""
SECRET = "words of somebody else"


def _merge_leaves_other_files_alone(lab: Lab) -> None:
    elsewhere = lab.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "rank0.log").write_text(SECRET)
    lab.write(test_fails=FAILS).run("test_fails.py")
    (log,) = (lab.folder / "results").glob("logs/*/attempt-1/rank0.log")
    log.unlink()
    log.parent.rmdir()
    log.parent.symlink_to(elsewhere)

    for command in (
        ("merge", "results", "--results", "merged"),
        ("report", "results"),
        ("explain", "results"),
    ):
        ended = lab.run(*command)
        assert SECRET not in ended.output, f"{command} shows a file that is not of the run"

    assert (elsewhere / "rank0.log").stat().st_nlink == 1, "a file that is not of the run was linked"
    for folder in ("merged", "results"):
        for path in (lab.folder / folder).rglob("*"):
            if path.is_file() and elsewhere not in path.resolve().parents:
                assert SECRET not in path.read_text(errors="replace"), path


def _pipes_are_no_results(lab: Lab) -> None:
    results = lab.folder / "results"
    results.mkdir()
    os.mkfifo(results / "events.jsonl")

    for command in ("report", "explain", "merge"):
        ended = lab.run(command, "results", limit_s=60)
        assert ended.exit_code != 0, ended.output
        assert "Traceback" not in ended.output, ended.output
        assert "not a regular file" in ended.output or command == "merge", ended.output


def _a_home_is_no_lease_directory(lab: Lab) -> None:
    home = lab.folder / "home"
    home.mkdir(mode=0o700)
    (home / ".bashrc").write_text(SECRET)

    ended = lab.run("doctor", "--lease-dir", str(home))

    assert ended.exit_code == 4, ended.output
    assert "it contains files that are not leases" in ended.output
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert [path.name for path in home.iterdir()] == [".bashrc"]


TRIALS = (
    Trial(
        id="log-folder-is-a-link",
        claim="Files elsewhere reach no report, no merge and no explanation through a link in the results.",
        run=_merge_leaves_other_files_alone,
    ),
    Trial(
        id="journal-is-a-pipe",
        claim="Nobody waits for the writer of a pipe that stands in the place of a journal.",
        run=_pipes_are_no_results,
    ),
    Trial(
        id="lease-directory-is-a-home",
        claim="A directory with other files is refused as a lease directory, and keeps its mode.",
        run=_a_home_is_no_lease_directory,
    ),
)
