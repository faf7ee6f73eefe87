"""Whose a file in shared memory is, with real processes that make, open, map and leave files in a real /dev/shm."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid as uuids
from pathlib import Path

import psutil
import pytest

from disttest.plugins.leftovers import segments
from disttest.plugins.leftovers.segments import LEDGER, Made, Segments, ShmWatch, remove_made, take_ledger

SHM = Path("/dev/shm")


@pytest.fixture
def name():
    chosen = f"disttest-watch-{uuids.uuid4().hex}"
    yield chosen
    for path in SHM.glob(f"*{chosen}*"):
        path.unlink()


@pytest.fixture
def watch():
    made = ShmWatch()
    yield made
    made.close()


class Process:
    """Does what it is told, line by line."""

    LOOP = "import sys\nfor line in sys.stdin:\n    exec(line)\n    print('done', flush=True)"

    def __init__(self, *wrapper):
        self._process = subprocess.Popen(
            [*wrapper, sys.executable, "-c", self.LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def do(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def end(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start():
    processes = []

    def make(*wrapper):
        processes.append(Process(*wrapper))
        return processes[-1]

    yield make
    for process in processes:
        process.end()


def names(entries):
    return [entry.name for entry in entries]


def made_by(watch, *processes):
    watch.has_news()
    return names(watch.made_by(lambda: [process.pid for process in processes]))


MAKE = "f = open('/dev/shm/{}', 'x+b'); f.write(b'x' * 4096); f.flush()"
MAP = "import mmap; f = open('/dev/shm/{}', 'x+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); f.close()"


@pytest.mark.parametrize("act", [MAKE, MAP])
def test_who_made_it_has_it_in_hand(watch, name, start, act):
    ours, other = start(), start()
    ours.do(act.format(name))

    assert made_by(watch, ours, other) == [name]


def test_what_another_process_has_made_is_not_ours(watch, name, start):
    ours, other = start(), start()
    other.do(MAKE.format(name))

    assert made_by(watch, ours) == []


def test_not_even_if_ours_has_opened_it_and_its_maker_has_let_go(watch, name, start):
    """A server leaves a file for its client: the client has it in hand, as the only one."""
    ours, other = start(), start()
    other.do(MAKE.format(name) + "; f.close()")
    ours.do(f"f = open('/dev/shm/{name}', 'r+b')")

    assert made_by(watch, ours) == []


@pytest.fixture
def small(tmp_path):
    """A folder in memory of its own, whose first file has the number that the first file of any has."""
    folder = tmp_path / "shm"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts take root")
def test_a_file_of_another_container_is_another_file_whatever_its_number(small, start):
    """Each container has a /dev/shm of its own, at the same place."""
    ours = start()
    inside = f'mount -t tmpfs tmpfs "{small}" && exec "$@"'
    theirs = start("unshare", "--mount", "sh", "-c", inside, "sh")
    watch = ShmWatch(small)
    for process in (ours, theirs):
        process.do(f"import os; f = open('{small}/one', 'x+b'); os.write(f.fileno(), b'x')")

    (number,) = {os.stat(f"/proc/{each.pid}/fd/3").st_ino for each in (ours, theirs)}
    assert number == (small / "one").stat().st_ino
    assert made_by(watch, ours) == ["one"]
    watch.close()


def test_a_child_that_was_forked_while_we_looked_is_no_stranger(watch, name, start):
    ours = start()
    ours.do(MAKE.format(name))
    ours.do("import subprocess; child = subprocess.Popen(['sleep', '600'], pass_fds=[f.fileno()])")
    (child,) = psutil.Process(ours.pid).children()
    looks = iter([[ours.pid], [ours.pid, child.pid]])
    watch.has_news()

    try:
        assert names(watch.made_by(lambda: next(looks))) == [name]
    finally:
        child.kill()


def test_what_was_written_and_closed_is_nobodys(watch, name, start):
    ours = start()
    ours.do(MAKE.format(name) + "; f.close()")

    assert made_by(watch, ours) == []


def test_a_copy_of_somebody_else_is_not_ours(watch, name):
    subprocess.run(["cp", __file__, SHM / name], check=True)

    assert names(watch.made_by(lambda: [os.getpid()])) == []


def test_not_even_if_both_have_it_in_hand(watch, name, start):
    """The kernel merges equal events in a row: that it was opened twice is not to be seen."""
    ours, other = start(), start()
    other.do(f"f = open('/dev/shm/{name}', 'xb')")
    ours.do(f"f = open('/dev/shm/{name}', 'r+b')")

    assert made_by(watch, ours) == []


CREATE = "import os; os.mknod('/dev/shm/{}', 0o600)"
OPEN = "f = open('/dev/shm/{}', 'r+b')"


def test_a_file_that_is_seen_before_its_maker_has_opened_it_is_checked_again(watch, name, start):
    """The kernel reports the two steps of open(O_CREAT) one after the other; here they are two calls."""
    ours = start()
    ours.do(CREATE.format(name))
    assert made_by(watch, ours) == []

    ours.do(OPEN.format(name))
    assert made_by(watch, ours) == [name]
    assert made_by(watch, ours) == []


def test_not_if_another_process_opens_it_then(watch, name, start):
    ours, other = start(), start()
    other.do(CREATE.format(name))
    assert made_by(watch, ours) == []

    other.do(OPEN.format(name) + "; f.close()")
    ours.do(OPEN.format(name))
    assert made_by(watch, ours) == []


def test_not_if_it_is_opened_much_later(watch, name, start, monkeypatch):
    monkeypatch.setattr(segments, "SHM_OPENED_S", 0.0)
    ours = start()
    ours.do(CREATE.format(name))
    assert made_by(watch, ours) == []

    ours.do(OPEN.format(name))
    assert made_by(watch, ours) == []


def test_a_pid_in_its_name_says_it(watch, name, start):
    ours = start()
    shm = f"torch_{ours.pid}_{name}"
    ours.do(MAKE.format(shm) + "; f.close()")

    assert made_by(watch, ours) == [shm]


def test_even_while_somebody_else_has_it_open(watch, name, start):
    """Who is named has made it; it stays as long as it is in use."""
    ours, other = start(), start()
    shm = f"torch_{ours.pid}_{name}"
    ours.do(MAKE.format(shm))
    other.do(f"f = open('/dev/shm/{shm}', 'r+b')")

    watch.has_news()
    made = watch.made_by(lambda: [ours.pid])

    assert names(made) == [shm]
    ours.end()
    assert list(remove_made([Made(entry=each, nodeid="t") for each in made])) == []
    assert (SHM / shm).exists()


def test_another_process_name_does_not(watch, name, start):
    ours, other = start(), start()
    other.do(MAKE.format(f"torch_{other.pid}_{name}"))

    assert made_by(watch, ours) == []


def test_where_processes_are_out_of_sight_nothing_is_ours(name, start, monkeypatch):
    monkeypatch.setattr("disttest.plugins.leftovers.segments.sees_all_users", lambda: False)
    blind, ours = ShmWatch(), start()
    ours.do(MAKE.format(f"torch_{ours.pid}_{name}"))

    assert made_by(blind, ours) == []


def test_a_semaphore_is_not_of_who_opens_it_first(watch, name, start):
    """As in glibc's sem_open: nobody sees a semaphore before it is initialised."""
    ours, other = start(), start()
    link = f"; os.link('/dev/shm/{name}', '/dev/shm/sem.mp-{name}'); os.unlink('/dev/shm/{name}')"
    ours.do("import os; " + MAP.format(name) + link)
    other.do(f"f = open('/dev/shm/sem.mp-{name}', 'r+b')")

    assert made_by(watch, other) == []


def test_a_semaphore_is_its_makers(watch, name, start):
    ours = start()
    link = f"; os.link('/dev/shm/{name}', '/dev/shm/sem.mp-{name}'); os.unlink('/dev/shm/{name}')"
    ours.do("import os; " + MAP.format(name) + link)

    assert made_by(watch, ours) == [f"sem.mp-{name}"]


def test_news_that_comes_while_it_looks_is_looked_at_next(watch, name, start, monkeypatch):
    ours = start()
    look = watch._is_makers

    def slow_look(*facts):
        ours.do(MAKE.format(name + "-later").replace("f =", "g =").replace("f.", "g."))
        watch._take_news()
        monkeypatch.undo()
        return look(*facts)

    ours.do(MAKE.format(name))
    monkeypatch.setattr(watch, "_is_makers", slow_look)

    assert made_by(watch, ours) == [name]
    assert made_by(watch, ours) == [name + "-later"]


def test_listing_the_folder_loses_nothing(watch, name, start):
    ours = start()
    ours.do(MAKE.format(name))
    os.listdir(SHM)

    assert made_by(watch, ours) == [name]


def test_a_killed_worlds_files_are_removed_by_whoever_is_left(tmp_path, name):
    segments = Segments(lambda: tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", MAKE.format(name) + "; print('ready', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    child.stdout.readline()
    segments.look("test_x", at_once=True)
    child.kill()
    child.communicate()

    (tmp_path / LEDGER).open("ab").write(b'{"entry": {"na')  # its last line may be cut
    made = take_ledger(tmp_path)

    assert [(each.entry.name, each.nodeid) for each in made] == [(name, "test_x")]
    assert not (tmp_path / LEDGER).exists()
    words = f"shared memory {name} (4096 bytes) was left by test_x; it was removed"
    assert list(remove_made(made)) == [("test_x", words)]
    assert not (SHM / name).exists()
    assert list(segments.clean()) == []


def test_what_somebody_uses_still_stays(name, start):
    other = start()
    other.do(MAKE.format(name))
    facts = (SHM / name).stat()
    from disttest.plugins.leftovers.shared_memory import scan_entry

    assert facts.st_size == 4096
    assert list(remove_made([Made(entry=scan_entry(SHM / name), nodeid="t")])) == []
    assert (SHM / name).exists()


def test_without_a_watch_nothing_is_ours(watch, name, start, monkeypatch):
    monkeypatch.setattr("disttest.plugins.leftovers.segments._watch", lambda _: -1)
    blind, ours = ShmWatch(), start()
    ours.do(MAKE.format(name))

    assert blind.fileno() == -1
    assert made_by(blind, ours) == []
