"""Orders that arrive together."""

from disttest.runtime.messages.protocol import Cancel, Channel, RunTest
from disttest.runtime.rank.rank import next_order


def test_a_message_behind_an_order_stays_in_the_channel():
    world, rank = Channel.pair()
    order = RunTest(
        nodeid="t.py::test", next_nodeid=None, log="log", folder="f", scratch="s", generation=0, limit_s=1.0
    )
    world.hold(order)
    world.send(Cancel(reason="the run ends"))

    assert next_order(rank) == order
    assert rank.receive(wait=False) == [Cancel(reason="the run ends")]
