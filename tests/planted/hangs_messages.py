"""Programs that hang in sends and receives, each with what must be said of it.

Where a report is named, the program has what its author describes, never its code.
"""

import torch
import torch.distributed as dist
from planted import hangs

# --- a cycle of receives


@hangs("receives", size=2, waits=(0, 1), says="recv", report="NVIDIA/nccl#783")
def test_both_receive_first(world):
    dist.recv(torch.ones(4), 1 - world.rank)
    dist.send(torch.ones(4), 1 - world.rank)


@hangs("receives", size=4, waits=(0, 1, 2, 3), says="recv", report="meta-pytorch/torchrec#4472")
def test_a_ring_in_which_everybody_receives_first(world):
    dist.recv(torch.zeros(8), (world.rank - 1) % world.size)
    dist.send(torch.ones(8), (world.rank + 1) % world.size)


@hangs("receives", size=2, waits=(0, 1), says=("send", "recv"), report="pytorch/pytorch#109401")
def test_a_tag_that_nobody_sends(world):
    if world.is_first:
        dist.send(torch.ones(1), 1, tag=1)
    else:
        dist.recv(torch.ones(1), 0, tag=2)


# --- a cycle of sends, or a send that nobody receives


@hangs("sends", size=2, waits=(0, 1), says="send", report="NVIDIA/nccl#479")
def test_both_send_first(world):
    dist.send(torch.ones(4), 1 - world.rank)
    dist.recv(torch.ones(4), 1 - world.rank)


@hangs("sends", size=2, waits=(0,), says="send", report="pytorch/pytorch#108378")
def test_a_handle_of_a_send_that_nobody_receives(world):
    if world.is_first:
        dist.isend(torch.ones(4), 1).wait()


@hangs("sends", size=2, waits=(0, 1), says="send", report="pytorch/pytorch#172668")
def test_stages_wait_for_their_sends_before_they_receive(world):
    other = 1 - world.rank
    forward = dist.isend(torch.ones(16), other, tag=world.rank)
    forward.wait()
    dist.irecv(torch.zeros(16), other, tag=other).wait()
