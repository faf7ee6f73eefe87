"""Limits that are too small for a world are named before it starts, with the need and a remedy."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from disttest.host.cpu import CgroupMount
from disttest.host.process_limits import lack_for_ranks

SHOWN = 120
"""Characters of a message that an annotation certainly shows."""


@pytest.fixture
def group(tmp_path: Path) -> CgroupMount:
    """A group below one that limits it."""
    (tmp_path / "job").mkdir()
    return CgroupMount(version=2, controllers=(), top=tmp_path, place=tmp_path / "job")


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Limits of the shell, by number; all others are absent."""
    limits: dict[int, int] = {}
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda number: (limits.get(number, unlimited), unlimited))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return limits


def test_without_limits_a_world_lacks_nothing(group: CgroupMount) -> None:
    assert "" == lack_for_ranks(256, (group,))


def test_the_limit_of_the_shell_on_processes(group: CgroupMount, limits: dict[int, int]) -> None:
    limits[resource.RLIMIT_NPROC] = 1279

    assert "" == lack_for_ranks(255, (group,))
    assert (
        "the limit on processes is 1,279, and a world of 256 ranks needs 1,280: raise it with `ulimit -u 1280`"
        == lack_for_ranks(256, (group,))
    )


def test_root_has_no_such_limit(
    group: CgroupMount, limits: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits[resource.RLIMIT_NPROC] = 10
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert "" == lack_for_ranks(256, (group,))


@pytest.mark.parametrize("where", ["job", "."])
def test_the_limit_of_a_group_on_processes(group: CgroupMount, where: str) -> None:
    (group.top / where / "pids.max").write_text("2000\n")
    (group.top / where / "pids.current").write_text("720\n")

    assert "" == lack_for_ranks(256, (group,))
    message = lack_for_ranks(257, (group,))
    assert message.startswith(
        "the limit on processes is 2,000 with 720 in use, and a world of 257 ranks needs 1,285: "
    )
    assert "raise --pids-limit" in message[:SHOWN]


def test_a_group_without_a_limit(group: CgroupMount) -> None:
    (group.place / "pids.max").write_text("max\n")
    (group.place / "pids.current").write_text("905\n")

    assert "" == lack_for_ranks(256, (group,))


def test_the_memory(group: CgroupMount) -> None:
    (group.place / "memory.max").write_text(str(4096 << 20))

    assert "" == lack_for_ranks(292, (group,))
    assert "the memory is 4,096 MiB, and a world of 293 ranks needs 4,102 MiB: run fewer ranks" == (
        lack_for_ranks(293, (group,))
    )


def test_the_processes_of_a_small_world_are_counted_too(group: CgroupMount) -> None:
    (group.place / "pids.max").write_text("12\n")
    (group.place / "pids.current").write_text("2\n")
    assert "" == lack_for_ranks(2, (group,))

    (group.place / "pids.current").write_text("5\n")
    assert (
        "the limit on processes is 12 with 5 in use, and a world of 2 ranks needs 10: raise --pids-limit of the container"
        == lack_for_ranks(2, (group,))
    )


def test_the_memory_of_a_small_world_is_that_of_its_tests(group: CgroupMount) -> None:
    (group.place / "memory.max").write_text(str(20 << 20))

    assert "" == lack_for_ranks(16, (group,))
