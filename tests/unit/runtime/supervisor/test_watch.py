"""What the command sees of a run: in which order it is shown, and what becomes of it when nobody can be shown anything."""

import os

import pytest
from sample_runs import SampleRun

from disttest.limits import OUTPUT_STALL_S
from disttest.output import MOST_KEPT, Outlet
from disttest.results.events import RunFinished
from disttest.results.journal import Journal
from disttest.runtime.supervisor.follow import Watch


class Seen:
    """A view that remembers; it breaks at the text ``break``."""

    shows_failures = True
    ticks = 0

    def __init__(self):
        self.said = []
        self.closed = False

    def handle(self, event):
        self.said.append(type(event).__name__)

    def show(self, text, *, error):
        if text == "break":
            raise BrokenPipeError("gone")
        self.said.append(f"error {text}" if error else text)

    def tick(self, now_s):
        self.ticks += 1

    def close(self):
        self.closed = True


@pytest.fixture
def run(tmp_path):
    """A watch on a journal and on pipes, and what a child would have: both of their other ends."""
    journal = Journal(tmp_path / "events.jsonl")
    view = Seen()
    watch = Watch(journal.path, view, journal.now)
    streams = watch.outputs()
    ours = os.dup(streams["stdout"]), os.dup(streams["stderr"])
    watch.child_started()
    yield journal, view, watch, ours
    journal.close()


def test_what_pytest_prints_before_its_end_stands_above_the_events_and_its_summary_below(run):
    journal, view, watch, (out, err) = run
    os.write(out, b"header")
    journal.append(SampleRun().events[0])
    watch.look()
    os.write(out, b"summary")
    os.write(err, b"bad")
    journal.append(RunFinished(at_s=journal.now(), exit_code=0))
    watch.look()

    assert ["header", "RunStarted", "RunFinished", "summary", "error bad"] == view.said


def test_nothing_is_lost_when_the_child_has_gone(run):
    journal, view, watch, (out, err) = run
    os.write(out, "é".encode()[:1])
    watch.look()
    os.write(out, "é".encode()[1:] + b"x" * 30_000)
    journal.append(SampleRun().events[0])
    os.close(out)
    os.close(err)
    watch.child_ended()
    watch.close()

    assert "é" + "x" * 30_000 == "".join(text for text in view.said if text != "RunStarted")
    assert "RunStarted" in view.said
    assert view.closed


def test_a_view_that_breaks_is_given_up_and_the_run_is_folded_all_the_same(run):
    journal, view, watch, (out, err) = run
    os.write(out, b"break")
    watch.look()
    journal.append(SampleRun().events[0])
    os.close(out)
    os.close(err)
    watch.child_ended()
    watch.close()

    assert "BrokenPipeError: gone" == watch.trouble
    assert "RunStarted" not in view.said
    assert "run-1" == watch.folding.result().run_id


def test_a_line_over_which_the_child_died_is_noticed_though_nobody_had_read_it_before(run):
    journal, _, watch, _ = run
    with journal.path.open("ab") as file:
        file.write(b'{"event":"test_fin')
    watch.close()

    assert watch.cut_short


def test_one_child_may_come_after_another(run):
    journal, view, watch, (out, err) = run
    journal.append(RunFinished(at_s=journal.now(), exit_code=0))
    os.close(out)
    os.close(err)
    watch.child_ended()
    second = watch.outputs()
    os.write(second["stdout"], b"header")
    watch.child_started()
    journal.append(SampleRun().events[0])
    watch.look()
    watch.child_ended()
    watch.close()

    assert ["RunFinished", "header", "RunStarted"] == view.said


@pytest.fixture
def unread(monkeypatch):
    """Standard output is a pipe that nobody reads."""
    reader, writer = os.pipe()
    outlet = Outlet(writer)
    monkeypatch.setattr("disttest.runtime.supervisor.follow.outlet", lambda: outlet)
    yield outlet
    os.close(reader)
    os.close(writer)


def test_while_nobody_reads_the_run_goes_on_and_what_is_said_is_kept(run, unread):
    _, view, watch, (out, _) = run
    unread.write(b"x" * 200_000)
    os.write(out, b"more")
    watch.look()

    assert ["more"] == view.said
    assert 0 == view.ticks, "a picture was drawn that nobody sees"


def test_once_much_is_kept_the_run_waits_and_the_view_is_given_up_in_the_end(run, unread, monkeypatch):
    _, view, watch, (out, _) = run
    unread.write(b"x" * (MOST_KEPT // 2 + 200_000))
    os.write(out, b"more")
    watch.look()
    assert [] == view.said and not watch.trouble
    assert [] == watch.readers(), "a wait for output that is not read would end immediately"

    monkeypatch.setattr(unread, "_last_s", unread._last_s - OUTPUT_STALL_S)
    watch.look()

    assert "the terminal accepted no more output" == watch.trouble
    assert view.closed
    assert 2 == len(watch.readers())
