"""The table of what is looked at between tests."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import threading
from unittest import mock

import pytest

from disttest import limits
from disttest.observe import Tool, observing, watching_operations
from disttest.plugins import state_facets
from disttest.plugins.state_facets import hooks, interpreter
from disttest.runtime.rank import state_snapshot
from disttest.runtime.rank.facet import MISSING, Facet, Setting, describe_change, is_same, settings


def areas():
    pytest.importorskip("torch")
    names = [module.name for module in pkgutil.iter_modules(state_facets.__path__)]
    modules = [importlib.import_module(f"disttest.plugins.state_facets.{name}") for name in names]
    return {
        name: module.FACETS for name, module in zip(names, modules, strict=True) if hasattr(module, "FACETS")
    }


def test_kinds_are_unique():
    """Facts are kept by kind."""
    kinds = [facet.kind for each in areas().values() for facet in each]

    assert sorted(set(kinds)) == sorted(kinds)


def test_every_area_is_in_the_table():
    assert set(areas()) == {module for _, module in hooks.AREAS}


def test_words():
    facet = settings("torch", Setting("grad mode", lambda: False, lambda _: None))
    plain = Facet("environment", dict, lambda *_: True)

    assert "torch grad mode: True became False" == describe_change(facet, "grad mode", False, True)
    assert "environment FOO: unset became '1'" == describe_change(plain, b"FOO", b"1", MISSING)


class Watches(Tool):
    """One for which methods of tensors are replaced."""

    def on_op(self, func, args, kwargs):
        pass


def facet_of(area, kind):
    return next(each for each in areas()[area] if each.kind == kind)


def test_modes_of_the_test_are_counted_and_not_ours():
    from torch.utils.flop_counter import FlopCounterMode

    modes, tool = facet_of("torch_flags", "torch mode"), Watches()
    before = modes.read()["dispatch modes"]
    with observing(tool):
        watching_operations().ask(tool)
        assert before == modes.read()["dispatch modes"]
        with FlopCounterMode(display=False):
            assert before + 1 == modes.read()["dispatch modes"]
        watching_operations().leave(tool)


class EndsWhenJoined(threading.Thread):
    """One that is about to end."""

    def __init__(self):
        super().__init__(name="ends", daemon=True)
        self.go = threading.Event()

    def run(self):
        self.go.wait()

    def join(self, timeout=None):
        self.go.set()
        super().join()


def test_a_thread_that_ends_by_itself_is_no_leak():
    before = state_snapshot.read_state(lambda: (facet_of("interpreter", "thread"),))
    EndsWhenJoined().start()

    cleanup = state_snapshot.restore_state(
        before, before, shared_fixtures=False, facets=lambda: (facet_of("interpreter", "thread"),)
    )

    assert ((), False) == (cleanup.leaks, cleanup.retire)


def test_threads_have_one_limit_together(monkeypatch):
    """A pool of 64 workers took 6.4 s after its test."""
    facet, go, waited = facet_of("interpreter", "thread"), threading.Event(), []
    left = [threading.Thread(target=go.wait, name=f"left {number}") for number in range(8)]
    for thread in left:
        thread.start()
    now = facet.read()
    for thread in left:
        monkeypatch.setattr(thread, "join", waited.append)
    monkeypatch.setattr(interpreter, "monotonic", lambda: interpreter._read_at_s + 0.5)

    for thread in left:
        assert facet.describe(thread.name, now[thread.name], MISSING).endswith("(still there)")
    assert [0.0] * 8 == waited
    monkeypatch.undo()
    go.set()
    for thread in left:
        thread.join()


def test_threads_have_one_limit_together_between_two_tests(monkeypatch):
    """Each was restored before the next one was described, which began the limit again."""
    before = state_snapshot.read_state(lambda: (facet_of("interpreter", "thread"),))
    go, now_s = threading.Event(), [0.0]
    left = [threading.Thread(target=go.wait, name=f"left {number}") for number in range(8)]
    for thread in left:
        thread.start()
        monkeypatch.setattr(thread, "join", lambda timeout: now_s.__setitem__(0, now_s[0] + timeout))
    monkeypatch.setattr(interpreter, "monotonic", lambda: now_s[0])

    cleanup = state_snapshot.restore_state(
        before, before, shared_fixtures=False, facets=lambda: (facet_of("interpreter", "thread"),)
    )

    monkeypatch.undo()
    go.set()
    for thread in left:
        thread.join()
    assert cleanup.retire
    assert limits.THREAD_END_S == pytest.approx(now_s[0])


def test_a_thread_that_lives_on_is_a_leak_and_so_is_one_that_has_gone():
    threads, go = facet_of("interpreter", "thread"), threading.Event()
    before = threads.read()
    left = threading.Thread(target=go.wait, name="left")
    left.start()
    after = threads.read()

    assert "thread left (still there)" == threads.describe("thread left", after["left"], MISSING)
    assert not threads.restore("left", MISSING)
    go.set()
    left.join()
    assert before == threads.read()
    assert "thread left (gone)" == threads.describe("thread left", MISSING, after["left"])
    assert not threads.restore("left", after["left"])


def test_functions_that_the_test_has_replaced_are_named_and_not_ours(monkeypatch):
    import torch

    functions = facet_of("monkeypatches", "function")
    before = functions.read()
    with observing(Watches()):
        assert before == functions.read()
        monkeypatch.setattr(torch.Tensor, "tolist", lambda self: [])
        assert {("torch.Tensor", "tolist")} == functions.read().keys() - before.keys()
        monkeypatch.undo()


def test_what_cannot_be_put_back_says_so():
    facet = settings("torch", Setting("inference mode", lambda: True))

    assert facet.restore("inference mode", False) is False


def test_values_that_cannot_be_compared_are_not_the_same():
    class Odd:
        def __eq__(self, other):
            raise ValueError("neither nor")

        __hash__ = object.__hash__

    odd = Odd()
    assert is_same(odd, odd)
    assert not is_same(odd, Odd())
    assert not is_same(1, True)


@pytest.fixture
def keys(monkeypatch):
    """The only state there is: keys in the store of the world."""
    there = {}
    facet = Facet("store key", lambda: dict(there), lambda *_: False, made_for_tests=True, by_world=True)
    monkeypatch.setattr(state_snapshot, "loaded_facets", lambda: (facet,))
    return there


def test_what_ranks_share_is_left_to_the_world(keys):
    before = state_snapshot.read_state()
    keys["left"] = True

    cleanup = state_snapshot.restore_state(before, before, shared_fixtures=False)

    assert ("left",) == cleanup.store_keys
    assert 1 == len(cleanup.leaks)
    assert not cleanup.retire


def test_what_ranks_share_and_a_test_has_deleted_cannot_be_put_back(keys):
    keys["mine"] = True
    before = state_snapshot.read_state()
    keys.clear()

    cleanup = state_snapshot.restore_state(before, before, shared_fixtures=False)

    assert cleanup.retire
    assert () == cleanup.store_keys


def test_a_process_that_forks_looks_once_at_what_ranks_compare_with(monkeypatch):
    looks = []
    facets_there = tuple(
        Facet(name, lambda name=name: looks.append(name) or {}, lambda *_: False, kept_since_first=kept)
        for name, kept in (("function", True), ("environment", False))
    )
    monkeypatch.setattr(state_snapshot, "loaded_facets", lambda: facets_there)

    state_snapshot.look_before_forks()

    assert ["function"] == looks


def test_in_a_rank_that_runs_one_test_nobody_looks_for_what_is_replaced_but_for_all_else(monkeypatch):
    monkeypatch.setenv("LEAKED", "")
    monkeypatch.setattr(shutil, "move", shutil.move)
    restorers = [
        state_snapshot.StateRestorer(looked_at)
        for looked_at in (state_snapshot.facets_of_one_test, state_snapshot.facets_between_tests)
    ]
    for restorer in restorers:
        restorer.begin(shared_fixtures=False)
    shutil.move = print
    os.environ["LEAKED"] = "1"

    one, many = (restorer.end(shared_fixtures=False) for restorer in restorers)

    assert ("environment LEAKED: '' became '1'",) == one.leaks
    assert ("function shutil.move (another one)",) == many.leaks, "and the environment was put back before"


def test_a_rank_is_put_back_to_how_it_began_not_to_how_its_parent_was(monkeypatch):
    monkeypatch.setattr(shutil, "move", shutil.move)
    monkeypatch.setattr(shutil, "copy", shutil.copy)
    state_snapshot.look_before_forks()

    def mine(*_):
        pass

    monkeypatch.setattr(shutil, "copy", mine)  # a fixture of the file, then the fork
    del shutil.move
    before = state_snapshot.read_state()
    shutil.copy = shutil.move = shutil.copytree

    cleanup = state_snapshot.restore_state(before, before, shared_fixtures=False)

    assert mine is shutil.copy
    assert not hasattr(shutil, "move")
    assert 2 == len(cleanup.leaks)
    assert not cleanup.retire


def test_a_key_that_the_fixtures_of_a_slower_rank_set_stays(keys):
    """It comes after this rank's last test, and before its next one."""
    last = state_snapshot.read_state()
    keys["of a fixture"] = True

    before = state_snapshot.state_before(last, shared_fixtures=True)

    assert () == state_snapshot.restore_state(before, before, shared_fixtures=True).leaks


def test_all_patches_of_one_target_are_stopped_the_last_one_first():
    facet = facet_of("monkeypatches", "patch")
    first, second = mock.patch("shutil.move", 1), mock.patch("shutil.move", 2)
    original = shutil.move
    first.start()
    second.start()
    (name,) = facet.read()

    assert facet.restore(name, MISSING)

    assert (original, {}) == (shutil.move, facet.read())


@pytest.mark.parametrize(("at_teardown", "leaks"), [("inner", 0), ("outer", 1)])
def test_what_the_tear_down_of_a_wider_fixture_has_changed_is_no_leak(monkeypatch, at_teardown, leaks):
    mode = ["inner"]
    facet = Facet("mode", lambda: {"": mode[0]}, lambda _, then: mode.append(then) or True)
    monkeypatch.setattr(state_snapshot, "loaded_facets", lambda: (facet,))
    before = state_snapshot.read_state()
    mode[0] = "outer"

    cleanup = state_snapshot.restore_state(
        before, before, shared_fixtures=True, at_teardown={"mode": {"": at_teardown}}
    )

    assert leaks == len(cleanup.leaks)
