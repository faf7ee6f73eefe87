"""What ranks print, shown as they print it: whole lines, each with its rank."""

import pytest

from disttest.masking import Masker
from disttest.model import Kind, TestCase, WorldShape
from disttest.runtime.controller.live_logs import LiveLogs

TEST = TestCase(
    nodeid="t.py::test_x[2xgloo]", slug="x", classname="t", name="test_x", file="t.py", line=1, suite="t",
    world=WorldShape(size=2, backend="gloo"),
)  # fmt: skip


class Reporter:
    def __init__(self):
        self.text = ""

    def ensure_newline(self):
        assert self.text.endswith("\n") or not self.text

    def write(self, text, **_colour):
        self.text += text

    def flush(self):
        pass


class Config:
    def __init__(self, reporter, capture):
        self.pluginmanager = self
        self._reporter = reporter
        self._capture = capture

    def getplugin(self, _name):
        return self._reporter

    def getoption(self, _name, default):
        return self._capture


@pytest.fixture
def reporter():
    return Reporter()


@pytest.fixture
def live(reporter, tmp_path):
    (tmp_path / "logs/x/attempt-1").mkdir(parents=True)
    return LiveLogs(Config(reporter, "no"), lambda: tmp_path)


def log(tmp_path, rank, text):
    with (tmp_path / f"logs/x/attempt-1/rank{rank}.log").open("a") as file:
        file.write(text)


def shown(reporter):
    text, reporter.text = reporter.text, ""
    return text.splitlines()


def test_lines_are_shown_when_they_are_whole_and_the_rest_at_the_end(live, reporter, tmp_path):
    live.begin(TEST, 1)
    live.look()
    log(tmp_path, 1, "one\ntw")
    live.look()
    assert ["[rank 1] one"] == shown(reporter)
    log(tmp_path, 1, "o\nthree")
    log(tmp_path, 0, "\x1b[1mzero\n")
    live.end(TEST.nodeid)
    assert ["[rank 0] \x1b[1mzero", "[rank 1] two", "[rank 1] three"] == shown(reporter)
    live.look()
    assert [] == shown(reporter)


def test_what_disttest_adds_to_a_log_is_not_shown(live, reporter, tmp_path):
    live.begin(TEST, 1)
    log(tmp_path, 0, "own\n\n[disttest: stacks of rank 0 at the deadline]\nCurrent thread\n")
    live.look()
    live.end(TEST.nodeid)

    assert ["[rank 0] own"] == shown(reporter)


def test_a_value_that_a_test_masks_is_hidden_from_there_on(live, reporter, tmp_path, monkeypatch):
    monkeypatch.setattr("disttest.runtime.controller.live_logs.masker", Masker())
    live.begin(TEST, 1)
    log(tmp_path, 0, "::add-mask::a-secret-word\nit is a-secret-word\n")
    live.look()

    assert "a-secret-word" not in reporter.text
    assert "[rank 0] it is ***" in shown(reporter)


def test_without_s_and_without_a_world_nothing_is_read(reporter, tmp_path):
    LiveLogs(Config(reporter, "fd"), lambda: pytest.fail("read")).begin(TEST, 1)
    live = LiveLogs(Config(reporter, "no"), lambda: pytest.fail("read"))
    live.begin(TestCase(nodeid="o", slug="o", classname="o", name="o", file="o.py", line=1, suite="o"), 1)
    live.look()

    assert not LiveLogs(Config(None, "no"), lambda: tmp_path).is_on


def test_a_main_process_is_no_rank(live, reporter, tmp_path):
    live.begin(
        TestCase(**{name: getattr(TEST, name) for name in TEST.__struct_fields__} | {"kind": Kind.MAIN}), 1
    )
    (tmp_path / "logs/x/attempt-1/main.log").write_text("hello\n")
    live.look()

    assert ["[main] hello"] == shown(reporter)
