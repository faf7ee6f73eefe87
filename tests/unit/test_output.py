"""What is shown: it never raises, and has no power over a reader that looks for commands."""

import contextlib
import errno
import io
import os

import pytest
from github_log import commands_in
from hypothesis import example, given
from hypothesis import strategies as st

from disttest.output import Outlet, Shielded, write_trusted
from disttest.plugins.github import commands

WORDS = (
    "::",
    ":",
    "#",
    "##[",
    "##",
    "[",
    "]",
    "error",
    "add-mask",
    "Set-Output name=x",
    "stop-commands",
    " ",
)
BREAKS = "\t\n\r\v\f\x1c\x85\u2028\u2029\ufeff\u200b\xad\x00\x1b\xa0\u3000"
PIECES = st.sampled_from([*WORDS, *BREAKS, "\r\n"])
TEXT = st.lists(PIECES | st.text(max_size=3), max_size=30).map("".join)


def shielded(pieces: list[str]) -> str:
    """What a log gets of text that is written in these pieces."""
    reader, writer = os.pipe()
    try:
        stream = Shielded(
            io.BufferedWriter(Outlet(writer)), commands.harmless, encoding="utf-8", errors="replace"
        )
        for piece in pieces:
            stream.write(piece)
        stream.end_line()
        stream.flush()
        return os.read(reader, 1 << 16).decode() if any(pieces) else ""
    finally:
        os.close(reader)
        os.close(writer)


@given(st.lists(TEXT, max_size=4))
@example(["x\r::add-mask::secret\n"])
@example(["##[set-output name=x]y\n"])
@example([":", ":error::", "forged\n"])
@example(["\ufeff::error::forged\n"])
@example([":\u200b:error::forged\n"])
@example(["#\xad##[error]forged\n"])
@example(["\u2028::error::forged\n"])
def test_no_text_in_whatever_pieces_is_a_command(pieces):
    assert commands_in(shielded(pieces)) == []


@given(st.text())
def test_text_that_is_no_command_stays_as_it_is(text):
    if "::" not in text and "##" not in text and ":" not in text:
        assert commands.harmless(text) == text


def test_a_command_is_shown_as_what_it_was():
    assert commands.harmless("a::b\n  ::error::x ##[group]y\n") == "a::b\n  : :error::x ## [group]y\n"


def test_commands_of_our_own_get_through_between_lines():
    written = io.BytesIO()
    stream = Shielded(io.BufferedWriter(written), commands.harmless, encoding="utf-8")
    stream.write("begun")
    write_trusted(stream, commands.group("suite"))
    stream.flush()

    assert written.getvalue() == b"begun\n::group::suite\n"


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, Outlet(writer)
    for fd in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_what_a_slow_reader_has_no_room_for_is_kept(pipe):
    reader, outlet = pipe
    data = b"x" * 200_000
    assert outlet.write(data) == len(data)
    assert outlet.stalled_s > 0
    got = b""
    while len(got) < len(data):
        got += os.read(reader, 65536)
        _ = outlet.stalled_s  # it goes on whenever it is asked
    assert got == data
    assert outlet.stalled_s == 0


def test_a_reader_that_has_gone_costs_what_is_shown_only(pipe):
    reader, outlet = pipe
    os.close(reader)
    outlet.write(b"lost")
    outlet.write(b"lost")
    outlet.drain()

    assert outlet.broken == errno.EPIPE


def test_waiting_for_a_reader_ends_with_a_signal_and_with_its_limit(pipe):
    _, outlet = pipe
    wake, waker = os.pipe()
    os.write(waker, b"!")
    outlet.write(b"x" * 200_000)
    outlet.drain(wake=wake)
    assert outlet.broken == errno.ETIMEDOUT

    again, other = os.pipe()
    late = Outlet(other)
    late.write(b"x" * 200_000)
    late.drain(until_s=0.0)
    assert late.broken == errno.ETIMEDOUT
    for fd in (wake, waker, again, other):
        os.close(fd)
