"""Send and receive: blocking, asynchronous, batched, tagged, from any source."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from disttest.testing.world import World

from ..ranks import exchange, subgroup
from .data import assert_completed, exactly

pytestmark = [
    pytest.mark.world_size(min=2),
    pytest.mark.usefixtures("leave_together"),
    pytest.mark.needs("messages"),
]


def _letter(world: World, sender: int, receiver: int, length: int = 6) -> torch.Tensor:
    """Says who wrote it to whom."""
    return torch.arange(length, dtype=torch.float32, device=world.device) + 100 * sender + 10_000 * receiver


def _others(world: World) -> list[int]:
    return [rank for rank in range(world.size) if rank != world.rank]


@pytest.mark.covers("CD-044", "CD-047")
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=lambda d: str(d)[6:]
)
def test_send_and_receive(world: World, dtype: torch.dtype) -> None:
    """Each rank in turn sends a tensor to each other one; sizes differ by rank."""
    for sender in range(world.size):
        if sender == world.rank:
            for receiver in _others(world):
                dist.send(_letter(world, sender, receiver, sender + 1).to(dtype), dst=receiver)
            continue
        got = torch.zeros(sender + 1, dtype=dtype, device=world.device)
        assert dist.recv(got, src=sender) == sender
        exactly(got, _letter(world, sender, world.rank, sender + 1).to(dtype))


@pytest.mark.covers("CD-047")
def test_order_of_messages(world: World) -> None:
    """Messages of one sender arrive in the order in which they were sent."""
    if world.rank == 1:
        for number in range(10):
            dist.send(torch.tensor([float(number)], device=world.device), dst=0)
    if world.rank == 0:
        got = [torch.zeros(1, device=world.device) for _ in range(10)]
        for each in got:
            dist.recv(each, src=1)
        assert [each.item() for each in got] == list(range(10))


@pytest.mark.needs("recv_any_source")
@pytest.mark.covers("CD-050")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["recv", "irecv"])
def test_any_source(world: World, asynchronous: bool) -> None:
    """A receive without a source accepts any sender and returns its rank; in the end each sender was received once."""
    heard = []
    for receiver in range(world.size):
        if receiver != world.rank:
            dist.send(_letter(world, world.rank, receiver), dst=receiver)
            continue
        for _ in _others(world):
            got = torch.zeros(6, device=world.device)
            if asynchronous:
                work = dist.irecv(got)
                work.wait()
                sender = work._source_rank()
            else:
                sender = dist.recv(got)
            exactly(got, _letter(world, sender, world.rank))
            heard.append(sender)
    assert sorted(heard) == _others(world)
    everybody = [sender for senders in exchange(world, heard) for sender in senders]
    assert sorted(everybody) == sorted(list(range(world.size)) * (world.size - 1))


@pytest.mark.needs("tags")
@pytest.mark.covers("CD-053")
def test_tags(world: World) -> None:
    """Messages are taken by their tag, whatever the order they were sent in."""
    if world.rank == 0:
        sent = [
            (tag, receiver, _letter(world, tag, receiver)) for receiver in _others(world) for tag in (1, 2, 3)
        ]
        for request in [dist.isend(letter, dst=receiver, tag=tag) for tag, receiver, letter in sent]:
            request.wait()
        return
    for tag in (3, 1, 2):
        got = torch.zeros(6, device=world.device)
        dist.recv(got, src=0, tag=tag)
        exactly(got, _letter(world, tag, world.rank))


@pytest.mark.covers("CD-056")
def test_isend(world: World) -> None:
    """Rank 0 posts a send to every other rank at once; each handle completes, each receiver has its own."""
    if world.is_first:
        requests = [dist.isend(_letter(world, 0, receiver), dst=receiver) for receiver in _others(world)]
        for request in requests:
            request.wait()
            assert_completed(world, request)
        return
    got = torch.zeros(6, device=world.device)
    dist.recv(got, src=0)
    exactly(got, _letter(world, 0, world.rank))


@pytest.mark.covers("CD-059")
def test_irecv(world: World) -> None:
    """Rank 0 posts a receive from every other rank; each completes with the right values."""
    if not world.is_first:
        dist.send(_letter(world, world.rank, 0), dst=0)
        return
    slots = {sender: torch.zeros(6, device=world.device) for sender in _others(world)}
    requests = [dist.irecv(slot, src=sender) for sender, slot in slots.items()]
    for request in requests:
        request.wait()
        assert_completed(world, request)
    for sender, slot in slots.items():
        exactly(slot, _letter(world, sender, 0))


@pytest.mark.covers("CD-059")
def test_receive_waits_for_its_message(world: World) -> None:
    """A receive posted before anything was sent is not complete, and its tensor is untouched, until it is."""
    if world.rank == 0:
        got = torch.full((6,), -1.0, device=world.device)
        request = dist.irecv(got, src=1)
        if world.device.type == "cpu":
            assert not request.is_completed()
            assert got.tolist() == [-1.0] * 6
        exchange(world, None)
        request.wait()
        exactly(got, _letter(world, 1, 0))
        return
    exchange(world, None)
    if world.rank == 1:
        dist.send(_letter(world, 1, 0), dst=0)


def _batch(world: World, pairs: list[tuple[int, int]], *, tagged: bool = False) -> None:
    """Exchange letters along (sender, receiver) pairs in one batch, and check what arrived."""
    operations, slots = [], {}
    for sender, receiver in pairs:
        tag = sender if tagged else 0
        if sender == world.rank:
            operations.append(dist.P2POp(dist.isend, _letter(world, sender, receiver), receiver, tag=tag))
        if receiver == world.rank:
            slots[sender] = torch.zeros(6, device=world.device)
            operations.append(dist.P2POp(dist.irecv, slots[sender], sender, tag=tag))
    if not operations:
        return
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    for sender, slot in slots.items():
        exactly(slot, _letter(world, sender, world.rank))


@pytest.mark.covers("CD-036")
def test_batched_ring(world: World) -> None:
    """Each rank sends to the next one and receives from the one before, in one batch."""
    _batch(world, [(rank, (rank + 1) % world.size) for rank in range(world.size)])


@pytest.mark.covers("CD-039", "CD-035")
def test_batched_pairs(world: World) -> None:
    """Everybody with everybody else, in one batch."""
    _batch(world, [(a, b) for a in range(world.size) for b in range(world.size) if a != b])


@pytest.mark.needs("tags")
@pytest.mark.covers("CD-040")
def test_batched_pairs_with_tags(world: World) -> None:
    """The same, tagged with the sender."""
    _batch(world, [(a, b) for a in range(world.size) for b in range(world.size) if a != b], tagged=True)


@pytest.mark.world_size(min=3)
@pytest.mark.covers("CD-038")
def test_batch_without_rank_zero(world: World) -> None:
    """Ranks 1 and 2 exchange while rank 0 takes no part."""
    _batch(world, [(1, 2), (2, 1)])


@pytest.mark.world_size()
@pytest.mark.needs("send_to_self")
@pytest.mark.covers("CD-035", "CD-037")
def test_batch_to_oneself(world: World) -> None:
    """A rank can send to itself."""
    _batch(world, [(rank, rank) for rank in range(world.size)])


@pytest.mark.covers("CD-041")
def test_batch_refuses_other_functions(world: World) -> None:
    """A function that is neither isend nor irecv is an error when the operation is made."""
    with pytest.raises(ValueError, match="Invalid ``op``"):
        dist.P2POp(dist.broadcast, torch.ones(1, device=world.device), (world.rank + 1) % world.size)


@pytest.mark.world_size()
@pytest.mark.covers("CD-042")
def test_batch_refuses_other_lists(world: World) -> None:
    """A list of anything but operations is an error."""
    with pytest.raises(ValueError, match="Invalid ``p2p_op_list``"):
        dist.batch_isend_irecv([1, 2])


@pytest.mark.covers("CD-043")
def test_batch_refuses_two_groups(world: World) -> None:
    """Operations of two groups do not go into one batch."""
    with subgroup(list(range(world.size))) as one, subgroup(list(range(world.size))) as other:
        peer = (world.rank + 1) % world.size
        tensor = torch.ones(1, device=world.device)
        operations = [dist.P2POp(dist.isend, tensor, peer, group) for group in (one, other)]
        with pytest.raises(ValueError, match="All ops need to use the same group"):
            dist.batch_isend_irecv(operations)


@pytest.mark.covers("CD-047")
def test_send_in_a_group(world: World) -> None:
    """In a group, source and destination may be named by their number in it."""
    pair = [1, 0]
    with subgroup(pair) as group:
        if world.rank > 1:
            return
        me = dist.get_rank(group)
        got = torch.zeros(6, device=world.device)
        if me == 0:
            dist.send(_letter(world, 0, 1), group=group, group_dst=1)
            dist.recv(got, group=group, group_src=1)
        else:
            dist.recv(got, group=group, group_src=0)
            dist.send(_letter(world, 1, 0), group=group, group_dst=0)
        exactly(got, _letter(world, 1 - me, me))


def _torch_profiler():
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True)


def _event_name(world: World, kind: str, other: int) -> str:
    """The profiler's name of a message: over NCCL it contains sender and receiver."""
    arrow = "->" if kind == "send" else "<-"
    return f"{world.backend}:{kind}" + (f" {world.rank}{arrow}{other}" if world.backend == "nccl" else "")


@pytest.mark.covers("CD-045", "CD-046", "CD-048", "CD-049", "CD-057", "CD-058", "CD-054", "CD-055")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["send", "isend"])
@pytest.mark.parametrize(
    "make",
    [lambda: torch.autograd.profiler.profile(record_shapes=True), _torch_profiler],
    ids=["autograd", "torch"],
)
def test_profiler_sees_messages(world: World, make: object, asynchronous: bool) -> None:
    """Each send and each receive is one event, asynchronous, with the shape of its tensor."""
    with make() as profiler:
        for sender in range(world.size):
            if sender == world.rank:
                for receiver in _others(world):
                    if asynchronous:
                        dist.isend(_letter(world, sender, receiver), dst=receiver).wait()
                    else:
                        dist.send(_letter(world, sender, receiver), dst=receiver)
            else:
                dist.recv(torch.zeros(6, device=world.device), src=sender)
    events = profiler.events() if isinstance(profiler, torch.profiler.profile) else profiler.function_events
    names = [event.name for event in events]
    for kind in ("send", "recv"):
        expected = [_event_name(world, kind, other) for other in _others(world)]
        found = [event for event in events if event.name in expected]
        assert sorted(event.name for event in found) == sorted(expected), sorted(set(names))
        for event in found:
            assert event.is_async
            assert event.input_shapes == [[6]] or event.input_shapes == [[[6]]]


@pytest.mark.needs("recv_any_source")
@pytest.mark.covers("CD-051", "CD-052")
@pytest.mark.parametrize(
    "make", [torch.autograd.profiler.profile, _torch_profiler], ids=["autograd", "torch"]
)
def test_profiler_sees_any_source(world: World, make: object) -> None:
    """A receive from any source is an event with a different name."""
    with make() as profiler:
        if world.is_first:
            for _ in _others(world):
                dist.recv(torch.zeros(6, device=world.device))
        else:
            dist.send(_letter(world, world.rank, 0), dst=0)
    events = profiler.events() if isinstance(profiler, torch.profiler.profile) else profiler.function_events
    names = [event.name for event in events]
    assert names.count(f"{world.backend}:recvAnySource") == (world.size - 1 if world.is_first else 0)
    assert names.count(f"{world.backend}:send") == (0 if world.is_first else 1)
