"""A lease directory among users who do not trust each other: nothing in it leads to a file elsewhere."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from strangers import STRANGER, as_stranger, open_folder

from disttest.errors import UsageError
from disttest.plugins.gpus.leases.lockfiles import (
    Holder,
    LockDirectory,
    join_queue,
    leave_queue,
    tickets_ahead,
)
from disttest.plugins.gpus.leases.quarantine import QuarantineNotes
from disttest.plugins.gpus.leases.shared_folder import SharedFolder

ADVICE = "Set DISTTEST_LEASE_DIR to a directory for leases only that all runners of this host can write to (chmod 1777)."
IMPORTS = """
import sys
from pathlib import Path
from disttest.errors import *
from disttest.plugins.gpus.leases.lockfiles import *
from disttest.plugins.gpus.leases.quarantine import *
from disttest.plugins.gpus.leases.lockfiles import *
path = Path(sys.argv[1])
"""


def as_another(program: str, *arguments: object) -> str:
    """What a program prints that another user runs."""
    done = subprocess.run(
        [*as_stranger(), sys.executable, "-c", IMPORTS + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def open_tmp() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_directory_with_other_files_is_refused_and_keeps_its_mode(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / ".bashrc").write_text("secret")

    with pytest.raises(UsageError) as refused:
        LockDirectory(home)

    assert str(refused.value) == (
        f"the lease directory {home} cannot be used: it contains files that are not leases ('.bashrc'). {ADVICE}"
    )
    assert mode(home) == 0o700
    assert [path.name for path in home.iterdir()] == [".bashrc"]


def test_an_empty_directory_is_used_as_it_is(tmp_path):
    (tmp_path / "leases").mkdir(mode=0o750)

    assert LockDirectory(tmp_path / "leases").try_lock("one.lock")
    assert mode(tmp_path / "leases") == 0o750


def test_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "leases").symlink_to("elsewhere")
    (tmp_path / "dangling").symlink_to("nowhere")

    for name in ("leases", "dangling"):
        with pytest.raises(UsageError, match="it is a symbolic link"):
            LockDirectory(tmp_path / name)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_in_which_everybody_can_replace_files_is_refused(tmp_path):
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases").chmod(0o777)

    with pytest.raises(UsageError, match="its mode lacks the sticky bit"):
        LockDirectory(tmp_path / "leases")


def test_a_directory_of_somebody_else_alone_is_refused(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    (tmp_path / "leases").mkdir(mode=0o755)
    os.chown(tmp_path / "leases", STRANGER, STRANGER)

    with pytest.raises(UsageError, match=f"it belongs to user {STRANGER} alone"):
        LockDirectory(tmp_path / "leases")


@pytest.mark.parametrize("plant", ["link", "dangling", "hard link", "pipe", "folder"])
@pytest.mark.parametrize("name", ["gate", "GPU-1.lock", "GPU-1.quarantine"])
def test_what_is_planted_leads_to_no_file_elsewhere(tmp_path, plant, name):
    LockDirectory(tmp_path / "leases")
    victim, planted = tmp_path / "victim", tmp_path / "leases" / name
    victim.write_text("years of work")
    planted.unlink(missing_ok=True)
    {
        "link": lambda: planted.symlink_to(victim),
        "dangling": lambda: planted.symlink_to(tmp_path / "new"),
        "hard link": lambda: planted.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(planted),
        "folder": planted.mkdir,
    }[plant]()

    try:
        directory = LockDirectory(tmp_path / "leases")
    except UsageError as error:
        assert name == "gate"
        assert "leases cannot be used: gate: " in str(error)
    else:
        assert directory.try_lock("GPU-1.lock") is None or name != "GPU-1.lock"
        assert directory.read("GPU-1.lock") == Holder()
        notes = QuarantineNotes(tmp_path / "leases")
        notes.add("GPU-1", "bad")
        assert set(notes.active()) == {"GPU-1"}
        assert notes.lift("GPU-1")
    assert victim.read_text() == "years of work"
    assert not (tmp_path / "new").exists()


def test_a_note_is_never_written_through_a_link_with_a_name_that_can_be_guessed(tmp_path):
    LockDirectory(tmp_path / "leases")
    victim = tmp_path / "victim"
    victim.write_text("years of work")
    (tmp_path / "leases" / f".GPU-1.{os.getpid()}").symlink_to(victim)

    QuarantineNotes(tmp_path / "leases").add("GPU-1", "bad")

    assert victim.read_text() == "years of work"


def test_two_users_share_a_directory(open_tmp):
    """Whoever comes first makes it; locks, notes and the line are for both, files of either stay his."""
    leases = open_tmp / "leases"
    as_another(
        """
directory = LockDirectory(path)
directory.try_lock("GPU-1.lock").sign(Holder(pid=7, who="theirs"))
join_queue(directory, Holder(pid=7, who="theirs"))
QuarantineNotes(path).add("GPU-2", "theirs")
""",
        leases,
    )
    assert (mode(leases), leases.stat().st_uid) == (0o1777, STRANGER)

    directory = LockDirectory(leases)
    lock, ticket = directory.try_lock("GPU-1.lock"), join_queue(directory, Holder(pid=8, who="ours"))
    QuarantineNotes(leases).add("GPU-2", "ours")

    assert lock is not None
    assert tickets_ahead(directory, ticket) == ()  # theirs is dead
    lock.sign(Holder(pid=8, who="ours"))
    told = as_another(
        """
directory = LockDirectory(path)
assert directory.try_lock("GPU-1.lock") is None
print(directory.read("GPU-1.lock").who)
mine = join_queue(directory, Holder(pid=9))
print(tickets_ahead(directory, mine))
print(sorted(QuarantineNotes(path).active()))
""",
        leases,
    ).splitlines()
    assert told == ["ours", f"('{ticket.name}',)", "['GPU-2']"]
    leave_queue(directory, ticket)
    assert QuarantineNotes(leases).lift("GPU-2")


def test_a_note_of_another_user_stays(open_tmp):
    leases = open_tmp / "leases"
    QuarantineNotes(leases).add("GPU-2", "bad")

    program = """
notes = QuarantineNotes(path)
print(notes.lift("GPU-2"), sorted(notes.active()))
"""
    assert as_another(program, leases) == "False ['GPU-2']\n"


def test_a_dead_ticket_of_another_user_is_passed_over(open_tmp):
    """In a sticky directory it cannot be removed."""
    leases = open_tmp / "leases"
    directory = LockDirectory(leases)
    dead = join_queue(directory, Holder(pid=8))
    dead.release()

    told = as_another(
        """
directory = LockDirectory(path)
mine = join_queue(directory, Holder(pid=9))
print(mine.name, tickets_ahead(directory, mine))
""",
        leases,
    )

    assert told == "000000000002.ticket ()\n"


def test_files_that_their_owner_hides_cost_gpus_and_nothing_else(open_tmp):
    leases = open_tmp / "leases"
    LockDirectory(leases)
    for name in ("GPU-1.lock", "000000000001.ticket", "GPU-2.quarantine"):
        (leases / name).touch(mode=0o600)
        (leases / name).chmod(0o600)

    told = as_another(
        """
directory = LockDirectory(path)
mine = join_queue(directory, Holder(pid=9))
print(directory.try_lock("GPU-1.lock"), tickets_ahead(directory, mine), QuarantineNotes(path).active())
""",
        leases,
    )

    assert told == "None () {}\n"


def test_a_lock_whose_maker_died_before_it_was_for_all_works(open_tmp):
    leases = open_tmp / "leases"
    LockDirectory(leases)
    (leases / "GPU-1.lock").touch(mode=0o644)

    program = """
lock = LockDirectory(path).try_lock("GPU-1.lock")
lock.sign(Holder(pid=9))
print("held")
"""
    assert as_another(program, leases) == "held\n"


def test_who_may_not_write_is_told(open_tmp):
    leases = open_tmp / "leases"
    leases.mkdir(mode=0o755)
    LockDirectory(leases)

    program = """
try:
    LockDirectory(path)
except UsageError as error:
    print(error)
"""
    assert as_another(program, leases) == (
        f"the lease directory {leases} cannot be used: Permission denied. {ADVICE}\n"
    )


def test_numbers_and_texts_of_others_are_bounded(tmp_path):
    directory = LockDirectory(tmp_path / "leases")
    leases = tmp_path / "leases"
    (leases / "999999999999.ticket").touch()
    (leases / "².ticket").touch()
    (leases / ("9" * 200 + ".ticket")).touch()
    (leases / "GPU-1.lock").write_text(
        '{"pid": 3, "who": "a\\n::set-output name=x::y\\u001b[2J", "since_s": -1e300}'
    )
    (leases / "a.quarantine").write_text("x" * 100_000)
    (leases / "b.quarantine").write_text("[" * 60_000)

    tickets = [join_queue(directory, Holder(pid=1)) for _ in range(3)]

    assert len({ticket.name for ticket in tickets}) == 3
    assert directory.read("GPU-1.lock").who == "a?::set-output name=x::y?[2J"
    assert QuarantineNotes(leases).active() == {}


def test_runs_that_make_it_at_the_same_moment_get_the_same(tmp_path):
    racers = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from pathlib import Path; from disttest.plugins.gpus.leases.lockfiles import LockDirectory\n"
                "print('ready', flush=True); sys.stdin.readline()\n"
                "for name in sys.argv[1:]:\n    assert LockDirectory(Path(name)).try_lock('mine' + name[-1:]) or True",
                *(str(tmp_path / f"leases-{number}") for number in range(50)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()

    assert [(racer.communicate(timeout=60)[1], racer.returncode) for racer in racers] == [("", 0)] * 2
    assert {mode(path) for path in tmp_path.iterdir()} == {0o1777}
    assert len(list(tmp_path.iterdir())) == 50


def test_the_gate_of_a_directory_is_one_file(tmp_path):
    """Two runs that open the directory lock the same file."""
    first, second = SharedFolder(tmp_path / "leases"), SharedFolder(tmp_path / "leases")
    held = first.open("gate")
    fcntl.flock(held, fcntl.LOCK_EX)

    with pytest.raises(BlockingIOError):
        fcntl.flock(second.open("gate"), fcntl.LOCK_EX | fcntl.LOCK_NB)
