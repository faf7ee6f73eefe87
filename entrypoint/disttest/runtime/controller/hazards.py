"""Find the file that made this process unsafe to fork: threads and CUDA started by an import stay until the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from disttest.host.cuda_touch import cuda_touched
from disttest.host.fork_hazard import cuda_hazard, name_threads, unsafe_threads
from disttest.host.other_threads import OtherThread, thread_ids
from disttest.model import Frozen


class Hazards(Frozen):
    """Reasons why this process must not be forked; false if there are none."""

    by_file: Mapping[str, str] = {}
    """Absolute path of a test file -> effect of importing it, in words."""
    elsewhere: str = ""
    """Effects of a plugin, a conftest or the machine, which no other choice of files avoids."""

    def __bool__(self) -> bool:
        return bool(self.by_file or self.elsewhere)

    def __str__(self) -> str:
        return "; ".join([*([self.elsewhere] if self.elsewhere else []), *self.by_file.values()])


class HazardWatch:
    """Examines the process before and after each file is imported."""

    def __init__(self) -> None:
        # Thread -> the file that was imported when it appeared.
        self._threads: dict[int, str] = {}
        self._cuda_file = ""

    @contextlib.contextmanager
    def collecting(self, collector: pytest.Collector) -> Iterator[None]:
        """Watch one collector; conftests are imported by folders and count as no file."""
        file = str(collector.path) if isinstance(collector, pytest.File | pytest.Class) else ""
        threads, cuda = thread_ids(), cuda_hazard(on_gpus=True)
        yield
        if file:
            # Only ids are compared here. A description walks the stack of a thread, and only threads that
            # remain at the end need one.
            self._threads |= dict.fromkeys(thread_ids() - threads, file)
            # Only the first file is to blame: CUDA stays initialized for all later ones.
            if not cuda and not self._cuda_file and cuda_hazard(on_gpus=True):
                self._cuda_file = file

    def judge(self, *, on_gpus: bool) -> Hazards:
        """Name the reasons against forking now.

        Args:
            on_gpus: whether the forks will use GPUs.
        """
        by_file: dict[str, list[OtherThread]] = {}
        for thread in unsafe_threads():
            by_file.setdefault(self._threads.get(thread.tid, ""), []).append(thread)
        orphans = by_file.pop("", [])
        elsewhere = [f"a plugin or conftest starts {name_threads(orphans)}"] if orphans else []
        words = {file: f"{Path(file).name} starts {name_threads(found)}" for file, found in by_file.items()}
        if cuda := cuda_hazard(on_gpus=on_gpus):
            if self._cuda_file:
                whose = cuda if cuda_touched() else f"{cuda}, when {Path(self._cuda_file).name} was imported"
                words[self._cuda_file] = " and ".join(filter(None, [words.get(self._cuda_file, ""), whose]))
            else:
                elsewhere.append(cuda)
        return Hazards(by_file=words, elsewhere="; ".join(elsewhere))
