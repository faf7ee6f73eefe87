"""Whether a KeyboardInterrupt is Ctrl-C, or a test's own way to end the run."""

import asyncio
import os
import signal

import pytest

from disttest.runtime.controller.ordinary import stop_of_test


@pytest.fixture(autouse=True)
def _default_handler():
    """That of an interpreter which was not started with SIGINT ignored, as under nohup."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def _interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)


def _in_a_loop():
    asyncio.run(_interrupted())


def _in_a_test():
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()


@pytest.mark.parametrize("place", [_in_a_loop, _in_a_test])
def test_a_signal_is_no_fault_of_the_test(place):
    """asyncio cancels its task on SIGINT, and raises KeyboardInterrupt itself."""
    with pytest.raises(KeyboardInterrupt) as raised:
        place()

    assert stop_of_test(raised.value) is None


def test_what_a_test_raises_ends_the_run():
    with pytest.raises(KeyboardInterrupt) as raised:
        raise KeyboardInterrupt("the fabric is down")

    assert "the fabric is down" in stop_of_test(raised.value).reason
