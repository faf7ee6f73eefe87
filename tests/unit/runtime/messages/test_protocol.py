"""Messages survive being cut anywhere; nonsense is an error with a name."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttest.errors import ProtocolError
from disttest.outgoing import LONGEST_TEXT
from disttest.runtime.messages.protocol import (
    MAX_MESSAGE,
    Cancel,
    Channel,
    Collected,
    Leave,
    RankReady,
    TestDone,
    clean_text,
    encode,
)

MESSAGES = [Leave(), RankReady(), TestDone(leaks=("x",), retire=True), Cancel(reason="é" * 1000)]


@pytest.fixture
def pair():
    ours, theirs = Channel.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


def raw(channel, data):
    channel._sock.sendall(data)


def test_messages_arrive_in_order(pair):
    for message in MESSAGES:
        pair[1].send(message)

    assert MESSAGES == list(pair[0].receive())


def test_held_messages_arrive_with_the_next_and_before_it(pair):
    pair[1].hold(MESSAGES[0])
    with pytest.raises(BlockingIOError):
        pair[0].receive(wait=False)
    pair[1].send(MESSAGES[1])

    assert MESSAGES[:2] == list(pair[0].receive(wait=False))


def test_held_messages_can_be_handed_over_by_themselves(pair):
    pair[1].hold(MESSAGES[0])

    assert pair[1].flush()

    assert [MESSAGES[0]] == list(pair[0].receive(wait=False))


def test_held_messages_do_not_pile_up(pair):
    for _ in range(200):
        pair[1].hold(Cancel(reason="x" * 1000))

    assert pair[0].receive(wait=False)


@given(st.lists(st.integers(1, 40), max_size=30))
def test_messages_survive_any_cut(sizes):
    ours, theirs = Channel.pair()
    data, got = b"".join(map(encode, MESSAGES)), []
    for size in [*sizes, len(data)]:
        piece, data = data[:size], data[size:]
        if piece:
            raw(theirs, piece)
            got += ours.receive()
    ours.close()
    theirs.close()

    assert MESSAGES == got


@pytest.mark.parametrize(
    ("garbage", "words"),
    [
        (b"hello, I am a print statement", "more than any message has"),
        (struct.pack(">I", 4) + b"zzzz", "not a message"),
        (struct.pack(">I", 15) + b'{"kind":"Nope"}', "not a message"),
        (struct.pack(">I", 22) + b'{"kind":"RanksJoined"}', "not a message"),
        (struct.pack(">I", 2) + b"\xff\xfe", "not a message"),
    ],
)
def test_nonsense_is_named(pair, garbage, words):
    raw(pair[1], garbage)

    with pytest.raises(ProtocolError, match=words):
        pair[0].receive()


def test_a_cut_message_is_an_error_and_a_clean_end_is_not(pair):
    raw(pair[1], encode(MESSAGES[1])[:7])
    assert () == tuple(pair[0].receive())
    pair[1]._sock.shutdown(1)

    with pytest.raises(ProtocolError, match="cut after 7 bytes"):
        pair[0].receive()


def test_the_other_end_may_be_gone(pair):
    pair[0].close()

    assert pair[1].send(Leave()) is False
    assert pair[1].closed_by_peer


def test_a_text_over_the_limit_is_cut():
    body = encode(Cancel(reason="x" * MAX_MESSAGE))

    assert len(body) < MAX_MESSAGE
    assert b" characters cut: " in body


def test_a_message_over_the_limit_is_refused():
    with pytest.raises(ProtocolError, match="over the limit"):
        encode(Collected(tests={str(number): "x" * LONGEST_TEXT for number in range(300)}))


def test_receive_without_waiting(pair):
    with pytest.raises(BlockingIOError):
        pair[0].receive(wait=False)


def test_lone_surrogates_are_escaped():
    assert "a\\udc80b" == clean_text("a\udc80b")
    encode(Cancel(reason=clean_text("\udc80")))
