"""Correct programs around a training step, that look like ones which hang or go wrong: no tool may find anything in them.

Where a report is named, the program is what its author made right, never its code.
"""

import contextlib
import copy
import itertools

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from planted import fine
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler


def mesh_of(world):
    return init_device_mesh("cpu", (world.size,))


def layers():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def replicated(**options):
    return DistributedDataParallel(layers(), **options)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def rows_of(world, count=2):
    """Other rows on each rank."""
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(world.rank))


def train(model, world, *, steps=2, optimizer=None):
    optimizer = optimizer or sgd(model)
    for _ in range(steps):
        model(rows_of(world)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


# --- decisions that ranks take together


@fine("stop", size=2, report="ultralytics/yolov5#8345")
def test_the_first_rank_shares_its_order_to_stop(world):
    """The flag travels as an object after each epoch."""
    model = replicated()
    for epoch in range(5):
        train(model, world, steps=1)
        stop = [world.is_first and epoch == 1]
        dist.broadcast_object_list(stop, 0)
        if stop[0]:
            break
    assert epoch == 1


@fine("stop", size=3, report="Lightning-AI/pytorch-lightning#2467")
def test_all_stop_if_any_rank_wants_to(world):
    """The wishes are added, and all ranks meet."""
    model = replicated()
    for epoch in range(5):
        train(model, world, steps=1)
        stop = torch.tensor(int(world.rank == 1 and epoch == 1))
        dist.all_reduce(stop)
        dist.barrier()
        if stop:
            break
    assert epoch == 1


@fine("skip", size=2, report="HannesStark/FlowSite#1")
def test_all_skip_a_batch_that_one_rank_cannot_take(world):
    """The error is caught on one rank, and shared before the backward pass."""
    model = replicated()
    optimizer = sgd(model)
    for step in range(3):
        loss = torch.zeros(())
        failed = torch.zeros(1)
        try:
            loss = model(torch.ones(2, 5 if world.rank == 1 and step == 1 else 4)).sum()
        except RuntimeError:
            failed += 1
        dist.all_reduce(failed, dist.ReduceOp.MAX)
        if not failed:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@fine("skip", size=2)
def test_all_skip_a_step_whose_gradient_overflows_on_one_rank(world):
    """The scale is lowered on all ranks."""
    model = replicated()
    optimizer = sgd(model)
    scale = 1.0
    for step in range(2):
        (model(rows_of(world)).sum() * scale).backward()
        overflows = torch.tensor(float(world.rank == 1 and step == 0))
        dist.all_reduce(overflows, dist.ReduceOp.MAX)
        if overflows:
            scale /= 2
        else:
            optimizer.step()
        optimizer.zero_grad()


@fine("dummy", size=2, report="pytorch/pytorch#148334")
def test_a_rank_without_images_runs_the_encoder_on_nothing(world):
    """Its result is multiplied by zero, so that forward and backward stay collective."""
    encoder, text = nn.Linear(4, 4), nn.Linear(4, 4)
    for part in (encoder, text):
        fully_shard(part, mesh=mesh_of(world))
    images = rows_of(world) if world.is_first else None
    seen = encoder(images) if images is not None else 0.0 * encoder(torch.zeros(2, 4))
    text(seen).sum().backward()


@fine("dummy", size=2, report="ray-project/ray#59544")
def test_gradients_that_a_rank_lacks_are_zeros(world):
    """All parameters are reduced, used or not."""
    torch.manual_seed(1)
    model = layers()
    optimizer = sgd(model)
    part = model if world.is_first else model[2]
    part(torch.ones(2, 4 if world.is_first else 8)).sum().backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
    optimizer.step()


# --- logging and metrics


@fine("logging", size=2, report="Lightning-AI/pytorch-lightning#19106")
def test_ranks_agree_on_the_keys_before_they_log(world):
    """The union of the keys is logged, in one order."""
    logged = {"loss": 1.0} | ({"accuracy": 0.5} if world.is_first else {"perplexity": 2.0})
    keys = [None] * world.size
    dist.all_gather_object(keys, sorted(logged))
    for key in sorted(set(itertools.chain.from_iterable(keys))):
        dist.all_reduce(torch.tensor(logged.get(key, 0.0)))


@fine("logging", size=2, report="Lightning-AI/torchmetrics#2170")
def test_states_of_other_lengths_are_padded(world):
    """The longest list decides, and the padding is cut off."""
    state = torch.ones(5 - 2 * world.rank)
    longest = torch.tensor(len(state))
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    padded = nn.functional.pad(state, (0, int(longest) - len(state)))
    gathered = [torch.zeros(int(longest)) for _ in range(world.size)]
    dist.all_gather(gathered, padded)
    assert torch.stack(gathered).sum() == 8


@fine("logging", size=2, report="Lightning-AI/torchmetrics#3503")
def test_all_ranks_refuse_lists_of_other_lengths(world):
    """The error is raised everywhere, after lengths were compared."""

    def gather(elements):
        lengths = [None] * world.size
        dist.all_gather_object(lengths, len(elements))
        if len(set(lengths)) > 1:
            raise ValueError(f"ranks have lists of {lengths}")

    with pytest.raises(ValueError, match="lists of"):
        gather([1.0] * (1 + world.rank))
    dist.barrier()


@fine("logging", size=2)
def test_the_first_rank_logs_what_all_have_reduced(world):
    """Only printing depends on the rank."""
    model = replicated()
    for _ in range(2):
        loss = model(rows_of(world)).square().mean()
        loss.backward()
        mean = loss.detach().clone()
        dist.reduce(mean, 0)
        if world.is_first:
            print(float(mean / world.size))


# --- saving and loading


@fine("save", size=3, report="instructlab/training#566")
def test_the_first_rank_saves_and_all_meet_afterwards(world, tmp_path):
    """Replicas are equal, so that one of them is enough."""
    model = replicated()
    train(model, world)
    if world.is_first:
        torch.save(model.module.state_dict(), tmp_path / "model.pt")
    dist.barrier()
    train(model, world)


@fine("load", size=2, report="KempnerInstitute/KempnerForge#49")
def test_the_first_rank_decides_whether_there_is_a_checkpoint(world, tmp_path):
    """Ranks look into different folders, and only the first one counts."""
    if world.is_first:
        torch.save({"step": 3}, tmp_path / "state.pt")
    exists = [(tmp_path / "state.pt").exists()]
    dist.broadcast_object_list(exists, 0)
    state = [torch.load(tmp_path / "state.pt") if world.is_first else None]
    if exists[0]:
        dist.broadcast_object_list(state, 0)
    assert state[0] == {"step": 3}


@fine("load", size=2)
def test_the_first_rank_prepares_the_data_for_all(world, world_tmp_path):
    """It goes first, and the others wait at its barrier."""

    @contextlib.contextmanager
    def first_rank_first():
        if not world.is_first:
            dist.barrier()
        yield
        if world.is_first:
            dist.barrier()

    data = world_tmp_path / "data.pt"
    with first_rank_first():
        if not data.exists():
            torch.save(torch.ones(4), data)
        rows = torch.load(data)
    dist.all_reduce(rows)


@fine("save", size=2)
def test_a_distributed_checkpoint_is_saved_and_loaded(world, world_tmp_path):
    """Each rank writes its shard, and reads it again."""
    model = layers()
    fully_shard(model, mesh=mesh_of(world))
    state = get_model_state_dict(model)
    save(state, checkpoint_id=world_tmp_path / "checkpoint")
    load(state, checkpoint_id=world_tmp_path / "checkpoint")
    set_model_state_dict(model, state)
    train(model, world)


@fine("save", size=2)
def test_full_weights_are_gathered_for_the_first_rank(world):
    """All ranks gather, one keeps."""
    model = layers()
    fully_shard(model, mesh=mesh_of(world))
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert bool(state) == world.is_first


@fine("save", size=2)
def test_fsdp_offers_its_full_state_to_one_rank(world):
    """The old interface does the same."""
    model = FullyShardedDataParallel(layers(), device_id=torch.device("cpu"), use_orig_params=True)
    wanted = FullStateDictConfig(rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, wanted):
        assert bool(model.state_dict()) == world.is_first


@fine("evaluate", size=2)
def test_the_first_rank_evaluates_the_model_inside_the_wrapper(world):
    """Without the wrapper nothing is communicated."""
    model = replicated()
    train(model, world)
    if world.is_first:
        with torch.no_grad():
            model.module(torch.ones(8, 4))
    dist.barrier()
    train(model, world)


# --- data


@fine("data", size=2)
def test_a_sampler_gives_all_ranks_as_many_rows(world):
    """Seven rows are padded to eight."""
    rows = torch.arange(28.0).view(7, 4)
    sampler = DistributedSampler(rows, shuffle=True, seed=1)
    model = replicated()
    optimizer = sgd(model)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in DataLoader(rows, batch_size=2, sampler=sampler):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


@fine("data", size=2, report="EleutherAI/bergson#227")
def test_batches_are_padded_to_the_longest_of_all_ranks(world):
    """Sequences differ in length from rank to rank."""
    length = torch.tensor(3 + world.rank)
    dist.all_reduce(length, dist.ReduceOp.MAX)
    rows = nn.functional.pad(torch.ones(2, 3 + world.rank), (0, int(length) - 3 - world.rank))
    dist.all_gather_into_tensor(torch.zeros(4, int(length)), rows)


@fine("data", size=2)
def test_micro_batches_are_as_many_as_a_rank_has_tokens(world):
    """Ranks accumulate two or three, and reduce with the last one."""
    model = replicated()
    optimizer = sgd(model)
    with model.no_sync():
        for _ in range(1 + world.rank):
            model(rows_of(world)).sum().backward()
    model(rows_of(world)).sum().backward()
    optimizer.step()


@fine("data", size=3)
def test_three_kinds_of_modules_join_uneven_inputs(world):
    """A sharded optimizer is joined with its model."""
    model = replicated()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        train(model, world, steps=1 + world.rank, optimizer=optimizer)


# --- DistributedDataParallel


class Branches(nn.Module):
    """Two layers, of which a pass takes one."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, rows, branch):
        return self.branches[branch](rows)


@fine("ddp", size=2)
def test_ranks_take_different_branches_and_look_for_unused_parameters(world):
    """Zeros are reduced for the branch that a rank has not taken."""
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = sgd(model)
    for step in range(3):
        model(rows_of(world), (world.rank + step) % 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@fine("ddp", size=2)
def test_a_static_graph_with_recomputed_layers(world):
    """A layer runs twice, its gradients are reduced once."""

    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, rows):
            return checkpoint(self.layers, rows, use_reentrant=False)

    train(DistributedDataParallel(Recomputed(), static_graph=True), world, steps=3)


@fine("ddp", size=2)
def test_gradients_are_compressed_in_one_of_two_models(world):
    """A hook belongs to its model."""
    models = [replicated(), replicated()]
    models[0].register_comm_hook(None, fp16_compress_hook)
    for model in models:
        train(model, world)


@fine("ddp", size=2)
def test_gradients_are_reduced_in_low_rank(world):
    """PowerSGD reduces two small matrices and carries its error."""
    model = replicated()
    state = power_sgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    train(model, world, steps=4)


@fine("ddp", size=2)
def test_two_networks_train_against_each_other(world):
    """While one of them learns the other one is frozen."""
    maker, judge = (DistributedDataParallel(nn.Linear(4, 4)) for _ in range(2))
    optimizers = {maker: sgd(maker), judge: sgd(judge)}
    for learner, other in ((judge, maker), (maker, judge)):
        other.requires_grad_(requires_grad=False)
        learner.requires_grad_(requires_grad=True)
        judge.module(maker.module(rows_of(world))) if learner is maker else None
        learner(rows_of(world)).sum().backward()
        optimizers[learner].step()
        other.requires_grad_(requires_grad=True)


@fine("ddp", size=2)
def test_the_first_rank_keeps_an_average_of_weights(world):
    """The average takes no part in training."""
    model = replicated()
    average = copy.deepcopy(model.module) if world.is_first else None
    for _ in range(2):
        train(model, world, steps=1)
        if average is not None:
            for kept, weight in zip(average.parameters(), model.parameters(), strict=True):
                kept.data.lerp_(weight.data, 0.1)
    dist.barrier()


@fine("ddp", size=2)
def test_a_norm_of_reduced_gradients_clips_all_ranks_alike(world):
    """Clipping follows the reduction."""
    model = replicated()
    optimizer = sgd(model)
    for _ in range(2):
        model(rows_of(world)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


@fine("ddp", size=2)
def test_a_replica_is_compared_with_the_first_one_now_and_then(world):
    """A check of equal weights is a collective like any other."""
    model = replicated()
    for step in range(4):
        train(model, world, steps=1)
        if step % 2:
            flat = nn.utils.parameters_to_vector(model.parameters()).detach()
            first = flat.clone()
            dist.broadcast(first, 0)
            assert torch.equal(first, flat)


# --- parameters that are together only now and then


@fine("averaging", size=2)
def test_models_are_averaged_every_second_step(world):
    """Between averages each rank goes its own way."""
    torch.manual_seed(1)
    model = layers()
    averager = PeriodicModelAverager(period=2, warmup_steps=0)
    optimizer = sgd(model)
    for _ in range(4):
        model(rows_of(world)).sum().backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
        optimizer.zero_grad()


@fine("averaging", size=2, report="PrimeIntellect-ai/prime-diloco#97")
def test_an_outer_step_takes_the_mean_of_what_ranks_have_learned(world):
    """Inner steps are local, the outer optimizer sees their mean difference."""
    torch.manual_seed(1)
    outer, inner = layers(), layers()
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(2):
        inner.load_state_dict(outer.state_dict())
        train(inner, world)
        for kept, learned in zip(outer.parameters(), inner.parameters(), strict=True):
            kept.grad = kept.data - learned.data
            dist.all_reduce(kept.grad)
            kept.grad /= world.size
        optimizer.step()


@fine("averaging", size=2)
def test_each_rank_keeps_a_head_of_its_own(world):
    """Ranks average the body, and each trains a head for its own data."""
    torch.manual_seed(1)
    body, head = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for _ in range(2):
        for _ in range(2):
            head(body(rows_of(world))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        for parameter in body.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= world.size


@fine("teacher", size=3)
def test_a_teacher_on_one_rank_sends_what_students_learn(world):
    """The first rank has another model and no gradient to share."""
    students = dist.new_group([1, 2])
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    targets = torch.zeros(2, 2)
    if world.is_first:
        targets = nn.Linear(4, 2)(torch.ones(2, 4)).detach()
    dist.broadcast(targets, 0)
    if not world.is_first:
        optimizer = sgd(model)
        (model(torch.ones(2, 4)) - targets).square().sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=students)
        optimizer.step()


# --- sharded models


@fine("fsdp", size=2)
def test_a_frozen_layer_is_sharded_by_itself(world):
    """Its weights are gathered, its gradients never."""
    model = layers()
    model[0].requires_grad_(requires_grad=False)
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh_of(world))
    train(model, world, optimizer=torch.optim.SGD(model[2].parameters(), lr=0.1))


@fine("fsdp", size=2)
def test_gradients_of_shards_are_accumulated(world):
    """Ranks reduce with the last micro batch, and one of them has more of these."""
    model = layers()
    fully_shard(model, mesh=mesh_of(world), reshard_after_forward=False)
    model.set_requires_gradient_sync(requires_gradient_sync=False)
    model.set_reshard_after_backward(reshard_after_backward=False)  # else each pass gathers the weights anew
    for _ in range(1 + world.rank):
        model(rows_of(world)).sum().backward()
    model.set_requires_gradient_sync(requires_gradient_sync=True)
    model(rows_of(world)).sum().backward()


@fine("fsdp", size=2)
def test_shards_compute_in_half_precision(world):
    """Weights are gathered in one precision and gradients reduced in another one."""
    model = layers()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=mesh_of(world), mp_policy=policy)
    train(model, world)


@fine("fsdp", size=4)
def test_shards_are_replicated(world):
    """Two dimensions of a mesh, one for shards."""
    model = layers()
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    train(model, world)


@fine("fsdp", size=2)
def test_gradients_only_are_sharded(world):
    """The old interface, with steps that do not reduce."""
    strategy = ShardingStrategy.SHARD_GRAD_OP
    model = FullyShardedDataParallel(layers(), sharding_strategy=strategy, device_id=torch.device("cpu"))
    with model.no_sync():
        model(rows_of(world)).sum().backward()
    model(rows_of(world)).sum().backward()
    model.clip_grad_norm_(1.0)


@fine("fsdp", size=2)
def test_the_norm_of_shards_is_asked_for_by_all(world):
    """All ranks gather it, one prints it."""
    model = layers()
    fully_shard(model, mesh=mesh_of(world))
    model(rows_of(world)).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    if world.is_first:
        print(float(norm))


# --- tensor-parallel models


@fine("tensor parallel", size=2)
def test_a_norm_layer_has_a_part_of_the_sequence(world):
    """Sequence and tensor parallelism change places."""
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4))
    plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1)), "2": RowwiseParallel()}
    parallelize_module(model, mesh_of(world), plan)
    model(torch.ones(2, 2, 4)).sum().backward()


@fine("tensor parallel", size=2)
def test_the_loss_is_computed_of_sharded_logits(world):
    """No rank has all classes."""
    mesh = mesh_of(world)
    logits = distribute_tensor(torch.randn(4, 8, requires_grad=True), mesh, [Shard(1)])
    with loss_parallel():
        nn.functional.cross_entropy(logits, torch.tensor([0, 3, 5, 7])).backward()


@fine("autograd", size=2)
def test_reductions_are_differentiated(world):
    """Backward passes reduce, too, on all ranks."""
    x = torch.ones(4, requires_grad=True)
    y = differentiable.all_reduce(x * (1 + world.rank))
    z = torch.cat(differentiable.all_gather(y * 2))
    z.sum().backward()


@fine("recompute", size=2)
def test_a_reduction_is_recomputed_on_all_ranks(world):
    """A layer with a collective runs twice everywhere."""

    def layer(x):
        total = x.detach().clone()
        dist.all_reduce(total)
        return x * total

    x = torch.ones(4, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
