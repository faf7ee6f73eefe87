from __future__ import annotations

import gc
import mmap
import os
import re
from pathlib import Path

import pytest

from disttest.host import fork_memory

MAPS = """\
00400000-00401000 rw-p 00000000 00:00 0 
55d000100000-55d000900000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
7f0000400000-7f0000800000 r--p 00000000 00:00 0 
7f0000800000-7f0000c00000 rw-p 00000000 08:01 77                         /usr/lib/libtorch.so
7f0000c00000-7f0001000000 rw-s 00000000 00:01 9                          /memfd:board (deleted)
7ffd00000000-7ffd00400000 rw-p 00000000 00:00 0                          [stack]
"""  # noqa: W291  # as the kernel writes it


def test_only_private_memory_of_no_file_is_taken_and_only_whole_huge_pages():
    found = [(hex(start), hex(end)) for start, end in fork_memory._regions(MAPS)]
    assert found == [("0x55d000200000", "0x55d000800000"), ("0x7f0000000000", "0x7f0000400000")]


@pytest.mark.slow("a collapse of 16 MiB into huge pages")
@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", Path("/proc/sys/kernel/osrelease").read_text())[:2])) < (6, 1),
    reason="the kernel has no MADV_COLLAPSE",
)
def test_memory_comes_to_lie_in_huge_pages_and_keeps_what_is_in_it():
    memory = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    written = bytes(range(256)) * (len(memory) // 256)
    memory[:] = written
    before = huge_kib()

    fork_memory.use_huge_pages()

    assert huge_kib() > before
    assert memory[:] == written


def huge_kib() -> int:
    smaps = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"AnonHugePages: +(\d+) kB", smaps)[1])


def test_it_is_done_once_when_many_forks_have_come(monkeypatch):
    done = []
    monkeypatch.setattr(fork_memory, "_forks", 0)
    monkeypatch.setattr(fork_memory, "use_huge_pages", lambda: done.append(True))

    fork_memory.before_forks(fork_memory._FORKS_THAT_PAY - 1)
    assert not done

    for _ in range(100):
        fork_memory.before_forks(3)
    assert done == [True]


@pytest.fixture
def thawed():
    yield
    gc.unfreeze()


def test_imports_see_one_thread_and_what_they_made_is_frozen(monkeypatch, thawed):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    assert not fork_memory.is_frozen()

    with fork_memory.importing_for_forks():
        made = [[]]
        assert ("1", "1") == (os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"])
        assert not fork_memory.is_frozen()

    assert ("7", None) == (os.environ["OMP_NUM_THREADS"], os.environ.get("MKL_NUM_THREADS"))
    assert fork_memory.is_frozen()
    assert not any(each is made for each in gc.get_objects())
