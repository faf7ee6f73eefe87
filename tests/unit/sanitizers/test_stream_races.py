"""The race sanitizer with calls of a GPU: what one stream waits for is pending for the others. Streams are numbers here."""

from __future__ import annotations

import msgspec
import pytest
import torch
from test_race_recorder import ATEN, Operations, call, wait_for

from disttest.extras.sanitizers.race import cuda_streams, race_recorder
from disttest.extras.sanitizers.race.cuda_streams import StreamOrder
from disttest.extras.sanitizers.race.race_judge import judge_races
from disttest.extras.sanitizers.race.race_recorder import RaceRecorder
from disttest.extras.sanitizers.race.races import RaceKind
from disttest.extras.sanitizers.race.windows import Policy
from disttest.observe import Group

NCCL = Group(name="0", description="default", ranks=(0, 1), backend="nccl", timeout_s=None, queues=True)
DEFAULT, SIDE, BACKEND = 0, 1, 9
START, END = 50, 51


class OfGpu(torch.Tensor):
    """A tensor that says that it is the GPU's."""

    device = torch.device("cuda", 0)  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl


class Streams:
    """In the place of CUDA's: the test says which one is current."""

    current = DEFAULT
    blocks = staticmethod(cuda_streams.CudaStreams.blocks)

    def __init__(self, over):
        self.over, self.order = over, StreamOrder()

    def begin_issue(self, device):
        self.order.begin_issue(self.current)
        self.order.record(START, self.current)

    def is_behind(self, device, number):
        return self.order.is_behind(self.current, number)


class Rank:
    """A rank with a GPU."""

    def __init__(self, monkeypatch):
        self.operations = Operations()
        monkeypatch.setattr(race_recorder, "watching_operations", lambda: self.operations)
        monkeypatch.setattr(race_recorder, "held_calls", lambda: {1})
        monkeypatch.setattr(cuda_streams, "CudaStreams", Streams)
        self.recorder = RaceRecorder(0, Policy(as_nccl=False))
        self.tensor = OfGpu([1.0, 2.0])

    @property
    def streams(self):
        return self.recorder._streams

    def issue(self, n=1, *, is_async=True, **facts):
        issued = call(n, op="allreduce", inputs=(self.tensor,), group=NCCL, is_async=is_async, **facts)
        self.recorder.on_issue(issued)
        if is_async:
            self.streams.order.wait(START, BACKEND)
            self.streams.order.record(END, BACKEND)
        self.recorder.on_return(issued, object() if is_async else None)
        return issued

    def wait(self, issued, stream=None, timeout_s=None):
        """Wait for a handle; with no stream: see that the call is over."""
        waited = msgspec.structs.replace(wait_for(issued), timeout_s=timeout_s)
        self.recorder.on_wait(waited)
        if stream is not None:
            self.streams.order.wait(END, stream)
        self.recorder.on_done(waited, None)

    def read(self, stream):
        self.streams.current = stream
        self.recorder.on_op(ATEN.sum.default, (self.tensor,), {})

    def races(self):
        return [(race.kind, race.on_other_stream) for race in self.recorder.report().races]


@pytest.fixture
def rank(monkeypatch):
    return Rank(monkeypatch)


@pytest.mark.parametrize(
    ("waits", "reads", "expected"),
    [
        (SIDE, SIDE, []),
        (SIDE, DEFAULT, [(RaceKind.OUTPUT_READ, True)]),
        (DEFAULT, SIDE, [(RaceKind.OUTPUT_READ, True)]),
    ],
)
def test_a_wait_is_of_one_stream(rank, waits, reads, expected):
    rank.wait(rank.issue(), waits)
    rank.read(reads)

    assert expected == rank.races()


def test_before_any_wait_all_streams_are_early(rank):
    rank.issue()
    rank.read(DEFAULT)

    assert [(RaceKind.OUTPUT_READ, False)] == rank.races()


def test_a_call_that_is_not_asynchronous_is_pending_for_other_streams(rank):
    rank.issue(is_async=False)
    rank.read(DEFAULT)
    assert [] == rank.races()

    rank.read(SIDE)

    assert [(RaceKind.OUTPUT_READ, True)] == rank.races()


def test_a_call_of_which_this_thread_knows_that_it_is_over_is_so_for_all(rank):
    rank.wait(rank.issue())
    rank.read(SIDE)

    assert ([], False) == (rank.races(), rank.operations.asked)


def test_a_wait_with_a_limit_is_of_the_thread(rank):
    rank.wait(rank.issue(), DEFAULT, timeout_s=5.0)
    rank.read(SIDE)

    assert [] == rank.races()


@pytest.mark.parametrize(("text", "blocks"), [("1", True), ("y", True), ("False", False)])
def test_where_all_waits_block_they_are_of_the_thread(rank, monkeypatch, text, blocks):
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", text)
    rank.wait(rank.issue(), DEFAULT)
    rank.read(SIDE)

    assert blocks == (not rank.races())


def test_when_a_thread_has_waited_for_the_stream_it_is_over_for_all(rank):
    rank.wait(rank.issue(), DEFAULT)
    rank.streams.over(rank.streams.order.over_with_stream(DEFAULT))
    rank.read(SIDE)

    assert ([], False) == (rank.races(), rank.operations.asked)


def test_memory_may_be_given_back_after_the_wait(rank):
    rank.wait(rank.issue(), DEFAULT)
    rank.recorder.on_op(torch.UntypedStorage.resize_, (rank.tensor.untyped_storage(), 0), {})
    rank.read(SIDE)

    assert [] == rank.races()


def test_the_oldest_that_some_stream_waits_for_are_forgotten(rank, monkeypatch):
    monkeypatch.setattr(race_recorder, "_MOST_JOINED", 1)
    old, rank.tensor = rank.tensor, OfGpu([3.0])
    kept = rank.tensor
    for number, tensor in enumerate((old, kept, OfGpu([4.0])), 1):
        rank.tensor = tensor
        rank.wait(rank.issue(number), DEFAULT)
    for rank.tensor in (old, kept):
        rank.read(SIDE)

    assert [] == rank.races()


def test_calls_that_c_waits_for_itself_are_no_matter_of_streams(rank):
    rank.issue(is_async=False)
    issued = call(2, op="allreduce", inputs=(rank.tensor,), group=NCCL, by_cpp=True)
    rank.recorder.on_issue(issued)
    rank.recorder.on_return(issued, None)

    assert not rank.streams.is_behind(None, 2)


def test_the_finding_names_the_stream(rank):
    rank.wait(rank.issue(), DEFAULT)
    rank.read(SIDE)

    (finding,) = judge_races({0: rank.recorder.report()})

    assert "only another stream was made to wait for it" in finding.message
    assert "wait_stream" in finding.advice
