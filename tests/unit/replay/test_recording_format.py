import errno
import os

import pytest

from disttest.errors import UsageError
from disttest.extras.replay import format as recording_format
from disttest.extras.replay.format import (
    MAGIC,
    Called,
    CallSite,
    Completed,
    Filled,
    Head,
    Raised,
    RecordedSignature,
    Spec,
    StoreAnswered,
    Unfit,
    Writer,
    describe,
    read_recording,
)
from disttest.model import WorldShape

HEAD = Head(
    nodeid="test_x.py::test[2xgloo]",
    rank=1,
    shape=WorldShape(size=2, backend="gloo", device="cpu"),
    seed=7,
    environment={"RANK": "1"},
    torch="2.13.0",
    generation=0,
)
REDUCE = RecordedSignature(
    op="allreduce", group="default", ranks=(0, 1), reduce_op="SUM", inputs=(Spec("float32", (4,)),)
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "attempt-1" / "rank1.recording"


def write(path, *records):
    writer = Writer(path)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def test_what_was_written_is_read(path):
    store = RecordedSignature(op="store.get", keys=("a",))
    read = read_recording(
        write(
            path,
            *(HEAD, CallSite(REDUCE, "/x/test_x.py", 3), Called(0, 5), Filled(0, memoryview(b"1234"))),
            *(
                CallSite(store, "", 0),
                Called(1, 0),
                StoreAnswered(1, b"word"),
                Called(0, 6),
                Raised(2, "RuntimeError", "gone"),
            ),
            *(Called(0, 7), Unfit("why"), Unfit("why"), Completed()),
        )
    )

    assert HEAD == read.head
    assert b"1234" == bytes(read.filled[0])
    assert {1: b"word"} == read.answers
    assert "gone" == read.errors[2].message
    assert [False, False, False, True] == [read.is_open(call) for call in range(4)]
    assert (("why",), True) == (read.unfit, read.is_whole)
    assert "allreduce of group default (SUM float32[4]) at test_x.py:3" == str(read.place(3))


def test_a_rank_that_was_ended_has_no_end(path):
    assert not read_recording(write(path, HEAD)).is_whole


def test_a_call_costs_few_bytes(path):
    write(path, HEAD, CallSite(REDUCE, "/x/test_x.py", 3))
    before = path.stat().st_size
    path.unlink()
    write(path, HEAD, CallSite(REDUCE, "/x/test_x.py", 3), Called(0, 1 << 31), Filled(0, memoryview(b"")))

    assert path.stat().st_size - before < 24


WHOLE = "copy it from the run again, or record the test again"


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        (lambda data: data[:-1], WHOLE),
        (lambda data: data[: len(MAGIC) + 2], WHOLE),
        (lambda data: data[: len(MAGIC)], WHOLE),
        (lambda data: data[: len(MAGIC)] + b"\xff\xff\xff\xff" + data[len(MAGIC) + 4 :], WHOLE),
        (lambda data: data[: len(MAGIC) + 4] + b"\xc1" + data[len(MAGIC) + 5 :], WHOLE),
        (lambda data: data.replace(b"test_x.py::", b"\xff\xfe\xfd\xfc_x.py::"[:11]), WHOLE),
        (
            lambda data: b"PK" + data,
            "is not a recording of disttest; record the test again with disttest record",
        ),
        (lambda data: b"", "is not a recording of disttest"),
        (
            lambda data: data.replace(b"recording 1", b"recording 9"),
            "was written by another version of disttest",
        ),
    ],
)
def test_other_files_are_refused(path, damage, answer):
    write(path, HEAD, CallSite(REDUCE, "/x/test_x.py", 3), Called(0, 5), Completed())
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(UsageError, match=answer):
        read_recording(path)


def test_a_call_from_nowhere_is_refused(path):
    with pytest.raises(UsageError, match="a call refers to place 3 of 0"):
        read_recording(write(path, HEAD, Called(3, 0)))


def test_a_file_that_is_there_is_not_touched(path):
    write(path, HEAD)
    with pytest.raises(FileExistsError):
        Writer(path)


def test_a_call_in_words():
    send = RecordedSignature(op="send", group="default", peer=3, inputs=(Spec("int64", ()),))
    assert "send of group default with rank 3 (int64[])" == describe(send)
    assert "store.get of 'a', 'b'" == describe(RecordedSignature(op="store.get", keys=("a", "b")))


def test_a_file_that_can_not_grow_ends_the_recording_and_not_the_test(path, monkeypatch):
    writer = Writer(path)
    writer.write(HEAD)
    with monkeypatch.context() as patch:
        patch.setattr(recording_format, "_write", lambda *_: raise_too_large())
        writer.write(Called(0, 5))
    writer.write(Completed())
    writer.close()

    assert not read_recording(path).is_whole


def test_a_test_may_replace_os_write(path, monkeypatch):
    writer = Writer(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: raise_too_large())
        writer.write(HEAD)
    writer.close()

    assert HEAD == read_recording(path).head


def raise_too_large():
    raise OSError(errno.EFBIG, "File too large")
