"""More programs that pass while their ranks come to other numbers: each with what must be found in it, and where.

The line at which it must be found ends in ``# seen``. Where a report is named, the program follows the situation that its
author describes, never its code.
"""

import torch
import torch.distributed as dist
from planted import parts
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from values import BOTH, average, data_of, gradients, layers, seeded, sgd


@parts("parameter", size=2, ranks=BOTH, says="before the first step", report="THUDM/SwissArmyTransformer#155")
def test_one_rank_draws_once_more_before_the_model_is_made(world):
    """All ranks have one seed, and use it differently."""
    torch.manual_seed(7)
    if world.is_first:
        torch.rand(1)
    model = layers()
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    average(gradients(model))
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="after step 1", report="pytorch/pytorch#128949")
def test_a_bucket_with_an_unused_parameter_is_never_reduced(world):
    """Without ``find_unused_parameters`` its gradients stay those of each rank, until the next forward pass fails."""
    model = DistributedDataParallel(nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)]))
    optimizer = sgd(model)
    model.module.forward = model.module[0].forward
    model(data_of(world)).sum().backward()
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="after step 1", report="deepspeedai/DeepSpeed#2343")
def test_gradients_are_flattened_in_the_order_of_their_arrival(world):
    """Ranks that compute two layers in different orders add the gradients of different layers."""
    torch.manual_seed(1)
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD([first.weight, second.weight], lr=0.1)
    (first(data_of(world)) + 2 * second(data_of(world))).sum().backward()
    weights = [first.weight, second.weight][:: 1 if world.is_first else -1]
    bucket = torch.cat([weight.grad.flatten() for weight in weights])
    dist.all_reduce(bucket)
    for weight, summed in zip(weights, bucket.chunk(2), strict=True):
        weight.grad.copy_(summed.view(4, 4))
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="after step 1", report="pytorch/torchtitan#596")
def test_each_rank_clips_by_the_norm_of_its_own_part(world):
    """A norm layer that all ranks have is scaled by what each of them has of the other layers."""
    norm, columns = nn.LayerNorm(4), seeded(world.rank)[0]
    optimizer = torch.optim.SGD([*norm.parameters(), *columns.parameters()], lr=0.1)
    same = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    columns(norm(same)).pow(2).sum().backward()
    average(gradients(norm))
    nn.utils.clip_grad_norm_([*norm.parameters(), *columns.parameters()], 0.1)
    optimizer.step()  # seen


@parts("parameter", size=3, ranks=(0,), says="after step 1")
def test_the_first_rank_loads_the_state_of_its_optimizer(world):
    """The others begin with empty moments."""
    model = DistributedDataParallel(layers())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if world.is_first:
        for parameter in model.parameters():
            optimizer.state[parameter] = {
                "step": torch.tensor(5.0),
                "exp_avg": torch.full_like(parameter, 0.5),
                "exp_avg_sq": torch.ones_like(parameter),
            }
    model(data_of(world)).sum().backward()
    optimizer.step()  # seen


@parts("parameter", size=3, ranks=(2,), says="after step 1")
def test_one_rank_decays_its_weights(world):
    """The configuration of one machine is an old one."""
    model = DistributedDataParallel(layers())
    decay = 0.5 if world.rank == 2 else 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay)
    model(data_of(world)).sum().backward()
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="after step 1", report="NVIDIA/Megatron-LM#1685")
def test_the_loop_leaves_out_the_call_that_finishes_gradients(world):
    """Hooks have gathered gradients into buckets, which are reduced by a call of its own."""
    model = DistributedDataParallel(layers())
    buckets = []

    def gather(_, bucket):
        buckets.append(bucket.buffer())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, gather)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    assert buckets
    optimizer.step()  # seen


@parts("output", size=2, ranks=BOTH, says="all_gather")
def test_one_rank_normalises_its_slots_before_it_waits(world):
    """What was gathered differs from rank to rank."""
    slots = [torch.zeros(4) for _ in range(world.size)]
    work = dist.all_gather(slots, torch.full((4,), 1.0 + world.rank), async_op=True)  # seen
    for _ in range(5):  # long after the first is over
        dist.all_reduce(torch.ones(4))
    if world.is_first:
        slots[1] /= 2
    work.wait()


@parts("nonfinite", size=2, ranks=(1,), says=("NaN", "input of all_reduce"))
def test_the_deviation_of_a_single_sample(world):
    """The last batch of one rank has one row."""
    losses = torch.arange(4.0) if world.is_first else torch.ones(1)
    dist.all_reduce(losses.std())  # seen


@parts("nonfinite", size=2, ranks=(0,), says=("infinity", "output of all_reduce"))
def test_a_product_of_likelihoods_overflows(world):
    """Each factor is finite."""
    dist.all_reduce(torch.tensor([1e30]), dist.ReduceOp.PRODUCT)  # seen
