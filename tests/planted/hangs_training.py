"""Programs that hang in what surrounds a step: saving, logging, stopping, hooks. Each has what must be said of it.

Where a report is named, the program follows the situation that its author describes, never its code.
"""

import contextlib
import functools
import os
import signal
import weakref

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from planted import hangs
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


def reduce(*, group=None):
    total = torch.ones(4)
    dist.all_reduce(total, group=group)
    return total


def replicated(**options):
    return DistributedDataParallel(nn.Linear(4, 4), **options)


def backward(model):
    model(torch.ones(2, 4)).sum().backward()


# --- saving and loading


@hangs("save", size=2, waits=(0,), says="barrier", report="alan-turing-institute/autocast#386")
def test_a_save_that_ends_in_a_barrier_is_called_by_the_first_rank(world):
    """Its barrier meets the next one of the others, and the last barrier of the first rank meets none."""
    if world.is_first:
        dist.barrier()
    dist.barrier()


@hangs("save", size=3, waits=(0, 1, 2), says=("barrier", "all_reduce"), report="EleutherAI/sparsify#5")
def test_ranks_that_do_not_save_return_before_the_barrier(world):
    """The first rank waits at the end of its save; the others train."""

    def save_layers():
        if not world.is_first:
            return
        dist.barrier()

    save_layers()
    reduce()


@hangs(
    "load",
    size=2,
    waits=(0, 1),
    says=("broadcast", "all_reduce"),
    report="KempnerInstitute/KempnerForge#49",
)
def test_each_rank_looks_for_the_checkpoint_itself(world, tmp_path):
    """A file system shows the file to one rank only, and only that rank broadcasts its contents."""
    state = tmp_path / "state.pt"  # each rank has a folder of its own
    if world.is_first:
        state.touch()
    if state.exists():
        dist.broadcast_object_list([{"step": 3}], src=0)
    reduce()


@hangs("save", size=2, waits=(0,), says="gather", report="huggingface/transformers#48569")
def test_a_distributed_checkpoint_is_saved_by_the_first_rank(world, tmp_path):
    """Saving shards is collective work, whoever writes the files."""
    if world.is_first:
        save({"weight": torch.ones(4)}, checkpoint_id=tmp_path / "checkpoint")


# --- decisions that each rank takes for itself


@hangs("stop", size=2, waits=(0, 1), says=("barrier", "all_reduce"), report="talmolab/sleap-nn#471")
def test_a_barrier_does_not_share_the_order_to_stop(world):
    """All ranks meet after each step; only the first has been told to stop, and goes to the end."""
    model = replicated()
    for step in range(3):
        backward(model)
        dist.barrier()
        if world.is_first and step == 1:
            break
    dist.barrier()


@hangs("stop", size=3, waits=(0, 1, 2), says="all_reduce", report="Lightning-AI/pytorch-lightning#379")
def test_one_rank_reaches_its_accuracy_and_evaluates(world):
    """The rank that stops gathers results while the others train."""
    model = replicated()
    for _ in range(3 - (world.rank == 1)):
        backward(model)
    dist.all_gather_object([None] * world.size, "results")


@hangs(
    "logging",
    size=2,
    waits=(0, 1),
    says=("all_reduce", "barrier"),
    report="Lightning-AI/pytorch-lightning#19106",
)
def test_ranks_log_other_keys(world):
    """A metric of its own costs the first rank a reduction that the other one never makes."""
    logged = {"loss": 1.0} | ({"accuracy": 0.5} if world.is_first else {})
    for value in logged.values():
        dist.all_reduce(torch.tensor(value))
    dist.barrier()


@hangs(
    "logging",
    size=2,
    waits=(0, 1),
    says=("all_gather", "all_reduce"),
    report="Lightning-AI/torchmetrics#3503",
)
def test_a_metric_has_seen_one_batch_more(world):
    """Each element of a list is gathered by itself."""
    seen = [torch.ones(1) for _ in range(3 - world.rank)]
    for element in seen:
        dist.all_gather([torch.zeros(1) for _ in range(world.size)], element)
    reduce()


@hangs("logging", size=2, waits=(0,), says="all_gather", report="pytorch/pytorch#115310")
def test_the_first_rank_prints_what_gathers(world):
    """The text of an object needs all ranks."""

    class Loss:
        def __repr__(self):
            losses = [torch.zeros(1) for _ in range(world.size)]
            dist.all_gather(losses, torch.ones(1))
            return str(losses)

    if world.is_first:
        print(Loss())


@hangs(
    "scheduler",
    size=4,
    waits=(0, 1, 2, 3),
    says=("all_gather", "all_reduce"),
    report="NVIDIA/TensorRT-LLM#14020",
)
def test_whether_a_request_fits_is_decided_by_each_rank(world):
    """Where nothing fits a rank checks transfers with all others, who compute meanwhile."""
    free_blocks = [1, 0, 1, 0][world.rank]
    if not free_blocks:
        dist.all_gather_object([None] * world.size, "transfers")
    reduce()


@hangs("scheduler", size=2, waits=(0, 1), says=("broadcast", "all_gather"), report="sgl-project/sglang#33289")
def test_one_rank_is_idle_and_waits_for_requests(world):
    """A rank has dropped the batch that the other one still computes."""
    if world.is_first:
        dist.all_gather([torch.zeros(4) for _ in range(2)], torch.ones(4))
    dist.broadcast(torch.ones(1), 0)


@hangs("converges", size=2, waits=(0,), says="all_reduce")
def test_each_rank_iterates_until_its_own_error_is_small(world):
    """The error is not reduced, so that ranks need different numbers of steps."""
    error = 1.0 / (1 + world.rank)
    while error > 0.3:
        reduce()
        error /= 2


@hangs("random", size=2, waits=(1,), says="all_reduce")
def test_layers_are_dropped_by_the_seed_of_a_rank(world):
    """Stochastic depth with other seeds skips a tensor-parallel layer on one rank."""
    for keep in torch.rand(8, generator=torch.Generator().manual_seed(world.rank)):
        if keep > 0.5:
            reduce()


@hangs("cache", size=2, waits=(1,), says="all_reduce")
def test_one_rank_has_the_answer_in_its_cache(world):
    """A collective behind ``functools.cache`` runs where it has not run before."""

    @functools.cache
    def longest(length):
        return dist.all_reduce(torch.tensor(length), dist.ReduceOp.MAX)

    for length in (8, 8 + world.rank):
        longest(length)


@hangs("retry", size=2, waits=(1,), says="all_reduce")
def test_one_rank_retries_what_all_have_done(world):
    """An error after the collective makes one rank repeat it alone."""
    for attempt in range(2):
        reduce()
        with contextlib.suppress(OSError):
            if world.rank == 1 and not attempt:
                raise OSError("the log is full")
            break


@hangs("first", size=2, waits=(0, 1), says=("all_reduce", "barrier"), report="huggingface/trl#7241")
def test_a_collective_in_what_the_first_rank_does_first(world):
    """The others wait at a barrier until the first rank has prepared the data."""
    if not world.is_first:
        dist.barrier()
    reduce()
    if world.is_first:
        dist.barrier()


# --- code that runs where it is not seen


@hangs("signal", size=2, waits=(0, 1), says=("barrier", "all_reduce"), report="kyutai-labs/pocket-tts#277")
def test_only_one_rank_is_told_that_the_machine_goes(world):
    """The handler of the signal saves, which all ranks would have to do."""
    before = signal.signal(signal.SIGUSR1, lambda *_: dist.barrier())
    if world.is_first:
        os.kill(os.getpid(), signal.SIGUSR1)
    reduce()
    signal.signal(signal.SIGUSR1, before)


@hangs("finalizer", size=2, waits=(0, 1), says=("barrier", "all_reduce"), report="MP-Gadget/pfft-python#5")
def test_an_object_ends_earlier_on_one_rank(world):
    """Its finalizer is collective work."""
    field = nn.Linear(1, 1)
    weakref.finalize(field, dist.barrier)
    if world.is_first:
        del field
    reduce()


@hangs("recompute", size=2, waits=(0,), says="all_reduce")
def test_one_rank_recomputes_a_layer_that_reduces(world):
    """Activation checkpointing runs the layer and its collective twice."""

    def layer(x):
        total = x.detach().clone()
        dist.all_reduce(total)
        return x * total

    x = torch.ones(4, requires_grad=True)
    y = checkpoint(layer, x, use_reentrant=False) if world.is_first else layer(x)
    y.sum().backward()


@hangs("hooks", size=2, waits=(0,), says="all_reduce")
def test_a_layer_is_frozen_on_one_rank(world):
    """Hooks of its gradients never run there."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].requires_grad_(world.is_first)
    for parameter in filter(lambda each: each.requires_grad, model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda each: dist.all_reduce(each.grad))
    model(torch.ones(2, 4)).sum().backward()


@hangs("autograd", size=2, waits=(0,), says="all_reduce")
def test_one_rank_needs_no_gradient_of_a_differentiable_reduction(world):
    """Its backward pass reduces once more, where there is one."""
    x = torch.ones(4, requires_grad=world.is_first)
    y = differentiable.all_reduce(x * 2).sum()
    if y.requires_grad:
        y.backward()


@hangs("autograd", size=2, waits=(0,), says="all_to_all", report="pytorch/pytorch#148334")
def test_the_loss_of_one_rank_uses_no_token_of_the_experts(world):
    """The exchange runs forward on both ranks and backward on one."""
    x = torch.ones(4, requires_grad=True)
    tokens = functional.all_to_all_single_autograd(x * 2, [2, 2], [2, 2], dist.group.WORLD)
    loss = tokens.sum() if world.is_first else x.sum() + tokens.detach().sum()
    loss.backward()


# --- wrappers and optimizers


@hangs("ddp", size=2, waits=(0,), says="all_reduce", report="pytorch/pytorch#44353")
def test_a_batch_that_does_not_fit_is_skipped_by_one_rank(world):
    """It catches the error, and has one backward pass less."""
    model = replicated()
    for step in range(3):
        with contextlib.suppress(RuntimeError):
            rows = torch.ones(2, 5 if world.rank == 1 and step == 1 else 4)
            model(rows).sum().backward()


@hangs("ddp", size=2, waits=(0,), says="all_reduce")
def test_one_rank_looks_for_unused_parameters(world):
    """It reduces which ones were used, too."""
    model = replicated(find_unused_parameters=world.is_first)
    backward(model)


@hangs("join", size=2, waits=(0, 1), says="all_reduce")
def test_only_one_rank_trains_with_join(world):
    """It announces each step in an all_reduce, for which the other one has a gradient."""
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))  # as many elements as an announcement
    with Join([model]) if world.is_first else contextlib.nullcontext():
        for _ in range(2):
            model(torch.ones(2, 1)).sum().backward()
    dist.barrier()


@hangs("optimizer", size=2, waits=(0,), says="broadcast")
def test_one_rank_skips_the_step_of_a_sharded_optimizer(world):
    """Each rank sends the parameters that it owns after its step."""
    model = replicated()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    backward(model)
    overflow = world.rank == 1
    if not overflow:
        optimizer.step()


@hangs(
    "optimizer",
    size=3,
    waits=(0, 1, 2),
    says=("all_gather", "barrier"),
    report="facebookresearch/optimizers#149",
)
def test_a_rank_without_gradients_does_not_gather_the_updates(world):
    """The others wait for its part of the parameters."""
    parameter = nn.Parameter(torch.ones(2))
    if world.rank != 2:
        parameter.grad = torch.ones(2)
    if parameter.grad is not None:
        dist.all_gather_into_tensor(torch.zeros(6), parameter.grad)
    dist.barrier()


@hangs("optimizer", size=2, waits=(0,), says="all_reduce")
def test_models_are_averaged_in_other_periods(world):
    """One rank averages at the second step, the other one at the fourth."""
    model = nn.Linear(4, 4)
    averager = PeriodicModelAverager(period=2 * (1 + world.rank), warmup_steps=0)
    for _ in range(3):
        backward(model)
        averager.average_parameters(model.parameters())


@hangs("fsdp", size=2, waits=(0,), says="reduce_scatter")
def test_a_shard_is_frozen_on_one_rank(world):
    """No gradient of it is scattered there."""
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)))
    if world.rank == 1:
        model.requires_grad_(requires_grad=False)
    x = torch.ones(2, 4, requires_grad=True)
    model(x).sum().backward()


@hangs("fsdp", size=2, waits=(0,), says="all_reduce")
def test_the_norm_of_shards_is_logged_by_the_first_rank(world):
    """The norm of sharded gradients is a partial sum until all ranks ask for it."""
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)))
    model(torch.ones(2, 4)).sum().backward()
    norm = model.weight.grad.norm()
    if world.is_first:
        norm.full_tensor()
