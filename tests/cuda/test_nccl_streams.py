"""Emulated NCCL on the default stream: it is that of the communicator's device, and what reads there waits."""

PROGRAM = """
import time, pytest, torch, torch.distributed as dist

@pytest.mark.world_size(2)
def test_device_that_nobody_chose(world):
    torch.cuda.set_device(0)
    given = torch.ones(3, device=world.device)
    out = torch.zeros(world.rank + 1, device=world.device)
    if world.rank == 0:
        time.sleep(0.2)  # rank 1 has time to read too early
    dist.reduce_scatter(out, list(given.split([1, 2])))
    assert out.tolist() == [2.0] * (world.rank + 1)
"""


def test_a_collective_on_the_default_stream_of_another_device_than_the_chosen_one(cuda_lab):
    ended = cuda_lab.write(test_device=PROGRAM).run("run", ".")

    assert ended.exit_code == 0, ended.output
