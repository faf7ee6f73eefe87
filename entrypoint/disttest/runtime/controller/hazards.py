"""Which file made this process unsafe to fork: what a module starts when it is imported stays until the process ends."""

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
    """Why this process must not be forked; false where it may be."""

    by_file: Mapping[str, str] = {}
    """Test file (absolute) -> what importing it does, in words."""
    elsewhere: str = ""
    """What a plugin or a conftest has done, or the machine: no other choice of files helps."""

    def __bool__(self) -> bool:
        return bool(self.by_file or self.elsewhere)

    def __str__(self) -> str:
        return "; ".join([*([self.elsewhere] if self.elsewhere else []), *self.by_file.values()])


class HazardWatch:
    """Looks at the process before and after each file is imported."""

    def __init__(self) -> None:
        # Thread -> the file that was imported when it appeared.
        self._threads: dict[int, str] = {}
        self._cuda_file = ""

    @contextlib.contextmanager
    def collecting(self, collector: pytest.Collector) -> Iterator[None]:
        """While a collector is at work; conftests are imported by folders, and are nobody's file."""
        file = str(collector.path) if isinstance(collector, pytest.File | pytest.Class) else ""
        threads, cuda = thread_ids(), cuda_hazard(on_gpus=True)
        yield
        if file:
            self._threads |= dict.fromkeys(thread_ids() - threads, file)
            if not cuda and not self._cuda_file and cuda_hazard(on_gpus=True):
                self._cuda_file = file

    def judge(self, *, on_gpus: bool) -> Hazards:
        """What is in the way of forking now.

        Args:
            on_gpus: forks are to use GPUs.
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
