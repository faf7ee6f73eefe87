"""The event loop: which sources a wait reports, which functions it calls, and when it ends."""

import math
import os
import signal

import pytest

from disttest.clock import monotonic
from disttest.host.event_loop import EventLoop, NotedSignals, wait_any
from disttest.host.process import Child


class Pipe:
    """A pipe as a source; not blocking."""

    def __init__(self):
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK)

    def fileno(self):
        return self.reader

    def fill(self):
        try:
            while True:
                os.write(self.writer, bytes(4096))
        except BlockingIOError:
            return


@pytest.fixture
def pipes():
    made = [Pipe() for _ in range(3)]
    yield made
    for pipe in made:
        for fd in (pipe.reader, pipe.writer):
            try:
                os.close(fd)
            except OSError:
                continue


@pytest.fixture
def loop():
    made = EventLoop()
    yield made
    made.close()


class TestOneWait:
    def test_it_returns_the_ready_sources_in_their_order(self, pipes):
        first, second, third = pipes
        os.write(third.writer, b"x")
        os.write(first.writer, b"x")

        assert [first, third.reader] == wait_any(first, None, second, third.reader)

    @pytest.mark.parametrize(
        "limits",
        [
            {"timeout_s": 0},
            {"timeout_s": -1},
            {"until_s": 0},
            {"timeout_s": math.inf, "until_s": monotonic()},
        ],
    )
    def test_it_returns_nothing_at_the_end_of_its_time(self, pipes, limits):
        assert [] == wait_any(*pipes, **limits)

    @pytest.mark.parametrize("limits", [{}, {"timeout_s": 1e12}, {"until_s": 1e12}])
    def test_the_time_has_no_bound(self, pipes, limits):
        os.write(pipes[0].writer, b"x")

        assert [pipes[0]] == wait_any(*pipes, **limits)

    def test_a_closed_end_is_ready(self, pipes):
        os.close(pipes[1].writer)

        assert [pipes[1]] == wait_any(*pipes)

    def test_a_running_process_is_not_ready(self, pipes):
        child = Child(os.getpid())
        os.write(pipes[0].writer, b"x")

        assert [pipes[0]] == wait_any(child, pipes[0])
        child.close()

    def test_a_source_accepts_data(self, pipes):
        full, empty, _ = pipes
        full.fill()

        assert [] == wait_any(empty, writable=[full.writer], timeout_s=0)
        assert [full, empty.writer] == wait_any(full, writable=[full.writer, empty.writer])


class TestSignals:
    def test_a_recorded_signal_ends_the_wait(self):
        before = signal.getsignal(signal.SIGUSR1)
        signals = NotedSignals([signal.SIGUSR1])
        try:
            assert [] == wait_any(signals, timeout_s=0)
            signal.raise_signal(signal.SIGUSR1)
            assert [signals] == wait_any(signals)
            assert signal.SIGUSR1 == signals.first()
            assert [] == wait_any(signals, timeout_s=0)
        finally:
            signals.close()
            signal.signal(signal.SIGUSR1, before)


class TestLoop:
    def test_it_calls_the_functions_of_the_ready_sources(self, loop, pipes):
        called = []
        for number, pipe in enumerate(pipes):
            loop.watch(pipe, lambda number=number: called.append(number))
        os.write(pipes[1].writer, b"x")

        assert loop.wait()
        assert [1] == called

    def test_unread_data_is_reported_again(self, loop, pipes):
        called = []
        loop.watch(pipes[0], lambda: called.append(os.read(pipes[0].reader, 1)))
        os.write(pipes[0].writer, b"ab")

        assert loop.wait()
        assert loop.wait()
        assert not loop.wait(0)
        assert [b"a", b"b"] == called

    @pytest.mark.parametrize("limits", [{"timeout_s": 0}, {"until_s": 0}])
    def test_it_ends_at_its_time(self, loop, pipes, limits):
        loop.watch(pipes[0], pytest.fail)

        assert not loop.wait(**limits)

    def test_a_source_that_an_earlier_function_ignored_is_left_alone(self, loop, pipes):
        called = []

        def ignore_others(own):
            called.append(own)
            for other in pipes:
                if other is not own:
                    loop.ignore(other)

        for pipe in pipes:
            loop.watch(pipe, lambda pipe=pipe: ignore_others(pipe))
            os.write(pipe.writer, b"x")

        assert loop.wait()
        assert 1 == len(called)
        assert [called[0]] == [pipe for pipe in pipes if pipe in loop]

    def test_a_new_source_under_the_number_of_an_old_one_is_not_mistaken_for_it(self, loop, pipes):
        called = []

        def replace(other):
            called.append("replaced")
            loop.ignore(other)
            os.dup2(pipes[2].reader, other.reader)
            loop.watch(other, lambda: called.append("new"))

        first, second, _ = pipes
        loop.watch(first, lambda: replace(second))
        loop.watch(second, lambda: replace(first))
        os.write(first.writer, b"x")
        os.write(second.writer, b"x")

        assert loop.wait()
        assert ["replaced"] == called

    def test_a_source_that_is_not_watched_can_be_ignored_but_none_watched_twice(self, loop, pipes):
        loop.ignore(pipes[1])
        loop.watch(pipes[0], pytest.fail)
        with pytest.raises(KeyError):
            loop.watch(pipes[0], pytest.fail)

    def test_it_waits_for_room(self, loop, pipes):
        called = []
        pipes[0].fill()
        loop.watch(pipes[0].writer, lambda: called.append("full"), writing=True)
        assert not loop.wait(0)
        loop.watch(pipes[1].writer, lambda: called.append("empty"), writing=True)

        assert loop.wait()
        assert ["empty"] == called

    def test_it_is_a_source(self, loop, pipes):
        called = []
        loop.watch(pipes[0], lambda: called.append("called"))
        assert [] == wait_any(loop, timeout_s=0)
        os.write(pipes[0].writer, b"x")

        assert [loop] == wait_any(loop, pipes[1])
        assert [] == called
