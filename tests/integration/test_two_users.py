"""Two users on one machine: neither touches, loses or reads what is the other's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Lab
from strangers import STRANGER, as_stranger, open_folder

# Leaves files behind that nobody has open, and ends when it is told to.
STAYS = """
    import os, pathlib, time, pytest

    @pytest.mark.world_size(2)
    def test_stays(world):
        name = f"two-users-{os.environ['WHO']}-{world.rank}"
        left = [pathlib.Path("/dev/shm", name), pathlib.Path(os.environ["TMPDIR"], name)]
        for path in left:
            path.write_text("mine")
        pathlib.Path(f"up-{name}").touch()
        while not pathlib.Path("other-has-ended").exists():
            time.sleep(0.02)
        assert [path.read_text() for path in left] == ["mine", "mine"]
        for path in left:
            path.unlink()
"""
ENDS = """
    import os, pathlib, pytest

    @pytest.mark.world_size(2)
    def test_ends(world):
        pathlib.Path("/dev/shm", f"two-users-{os.environ['WHO']}-{world.rank}").write_text("theirs")
"""


@pytest.fixture
def shared() -> Iterator[Lab]:
    with open_folder() as folder:
        yield Lab(folder)
    for path in Path("/dev/shm").glob("two-users-*"):
        path.unlink()


def wait_for(*paths: Path) -> None:
    deadline_s = time.monotonic() + 120
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline_s, paths
        time.sleep(0.02)


@pytest.mark.parametrize("long_one", ["root", "stranger"])
def test_runs_side_by_side_leave_each_other_alone(shared: Lab, long_one: str) -> None:
    """The same folder, TMPDIR and shared memory; one run begins and ends while the other is at it."""
    users: dict[str, list[str]] = {"root": [], "stranger": as_stranger(starts_others=True)}
    short_one = "stranger" if long_one == "root" else "root"
    shared.write(test_stays=STAYS, test_ends=ENDS)

    def environ(who: str) -> dict[str, str]:
        home = shared.folder / f"home-{who}"
        home.mkdir()
        os.chown(home, STRANGER if who == "stranger" else 0, -1)
        return {"WHO": who, "TMPDIR": str(shared.folder), "HOME": str(home)}

    def arguments(who: str, name: str) -> tuple[str, ...]:
        return (name, "--results", f"results-{who}", "--", "-p", "no:cacheprovider")

    stays = shared.start(*arguments(long_one, "test_stays.py"), wrapper=users[long_one], **environ(long_one))
    wait_for(*(shared.folder / f"up-two-users-{long_one}-{rank}" for rank in range(2)))
    ends = shared.run(*arguments(short_one, "test_ends.py"), wrapper=users[short_one], **environ(short_one))
    (shared.folder / "other-has-ended").touch()
    output, _ = stays.communicate(timeout=120)

    assert (ends.exit_code, stays.returncode) == (0, 0), ends.output + output
    for who, other in ((long_one, short_one), (short_one, long_one)):
        results = shared.folder / f"results-{who}"
        assert results.stat().st_uid == (STRANGER if who == "stranger" else 0)
        assert f"two-users-{other}" not in (results / "events.jsonl").read_text()


def test_results_of_another_user(shared: Lab) -> None:
    """They can be read and merged where their mode allows it, and never be written into."""
    stranger, tmp = as_stranger(starts_others=True), str(shared.folder)
    shared.write(
        test_good="import pytest\n\n@pytest.mark.world_size(1)\ndef test_good(world):\n    print('said')\n"
    )
    assert shared.run("test_good.py", TMPDIR=tmp).exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in (shared.folder / "results").rglob("*")}
    quiet = ("--", "-p", "no:cacheprovider")

    taken = shared.run("test_good.py", "--results", "results", *quiet, wrapper=stranger, TMPDIR=tmp, HOME=tmp)
    report = shared.run("report", "results", wrapper=stranger, TMPDIR=tmp, HOME=tmp)
    merged = shared.run("merge", "results", "--results", "merged", wrapper=stranger, TMPDIR=tmp, HOME=tmp)

    assert taken.exit_code == 4, taken.output
    assert "cannot be used: Permission denied" in taken.output
    assert report.exit_code == 3, report.output
    assert "could not write results.json: PermissionError" in report.output
    assert merged.exit_code == 0, merged.output
    (log,) = (shared.folder / "merged").glob("logs/*/*rank0.log")
    assert "said" in log.read_text()
    assert not any("Traceback" in ended.output for ended in (taken, report, merged))
    assert before == {path: path.stat().st_mtime_ns for path in (shared.folder / "results").rglob("*")}
