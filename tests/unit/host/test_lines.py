"""One way from pieces to lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttest.host.lines import Lines


@given(st.binary().map(lambda data: data.replace(b"\0", b"\n")), st.lists(st.integers(0, 20)))
def test_however_it_is_cut_the_lines_are_the_same(data, sizes):
    lines, read, at = Lines(), [], 0
    for size in [*sizes, len(data)]:
        read += lines.feed(data[at : at + size])
        at += size

    assert data.split(b"\n") == [*read, bytes(lines.rest)]


@pytest.mark.slow("hypothesis draws many examples")
@given(st.lists(st.integers(1, 7)))
def test_a_line_without_end_fills_no_memory_and_takes_no_other_along(sizes):
    lines = Lines(longest=5)
    for size in sizes:
        assert [] == lines.feed(b"x" * size)
        assert len(lines.rest) <= 6

    assert [b"x" * min(6, sum(sizes)), b"next"] == lines.feed(b"\nnext\n")
