"""Which calls a GPU waits for, when a thread waits for it; the GPU is one that says which stream is current."""

from __future__ import annotations

import types

import pytest
import torch
from board_actors import NOWHERE

from disttest.observe import Call, Group, Tool, Wait, WaitKind, hub, observing, queues

GPU = torch.device("cuda", 0)
ALL = Group(name="0", description="default", ranks=(0, 1), backend="nccl", timeout_s=600.0, queues=True)
OTHER = Group(name="1", description="", ranks=(0, 1), backend="nccl", timeout_s=600.0, queues=True)


class Waits(Tool):
    """Notes what threads wait for."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def on_wait(self, wait: Wait) -> None:
        assert wait.kind is WaitKind.DEVICE
        self.seen.append([call.n for call in wait.calls])


class Gpu:
    """A device of which tests choose the current stream."""

    def __init__(self) -> None:
        self.stream = 1
        self.queues = queues.Queues()
        self.module = types.SimpleNamespace(
            synchronize=lambda device=None: None,
            Stream=type("Stream", (), {"synchronize": lambda self: None, "device": GPU, "stream_id": 2}),
            __name__="gpu",
        )

    def issue(self, n: int, group: Group = ALL, **more: bool) -> Call:
        facts = {"is_async": True, "by_cpp": False} | more
        call = Call(
            n=n, op="allreduce", group=group, seq=n, peer=None, tag=0, root=None, reduce_op="SUM",
            timeout_s=600.0, inputs=(), outputs=(), site=NOWHERE, thread=1, in_backward=False, **facts,
        )  # fmt: skip
        self.queues.note_issued(call, GPU)
        return call

    def join(self, call: Call | None, kind: WaitKind = WaitKind.WORK) -> None:
        self.queues.note_done(
            Wait(n=1, kind=kind, call=call, keys=(), timeout_s=None, site=NOWHERE, thread=1)
        )


@pytest.fixture
def gpu(monkeypatch):
    """Put back whatever it replaces in torch."""
    made = Gpu()
    monkeypatch.setattr(queues, "_current", lambda device: (device, made.stream))
    monkeypatch.setattr(torch, "get_device_module", lambda device: made.module)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    yield made
    made.queues.remove()


@pytest.fixture
def waits(gpu):
    with observing(seen := Waits()):
        yield seen.seen


class OfGpu(torch.Tensor):
    """A tensor that says that it is the GPU's."""

    device = GPU  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl


def test_a_call_that_is_not_asynchronous_is_in_the_stream_at_once(gpu, waits):
    gpu.issue(1, is_async=False)
    OfGpu([1.0]).tolist()

    assert waits == [[1]]


def test_an_asynchronous_one_is_from_when_its_handle_was_waited_for(gpu, waits):
    call = gpu.issue(1)
    OfGpu([1.0]).tolist()
    assert waits == []

    gpu.join(call)
    OfGpu([1.0]).cpu()
    assert waits == [[1]]


def test_a_stream_waits_for_what_was_waited_for_while_it_was_current(gpu, waits):
    gpu.join(gpu.issue(1))
    gpu.stream = 2
    OfGpu([1.0]).cpu()
    assert waits == []

    gpu.join(gpu.issue(2))
    gpu.module.Stream().synchronize()
    assert waits == [[2]]


def test_the_device_waits_for_all(gpu, waits):
    gpu.issue(1)
    gpu.issue(2, OTHER)
    gpu.issue(3)
    gpu.module.synchronize()

    assert waits == [[2, 3]]


def test_what_was_waited_for_is_not_waited_for_again(gpu, waits):
    gpu.issue(1, is_async=False)
    gpu.module.synchronize()
    gpu.module.synchronize()
    OfGpu([1.0]).cpu()

    assert waits == [[1]]


def test_a_call_is_behind_the_last_one_that_its_stream_waits_for(gpu, waits):
    assert gpu.queues.last_before(GPU) is None

    first, _ = gpu.issue(1, is_async=False), gpu.issue(2, OTHER)
    assert gpu.queues.last_before(GPU) == (first.group.name, 1)

    gpu.join(gpu.issue(3, OTHER))
    assert gpu.queues.last_before(GPU) == (OTHER.name, 3)

    gpu.stream = 2
    assert gpu.queues.last_before(GPU) is None


def test_a_call_is_behind_nothing_that_was_waited_for_or_whose_group_is_gone(gpu, waits):
    gpu.issue(1, is_async=False)
    gpu.module.synchronize()
    assert gpu.queues.last_before(GPU) is None

    gpu.issue(2, OTHER, is_async=False)
    gpu.queues.forget(OTHER.name)
    assert gpu.queues.last_before(GPU) is None


def test_a_call_is_not_known_to_be_behind_those_of_cpp(gpu, waits):
    gpu.issue(1, by_cpp=True)
    gpu.join(None, WaitKind.BACKWARD)
    assert gpu.queues.last_before(GPU) is None

    gpu.join(gpu.issue(2, by_cpp=True, is_functional=True))
    assert gpu.queues.last_before(GPU) == (ALL.name, 2)


def test_calls_of_cpp_are_in_the_stream_when_the_backward_pass_is_over(gpu, waits):
    gpu.issue(1, by_cpp=True)
    gpu.join(None, WaitKind.BACKWARD)
    OfGpu([1.0]).cpu()

    assert waits == [[1]]


@pytest.mark.parametrize(
    ("target", "is_seen"),
    [
        (("cpu",), True),
        ((torch.zeros(2),), True),
        ((torch.zeros(2), True), False),
        ((torch.device("cpu"), torch.float32, True), False),
        (("cpu", torch.float32, False, True), True),  # a copy, which its caller waits for
        ((torch.float64,), False),
    ],
)
def test_copies_to_the_host_are_waits_unless_nobody_waits(gpu, waits, target, is_seen):
    gpu.issue(1, is_async=False)
    OfGpu([1.0]).to(*target)

    assert waits == ([[1]] if is_seen else [])


def test_a_torch_that_lacks_something_is_a_gap(gpu, waits, monkeypatch):
    monkeypatch.setattr(hub, "_gaps", {})
    del gpu.module.Stream
    gpu.issue(1, is_async=False)

    assert "waits for cuda: AttributeError" in hub.gaps()[0]


def test_numbers_are_what_they_were(gpu, waits):
    gpu.issue(1, is_async=False)

    assert torch.ones(3).sum().item() == 3.0
    assert bool((torch.ones(2) == 1).all())
    assert torch.tensor(5).to("cpu").tolist() == 5


def test_all_is_put_back(gpu):
    def state():
        table = torch._C._dispatch_dump_table("aten::_local_scalar_dense")
        owners = (torch.Tensor, torch.accelerator, gpu.module, gpu.module.Stream)
        return table, [dict(vars(owner)) for owner in owners]

    before = state()
    gpu.issue(1)
    changed = state()
    gpu.queues.remove()

    assert before[0] != changed[0]
    assert before == state()
