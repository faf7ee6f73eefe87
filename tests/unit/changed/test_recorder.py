"""The tracer of functions: each is reported once until it starts again, in every thread, and none after its end."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from types import CodeType

import pytest

from disttest.extras.changed.recorder import Tracer, Watch
from disttest.extras.changed.sources import FOLDER, LINK, WHOLE

pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="coverage or a debugger has precedence")


def used() -> None: ...


def repeated() -> None: ...


def resumed() -> Iterator[int]:
    yield 1
    yield 2


class Seen(Counter[str]):
    """Counts reports by the name of the function; ``repeated`` is asked for at every call."""

    def __call__(self, code: CodeType) -> bool:
        self[code.co_name] += 1
        return code is repeated.__code__


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def tracer(seen):
    tracer = Tracer(seen)
    tracer.start()
    yield tracer
    tracer.stop()


def test_a_function_is_reported_once_for_each_start(tracer, seen):
    used()
    used()
    assert seen["used"] == 1
    tracer.start()
    used()
    assert seen["used"] == 2


def test_a_function_is_reported_at_each_call_if_the_receiver_asks(tracer, seen):
    repeated()
    repeated()
    assert seen["repeated"] == 2


def test_a_generator_that_began_before_is_reported(tracer, seen):
    generator = resumed()
    next(generator)
    tracer.start()
    del seen["resumed"]
    next(generator)
    assert seen["resumed"] == 1


def test_other_threads_are_reported(tracer, seen):
    thread = threading.Thread(target=used)
    thread.start()
    thread.join()
    assert seen["used"] == 1


def test_nothing_is_reported_after_the_end(tracer, seen):
    used()
    assert tracer.stop()
    used()
    repeated()
    assert (seen["used"], seen["repeated"]) == (1, 0)


def test_a_second_end_reports_that_calls_were_missed(tracer):
    assert tracer.stop()
    assert not tracer.stop()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")
def test_another_tool_keeps_its_place(seen):
    monitoring, place = sys.monitoring, 3
    monitoring.use_tool_id(place, "other")
    try:
        tracer = Tracer(seen)
        tracer.start()
        used()
        assert not tracer.stop()
        assert monitoring.get_tool(place) == "other"
        assert not monitoring.get_events(place)
    finally:
        monitoring.free_tool_id(place)
    assert not seen


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")
def test_a_tool_that_a_test_turned_off_was_not_complete(tracer):
    sys.monitoring.set_events(3, 0)
    assert not tracer.stop()


class Used(Watch):
    """Keeps the parts of a project that are used."""

    def __init__(self, root: str) -> None:
        super().__init__(root, once=True)
        self.units: set[tuple[str, str]] = set()

    def use(self, unit):
        self.units.add(unit)


@pytest.fixture
def linked(tmp_path):
    """A project with links: ``now`` -> ``latest`` -> ``v1``, and one that leads out of it."""
    root = (tmp_path / "project").resolve()
    (root / "v1").mkdir(parents=True)
    (root / "v1" / "lib.py").write_text("def f(): ...\n")
    (root / "latest").symlink_to("v1")
    (root / "now").symlink_to(root / "latest")
    (root / "round").symlink_to("round")
    (root / "outside").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "alias").symlink_to(root)
    return root


@pytest.mark.parametrize(
    ("name", "part", "wanted"),
    [
        ("v1/lib.py", WHOLE, {("v1/lib.py", WHOLE)}),
        ("latest/lib.py", WHOLE, {("v1/lib.py", WHOLE), ("latest", LINK)}),
        ("now/lib.py", WHOLE, {("v1/lib.py", WHOLE), ("latest", LINK), ("now", LINK)}),
        ("latest", FOLDER, {("v1", FOLDER), ("latest", LINK)}),
        ("outside/data", WHOLE, {("outside", LINK)}),
        ("round/data", WHOLE, {("round/data", WHOLE), ("round", LINK)}),
        ("../alias/v1/lib.py", WHOLE, {("v1/lib.py", WHOLE)}),
        ("round", WHOLE, {("round", WHOLE), ("round", LINK)}),
    ],
)
def test_links_that_lead_to_a_file_are_used_with_it(linked, name, part, wanted):
    used = Used(str(linked))
    used.opened(str(linked / name), part)
    assert used.units == wanted


def test_a_function_uses_the_link_that_it_was_imported_through(linked):
    code = compile("def f(): ...", str(linked / "latest" / "lib.py"), "exec").co_consts[0]
    used = Used(str(linked))
    used.on_start(code)
    assert used.units == {("v1/lib.py", "f"), ("latest", LINK)}
