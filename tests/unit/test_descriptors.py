"""Descriptors of ours: out of the way of those of tests, as far as the limit on open files lets them be."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from disttest.descriptors import high_copy
from disttest.extras.replay.format import Writer
from disttest.host.process import STACKS_SIGNAL
from disttest.runtime.rank import child


@contextmanager
def allowed(files: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("limit", "lowest"), [(1024, 200), (300, 150), (200, 100)])
def test_a_copy_lies_high_also_where_few_files_are_allowed(limit: int, lowest: int) -> None:
    with allowed(limit):
        copy = high_copy(0)
    try:
        assert lowest <= copy < limit
        assert fcntl.fcntl(copy, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    finally:
        os.close(copy)


def test_the_files_of_a_rank_lie_high(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that closes low descriptors would find stacks and recordings in the files that it opens then."""
    monkeypatch.setattr(child, "_stacks_files", {})
    child.register_stacks(tmp_path / "rank0.stacks")
    (stacks,) = child._stacks_files.values()
    writer = Writer(tmp_path / "rank0.recording")

    with stacks:
        assert min(stacks.fileno(), writer._fd) >= 100
    faulthandler.unregister(STACKS_SIGNAL)
    writer.close()
