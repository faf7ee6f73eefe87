"""Which methods of a class that launches ranks are replaced, and what its ranks are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from disttest.plugins.launching_classes.main_process import host_launching_classes
from disttest.plugins.launching_classes.recognise import launches_ranks, limit_s, most_ranks


class _Host:
    """Starts no process: its ranks run here, one after the other."""

    on_gpus = False

    def __init__(self) -> None:
        self.ended: list[object] = []
        self.kept: Any = None

    def start(self, size: int, body: Any) -> None:
        for rank in range(size):
            try:
                self.ended.append(
                    body(rank, SimpleNamespace(note=lambda error: self.ended.append(str(error))))
                )
            except SystemExit as leaving:
                self.ended.append(leaving.code)

    def join(self, rule: object) -> None:
        pass

    def keep(self, owner: object, size: int, prepare: Any, run: Any) -> None:
        if self.kept is None:
            prepare(7)
            self.kept = (owner, run)

    def run_kept(self, owner: object, name: str) -> None:
        assert owner == self.kept[0]
        self.kept[1](name)


TOLD: list[object] = []


class Older:
    """Has one launching method, which is told the number of ranks."""

    is_dist_test = True
    reuse_dist_env = False
    reason = ""

    def _launch_procs(self, num_procs):
        raise AssertionError("launched by itself")

    def _dist_run(self, local_rank, num_procs, master_port, skip_msg=""):
        TOLD.append((local_rank, num_procs, int(master_port) > 0))
        return self.reason or skip_msg


class Newer:
    """Chooses between two ways."""

    is_dist_test = True
    non_daemonic_procs = True

    def _launch_procs(self, num_procs, init_method):
        (self._launch_non_daemonic_procs if self.non_daemonic_procs else self._launch_daemonic_procs)(
            num_procs, init_method
        )

    def _launch_daemonic_procs(self, num_procs, init_method):
        raise AssertionError("launched by itself")

    def _launch_non_daemonic_procs(self, num_procs, init_method):
        raise AssertionError("launched by itself")

    def _dist_run(self, local_rank, num_procs, master_port, init_method, skip_msg=""):
        TOLD.append((local_rank, init_method, self.non_daemonic_procs, skip_msg))
        if local_rank:
            pytest.skip("not here")

    def _dist_destroy(self):
        TOLD.append("destroyed")


@pytest.fixture
def host(monkeypatch):
    TOLD.clear()
    monkeypatch.setattr("disttest.plugins.launching_classes.main_process.fork_hazard", lambda on_gpus: None)
    for base in (Older, Newer):
        for name in [name for name in vars(base) if "launch" in name]:
            monkeypatch.setattr(base, name, vars(base)[name])  # as it was, afterwards
    host = _Host()
    host_launching_classes([Older, Newer, Newer, int], host)
    return host


def test_ranks_are_told_what_the_launching_method_is_told(host):
    Older()._launch_procs(2)

    assert [(0, 2, True), (1, 2, True)] == TOLD
    assert [None, None] == host.ended


def test_the_class_still_chooses_its_way(host):
    Newer()._launch_procs(2, "file:///store")

    assert [(0, "file:///store", False, ""), "destroyed", (1, "file:///store", False, "")] == TOLD
    assert [None, "not here", 86] == host.ended


def test_a_test_travels_to_ranks_that_are_kept(host):
    first, second = Older(), Older()
    first.reuse_dist_env = second.reuse_dist_env = True
    second.reason = "later"

    first._launch_procs(2)
    with pytest.raises(pytest.skip.Exception, match="later"):
        second._launch_procs(2)

    assert [(7, 2, True)] * 2 == TOLD


def test_a_launching_method_of_its_own_is_left_alone():
    class OfItsOwn(Older):
        def _launch_procs(self, num_procs):
            pass

    class Plain(Older):
        pass

    class NoTest(Older):
        is_dist_test = False

    assert [True, False, False] == [launches_ranks(cls) for cls in (Plain, OfItsOwn, NoTest)]


@pytest.mark.parametrize(
    ("mark", "told", "of_class", "of_fixture", "size"),
    [
        (None, {}, 2, None, 2),
        (None, {}, [1, 4, 2], None, 4),
        ([2, 3], {"world_size": 8}, 4, None, 3),
        (None, {"world_size": 8}, 4, None, 8),
        (None, {}, 2, 6, 6),
        (None, {}, "what", None, 1),
    ],
)
def test_the_most_ranks_at_one_time(mark, told, of_class, of_fixture, size):
    fixture = SimpleNamespace(
        func=SimpleNamespace(is_dist_fixture=of_fixture is not None, world_size=of_fixture)
    )
    item = SimpleNamespace(
        get_closest_marker=lambda name: mark and SimpleNamespace(args=(mark,)),
        callspec=SimpleNamespace(params=told),
        cls=SimpleNamespace(world_size=of_class),
        _fixtureinfo=SimpleNamespace(name2fixturedefs={"fixture": [fixture]}),
    )

    assert size == most_ranks(item)


def test_its_own_limit():
    assert 0.0 == limit_s(Older)
    assert 600.0 == limit_s(type("Limited", (Older,), {"exec_timeout": 600}))
