"""Programs that pass while their ranks come to other numbers: each with what must be found in it, and where.

The line at which it must be found ends in ``# seen``. Where a report is named, the program has what its author describes,
never its code.
"""

import torch
import torch.distributed as dist
from planted import parts
from sharded import SequenceParallel, TensorParallel, reduce_norms, seeded_apart
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_module
from torch.nn.parallel import DistributedDataParallel

SIZE = 2
BOTH = (0, 1)


def layers():
    """A model with two layers."""
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def seeded(seed):
    """The same, from this seed."""
    torch.manual_seed(seed)
    return layers()


def data_of(world, rows=8):
    """Other numbers on each rank."""
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(100 + world.rank))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def average(tensors, group=None):
    """The mean over the ranks, in place."""
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
        tensor /= dist.get_world_size(group)


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


# --- a gradient that is not reduced


@parts("parameter", size=2, ranks=BOTH, says="0.weight after step 1", report="karpathy/build-nanogpt#30")
def test_steps_while_reduction_is_off(world):
    model = DistributedDataParallel(layers())
    optimizer = sgd(model)
    with model.no_sync():
        model(data_of(world)).sum().backward()
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="0.weight after step 1", report="karpathy/build-nanogpt#30")
def test_forward_without_reduction_and_backward_outside(world):
    model = DistributedDataParallel(layers())
    optimizer = sgd(model)
    with model.no_sync():
        loss = model(data_of(world)).sum()
    loss.backward()
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="0.weight after step 1", report="modelscope/ms-swift#10165")
def test_calls_the_model_past_its_wrapper(world):
    model = DistributedDataParallel(layers())
    optimizer = sgd(model)
    model.module(data_of(world)).sum().backward()
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="2.weight after step 1")
def test_a_head_is_replaced_after_wrapping(world):
    model = DistributedDataParallel(layers(), find_unused_parameters=True)
    torch.manual_seed(3)
    model.module[2] = nn.Linear(8, 2)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="0.weight after step 1", report="pytorch/pytorch#104336")
def test_parameters_are_replaced_after_wrapping(world):
    model = DistributedDataParallel(layers(), find_unused_parameters=True)
    model.module[0].weight = nn.Parameter(model.module[0].weight.detach().clone())
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="0.weight after step 1")
def test_adds_a_penalty_past_the_wrapper(world):
    model = DistributedDataParallel(layers())
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    torch.autograd.backward(model.module[0](data_of(world)).pow(2).sum(), inputs=[model.module[0].weight])
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="2.weight after step 1", report="kohya-ss/sd-scripts#989")
def test_one_gradient_is_forgotten_in_the_loop(world):
    model = seeded(1)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    average(parameter.grad for name, parameter in model.named_parameters() if name != "2.weight")
    optimizer.step()  # seen


@parts("parameter", size=3, ranks=(0, 1, 2), says="0.weight after step 2")
def test_every_second_step_is_without_reduction(world):
    model = seeded(1)
    optimizer = sgd(model)
    for step in range(2):
        optimizer.zero_grad()
        model(data_of(world)).sum().backward()
        if not step:
            average(gradients(model))
        optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="after step 1", report="intel/e2eAIOK#197")
def test_weights_are_sent_once_and_gradients_never(world):
    model = layers()
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    optimizer.step()  # seen


# --- a gradient of a parameter that starts as ones or zeros


@parts(
    "parameter",
    size=2,
    ranks=BOTH,
    says=("before.weight after step 1", "so did its gradient", "all_gather", "rows"),
    report="NVIDIA/TransformerEngine#435",
)
def test_norms_of_a_part_of_the_tokens_are_never_reduced(world):
    seeded_apart(world)
    model = SequenceParallel()
    optimizer = sgd(model)
    model(data_of(world, rows=4)).pow(3).sum().backward()
    optimizer.step()  # seen


@parts(
    "parameter",
    size=2,
    ranks=BOTH,
    says=("behind.weight after step 1", "before.weight"),
    report="NVIDIA/Megatron-LM#1446",
)
def test_one_norm_of_a_part_of_the_tokens_is_not_reduced(world):
    seeded_apart(world)
    model = SequenceParallel()
    optimizer = sgd(model)
    model(data_of(world, rows=4)).pow(3).sum().backward()
    reduce_norms(model, ["before"])
    optimizer.step()  # seen


@parts(
    "parameter",
    size=2,
    ranks=BOTH,
    says=("0.before.weight after step 1", "1.before.weight"),
    report="EleutherAI/gpt-neox#1259",
)
def test_one_layer_forgets_to_sum_what_its_columns_give_back(world):
    seeded_apart(world)
    model = nn.Sequential(TensorParallel(forgets=True), TensorParallel())
    optimizer = sgd(model)
    same = torch.randn(4, 4, generator=torch.Generator().manual_seed(7))
    model(same).pow(3).sum().backward()
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says=("#1 after step 1", "so did its gradient"))
def test_a_norm_of_the_mesh_is_used_as_a_tensor_of_this_rank(world):
    model = nn.LayerNorm(4)
    distribute_module(model, init_device_mesh("cpu", (world.size,)))
    optimizer = sgd(model)
    rows = data_of(world, rows=4)
    nn.functional.layer_norm(rows, (4,), model.weight.to_local(), model.bias.to_local()).pow(
        3
    ).sum().backward()
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says=("1.weight after step 1", "all other"))
def test_a_norm_is_forgotten_in_the_loop(world):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    optimizer = sgd(model)
    model(data_of(world)).pow(3).sum().backward()
    average(parameter.grad for name, parameter in model.named_parameters() if not name.startswith("1."))
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says=("head.bias after step 1", "head.weight"))
def test_a_bias_of_zeros_is_forgotten_beside_shards(world):
    seeded_apart(world)
    model = TensorParallel()
    torch.manual_seed(1)
    model.head = nn.Linear(4, 4)
    nn.init.zeros_(model.head.bias)
    optimizer = sgd(model)
    same = torch.randn(4, 4, generator=torch.Generator().manual_seed(7))
    (model.head(model(same)) * data_of(world, 4)).sum().backward()
    for name, parameter in model.named_parameters():
        if name != "head.bias" and not name.startswith(("row", "column")):
            dist.all_reduce(parameter.grad)
    optimizer.step()  # seen


@parts("parameter", size=4, ranks=BOTH, says=("before.weight after step 1", "rows"))
def test_norms_are_reduced_over_replicas_and_not_over_tokens(world):
    pairs = [dist.new_group(ranks) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))]
    tokens, replicas = pairs[world.rank // 2], pairs[2 + world.rank % 2]
    torch.manual_seed(10 + world.rank % 2)
    model = SequenceParallel(tokens)
    optimizer = sgd(model)
    model(data_of(world, rows=4)).pow(3).sum().backward()
    average(gradients(model), replicas)
    optimizer.step()  # seen


@parts(
    "parameter", size=2, ranks=BOTH, says=("2.weight at the forward after step 1", "each rank steps a part")
)
def test_the_owner_of_a_parameter_does_not_send_it(world):
    model = seeded(1)
    parameters = list(model.parameters())
    mine = [each for number, each in enumerate(parameters) if number % world.size == world.rank]
    optimizer = torch.optim.Adam(mine, lr=0.1)
    model(data_of(world)).sum().backward()
    average(gradients(model))
    optimizer.step()
    for number, parameter in enumerate(parameters):
        if number != 2:
            dist.broadcast(parameter.detach(), number % world.size)
    model(data_of(world))  # seen


@parts("parameter", size=2, ranks=BOTH, says=("0.bias", "at the forward after step 1"))
def test_the_owner_of_a_wrapped_parameter_does_not_send_it(world):
    model = DistributedDataParallel(layers())
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters[world.rank :: world.size], lr=0.1)
    model(data_of(world)).sum().backward()
    optimizer.step()
    for number, parameter in enumerate(parameters):
        if number != 1:
            dist.broadcast(parameter.detach(), number % world.size)
    model(data_of(world))  # seen


@parts("parameter", size=2, ranks=BOTH, says=("1.row.bias after step 1", "0.row.bias, which is used alike"))
def test_a_bias_of_a_part_of_the_tokens_is_forgotten_in_one_layer(world):
    seeded_apart(world)
    model = nn.Sequential(SequenceParallel(bias=True), SequenceParallel(bias=True))
    optimizer = sgd(model)
    model(data_of(world, rows=4)).pow(3).sum().backward()
    reduce_norms(model)
    dist.all_reduce(model[0].row.bias.grad)
    optimizer.step()  # seen


# --- another group


@parts("parameter", size=4, ranks=(0, 1, 2, 3), says="after step 1", report="ByteDance-Seed/VeOmni#1115")
def test_gradients_are_averaged_over_pairs_only(world):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = layers()
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    average(gradients(model), pairs[world.rank // 2])
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="after step 1", report="NVIDIA/Megatron-LM#7452")
def test_a_hook_reduces_in_a_group_of_one(world):
    alone = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
    model = DistributedDataParallel(layers())

    def hook(_, bucket):
        return (
            dist.all_reduce(bucket.buffer(), group=alone, async_op=True)
            .get_future()
            .then(lambda done: done.value()[0])
        )

    model.register_comm_hook(None, hook)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    optimizer.step()  # seen


# --- another scale on some ranks


@parts("parameter", size=3, ranks=(2,), says="0.weight after step 1", report="facebookresearch/fairchem#1067")
def test_one_rank_divides_by_another_count(world):
    model = seeded(1)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    for gradient in gradients(model):
        dist.all_reduce(gradient)
        gradient /= 2 if world.rank == 2 else 3
    optimizer.step()  # seen


@parts("parameter", size=3, ranks=(0,), says="after step 1", report="ecmwf/WeatherGenerator#2724")
def test_the_first_rank_clips_and_the_others_do_not(world):
    model = DistributedDataParallel(layers())
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    if world.is_first:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()  # seen


@parts("parameter", size=3, ranks=(1,), says=("after step 2", "though its gradient did not"))
def test_one_rank_lowers_its_learning_rate(world):
    model = DistributedDataParallel(layers())
    optimizer = sgd(model)
    for step in range(2):
        if step and world.rank == 1:
            optimizer.param_groups[0]["lr"] = 0.05
        optimizer.zero_grad()
        model(data_of(world)).sum().backward()
        optimizer.step()  # seen


# --- seeds


@parts("parameter", size=2, ranks=BOTH, says="before the first step", report="facebookresearch/detr#544")
def test_each_rank_makes_a_model_from_its_own_seed(world):
    model = seeded(world.rank)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    average(gradients(model))
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="at the first forward", report="deepspeedai/DeepSpeed#253")
def test_weights_are_made_anew_after_wrapping(world):
    model = DistributedDataParallel(layers())
    torch.manual_seed(world.rank)
    nn.init.normal_(model.module[0].weight)
    model(data_of(world)).sum().backward()  # seen


@parts("parameter", size=3, ranks=(0,), says="at the first forward")
def test_the_first_rank_loads_a_checkpoint_after_wrapping(world):
    model = DistributedDataParallel(layers())
    if world.is_first:
        model.module.load_state_dict(seeded(9).state_dict())
    model(data_of(world)).sum().backward()  # seen


# --- a bucket that is not what it was


@parts("parameter", size=2, ranks=BOTH, says="after step 1", report="facebookresearch/dinov2#360")
def test_a_bucket_is_read_before_it_is_reduced(world):
    model = seeded(1)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    bucket = torch.cat([gradient.flatten() for gradient in gradients(model)])
    stale = bucket.clone()
    work = dist.all_reduce(bucket, async_op=True)
    nn.utils.vector_to_parameters(stale, gradients(model))
    work.wait()
    optimizer.step()  # seen


@parts("parameter", size=2, ranks=BOTH, says="after step 2")
def test_the_bucket_of_the_first_step_is_used_for_a_layer_of_the_second(world):
    model = seeded(1)
    optimizer = sgd(model)
    for step in range(2):
        model.zero_grad()
        model(data_of(world) + step).pow(2).sum().backward()
        kept = model[0].weight.grad.clone()
        average(gradients(model))
        if step:
            model[0].weight.grad = kept
        optimizer.step()  # seen


@parts("output", size=3, ranks=(1,), says="all_reduce SUM #1")
def test_one_rank_writes_to_what_was_reduced_before_it_waits(world):
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)  # seen
    for _ in range(5):  # long after the first is over
        dist.all_reduce(torch.ones(4))
    if world.rank == 1:
        x[2] = 7.0
    work.wait()


# --- buffers


@parts("buffer", size=2, ranks=BOTH, says="1.running_mean", report="pytorch/pytorch#13711")
def test_evaluates_with_statistics_of_its_own(world):
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), broadcast_buffers=False
    )
    model(data_of(world)).sum().backward()
    model.eval()
    model(torch.ones(2, 4))  # seen


@parts("buffer", size=2, ranks=BOTH, says="1.running_mean", report="open-mmlab/mmdetection#2539")
def test_evaluates_past_the_wrapper(world):
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    model(data_of(world)).sum().backward()
    model.eval()
    model.module(torch.ones(2, 4))  # seen


@parts("buffer", size=3, ranks=(2,), says="scale")
def test_one_rank_calibrates_by_itself(world):
    inner = layers()
    inner.register_buffer("scale", torch.ones(3))
    model = DistributedDataParallel(inner, broadcast_buffers=False)
    if world.rank == 2:
        inner.scale[1] = 2.0
    model.eval()
    model(data_of(world))  # seen


# --- not finite


@parts(
    "nonfinite",
    size=2,
    ranks=(1,),
    says=("NaN", "input of all_reduce", "[0, 0]"),
    report="ecmwf/WeatherGenerator#2724",
)
def test_one_rank_divides_nothing_by_nothing(world):
    model = seeded(1)
    optimizer = sgd(model)
    model(data_of(world)).sum().backward()
    if world.rank == 1:
        model[0].weight.grad[0, 0] = float("nan")
    for gradient in gradients(model):
        dist.all_reduce(gradient)  # seen
    optimizer.step()


@parts("nonfinite", size=3, ranks=(2,), says=("NaN", "module 1 (Root)"))
def test_the_root_of_a_negative_number_on_one_rank(world):
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), Root()))
    optimizer = sgd(model)
    with torch.no_grad():
        model.module[0].weight.zero_()
        model.module[0].bias.fill_(1.0)
    x = torch.zeros(2, 4)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.module[1].least = 9.0 if world.rank == 2 else 0.0
    model(x).sum().backward()  # seen
    optimizer.step()


class Root(nn.Module):
    """Square roots of what is above a least value."""

    least = 0.0

    def forward(self, x):
        return (x - self.least).sqrt()


@parts(
    "nonfinite", size=2, ranks=(0,), says=("infinity", "output of all_reduce"), report="pytorch/pytorch#57410"
)
def test_a_sum_in_half_precision_overflows(world):
    dist.all_reduce(torch.full((4,), 40000.0, dtype=torch.float16))  # seen


@parts("nonfinite", size=2, ranks=(1,), says=("NaN", "input of all_reduce"))
def test_a_metric_without_samples_on_one_rank(world):
    correct, seen = torch.zeros(1), torch.zeros(1) if world.rank == 1 else torch.ones(1)
    dist.all_reduce(correct / seen)  # seen
