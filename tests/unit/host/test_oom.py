"""Memory that ran out, read from cgroups of both versions."""

import pytest

from disttest.host.cpu import CgroupMount
from disttest.host.oom import Shortage, count_oom_kills, volunteer_for_oom


def group(folder, version):
    return CgroupMount(
        version=version, controllers=("memory",) if version == 1 else (), top=folder, place=folder
    )


@pytest.mark.parametrize(
    ("version", "name", "text"),
    [
        (1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        (2, "memory.events", "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n"),
    ],
)
def test_kills_are_counted(tmp_path, version, name, text):
    (tmp_path / name).write_text(text)

    assert 3 == count_oom_kills((group(tmp_path, version),))


@pytest.mark.parametrize("version", [1, 2])
def test_a_kernel_that_does_not_count_is_no_error(tmp_path, version):
    assert 0 == count_oom_kills((group(tmp_path, version),))
    assert 0 == count_oom_kills(())


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_that_is_reached_is_named(tmp_path, version):
    (tmp_path / "pids.max").write_text("12\n")
    (tmp_path / "pids.events").write_text("max 3\n")
    shortage = Shortage((group(tmp_path, version),))
    assert list(shortage.notes()) == []

    (tmp_path / "pids.events").write_text("max 4\n")
    kills = {1: ("memory.oom_control", "memory.limit_in_bytes"), 2: ("memory.events", "memory.max")}[version]
    (tmp_path / kills[0]).write_text("oom_kill 1\n")
    (tmp_path / kills[1]).write_text(f"{150 << 20}\n")
    memory, processes = shortage.notes()
    assert "150 MiB, the limit of its cgroup" in memory
    assert "may have 12 processes and threads" in processes


@pytest.mark.parametrize(("before", "after"), [(0, 300), (-500, -200), (900, 1000)])
def test_ranks_go_first(tmp_path, before, after):
    adjustment = tmp_path / "self/oom_score_adj"
    adjustment.parent.mkdir()
    adjustment.write_text(f"{before}\n")

    volunteer_for_oom(tmp_path)

    assert str(after) == adjustment.read_text()


def test_a_kernel_that_forbids_it_is_no_error(tmp_path):
    volunteer_for_oom(tmp_path)
