"""Faults in FSDP, its state dictionaries, DTensor and tensor parallel layers."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict as state
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
from torch.distributed.fsdp._fully_shard import _fsdp_param as parameter
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_of_parameters
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import RowwiseParallel

from .faults import SINGLE_GATHER, SINGLE_SCATTER, Fault, fault, replace

FULL = "fsdp/test_fully_shard.py"
ONE = "fsdp/test_fsdp1.py"
STATE = "fsdp/test_state.py"
DTENSOR = "fsdp/test_dtensor.py"


def _divide_by(this: Fault, factor: Any) -> None:
    """Gradients are summed and divided by ``factor(world size)``."""

    def make(original: Any) -> Any:
        def changed(group: Any, *args: Any, **kwargs: Any) -> Any:
            original(group, *args, **kwargs)
            return None, factor(group.size()), dist.ReduceOp.SUM, dist.ReduceOp.SUM

        return changed

    owners = [m for m in (collectives, group_of_parameters) if hasattr(m, "_get_gradient_divide_factors")]
    replace("_get_gradient_divide_factors", make, this, *owners)


@fault("shards-not-averaged", "reduced gradients are summed, not averaged", suite=FULL)
def _(this: Fault) -> None:
    _divide_by(this, lambda size: None)


@fault("shards-averaged-by-wrong-size", "gradients are divided by one rank too many", suite=FULL)
def _(this: Fault) -> None:
    _divide_by(this, lambda size: size + 1)


@fault("own-gradients-only", "a rank keeps its own gradients instead of the reduced ones", suite=FULL)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(output: Any, input: Any, group: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            original(output, input, group=group, **kwargs)
            size, rank = dist.get_world_size(group), dist.get_rank(group)
            output.view(-1).copy_(input.view(size, -1)[rank] * size)

        return changed

    replace(SINGLE_SCATTER, make, this, dist)


@fault("one-shard-stale", "gathered parameters have an old shard", suite=FULL)
def _(this: Fault) -> None:
    first: dict[int, torch.Tensor] = {}

    def make(original: Any) -> Any:
        def changed(output: Any, input: Any, group: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            work = original(output, input, group=group, **kwargs)
            if work is not None:
                work.wait()
            last = output.view(dist.get_world_size(group), -1)[-1]
            last.copy_(first.setdefault(output.numel(), last.clone()))
            return work

        return changed

    replace(SINGLE_GATHER, make, this, dist)


@fault("replicas-not-reduced", "hybrid sharding leaves out the reduction over replicas", suite=FULL)
def _(this: Fault) -> None:
    replace("all_reduce", lambda original: lambda tensor, *args, **kwargs: None, this, dist)


@fault("compute-dtype-ignored", "parameters are not cast for the computation", suite=FULL)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(self: Any, policy: Any) -> None:
            original(self, policy)
            self.param_dtype = None

        return changed

    replace("init_dtype_attrs", make, this, parameter.FSDPParam)


@fault("reduce-dtype-ignored", "gradients are reduced in float32 whatever was asked for", suite=FULL)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        def changed(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            # FSDP passes None where the computation has that dtype already.
            given.arguments["reduce_dtype"] = torch.float32
            return original(*given.args, **given.kwargs)

        return changed

    replace("foreach_reduce", make, this, group_of_parameters)


@fault("output-dtype-ignored", "outputs keep the dtype of the computation", suite=FULL)
def _(this: Fault) -> None:
    from torch.distributed.fsdp import fully_shard as public
    from torch.distributed.fsdp._fully_shard import _fsdp_state as module

    assert public is not None
    replace("_post_forward", _without_output_dtype, this, module.FSDPState)


def _without_output_dtype(original: Any) -> Any:
    def changed(self: Any, *args: Any) -> Any:
        import dataclasses

        self._mp_policy = dataclasses.replace(self._mp_policy, output_dtype=None)
        return original(self, *args)

    return changed


@fault("accumulation-communicates", "every backward communicates", suite=FULL)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        return lambda self, *args, **kwargs: original(self, True)

    replace("set_requires_gradient_sync", make, this, FSDPModule)


@fault("never-communicates", "gradients are accumulated and never reduced", suite=FULL)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        return lambda self, *args, **kwargs: original(self, False)

    replace("set_requires_gradient_sync", make, this, FSDPModule)


@fault("never-resharded", "parameters stay whole after forward", suite=FULL)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(self: Any) -> None:
            if self._training_state is not group_of_parameters.TrainingState.FORWARD:
                original(self)

        return changed

    replace("reshard", make, this, group_of_parameters.FSDPParamGroup)


@fault("divide-factor-ignored", "a divide factor that was set is not used", suite=FULL)
def _(this: Fault) -> None:
    replace("set_gradient_divide_factor", lambda original: lambda self, factor: None, this, FSDPModule)


@fault("clips-its-own-shard", "the norm that clips is that of the own shard", suite=FULL)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            parts = []
            for each in parameters:
                part = torch.nn.Parameter(
                    each.detach().to_local() if isinstance(each, DTensor) else each.detach()
                )
                part.grad = each.grad.to_local() if isinstance(each.grad, DTensor) else each.grad
                parts.append(part)
            return original(parts, *args, **kwargs)

        return changed

    replace("clip_grad_norm_", make, this, torch.nn.utils)


@fault("first-state-entry-lost", "a state dict lacks an entry", suite=STATE)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            found.pop(next(iter(found)), None)
            return found

        return changed

    import sys

    suites = [m for name, m in sys.modules.items() if name.endswith("fsdp.test_state")]
    replace("get_model_state_dict", make, this, state, *suites)


def _in_suite(name: str, make: Any, this: Fault) -> None:
    """Replace a function of the state dict module, also where the suite has imported it."""
    import sys

    suites = [m for path, m in sys.modules.items() if path.endswith("fsdp.test_state")]
    replace(name, make, this, state, *suites)


@fault("state-not-loaded", "a state dict that is set changes nothing", suite=STATE)
def _(this: Fault) -> None:
    _in_suite("set_model_state_dict", lambda original: lambda *args, **kwargs: None, this)


@fault("optimizer-state-not-loaded", "the state of the optimiser is left out", suite=STATE)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(model: Any, optimizer: Any, *, optim_state_dict: Any, **kwargs: Any) -> Any:
            return original(model, [], optim_state_dict={}, **kwargs)

        return changed

    _in_suite("set_state_dict", make, this)


@fault(
    "full-state-is-a-shard", "the full state dict of a rank has zeros for other ranks' shards", suite=STATE
)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(*args: Any, options: Any = None, **kwargs: Any) -> Any:
            found = original(*args, options=options, **kwargs)
            if options is not None and options.full_state_dict:
                for value in found.values():
                    if value.ndim and len(value) > 1:
                        value[len(value) // 2 :] = 0
            return found

        return changed

    _in_suite("get_model_state_dict", make, this)


@fault("checkpoint-not-read", "loading a checkpoint changes nothing", suite=STATE)
def _(this: Fault) -> None:
    replace("load", lambda original: lambda *args, **kwargs: None, this, dcp)


@fault("wrong-whole", "the whole of a sharded tensor has its rows turned around", suite=DTENSOR)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        return lambda self, **kwargs: original(self, **kwargs).flip(0) if self.ndim else original(self)

    replace("full_tensor", make, this, DTensor)


@fault("not-redistributed", "redistribution changes nothing", suite=DTENSOR)
def _(this: Fault) -> None:
    replace("redistribute", lambda original: lambda self, *args, **kwargs: self, this, DTensor)


@fault("rows-not-reduced", "a row-wise layer returns its own partial sum", suite=DTENSOR)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Any:
            return args[-2].to_local() if isinstance(args[-2], DTensor) else args[-2]

        return changed

    original = RowwiseParallel._prepare_output_fn
    changed = make(original)
    RowwiseParallel._prepare_output_fn = staticmethod(  # type: ignore[method-assign]
        functools.wraps(original)(lambda *a, **k: changed(*a, **k) if this.here() else original(*a, **k))
    )


@fault("fsdp1-no-sync-ignored", "FSDP1 reduces inside no_sync", suite=ONE)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        return lambda self: contextlib.nullcontext()

    replace("no_sync", make, this, FullyShardedDataParallel)


@fault("writes-are-lost", "what is written into summoned parameters is dropped", suite=ONE)
def _(this: Fault) -> None:
    original = FullyShardedDataParallel.summon_full_params

    def changed(module: Any, *args: Any, **kwargs: Any) -> Any:
        return original(module, *args, **{**kwargs, **({"writeback": False} if this.here() else {})})

    FullyShardedDataParallel.summon_full_params = staticmethod(changed)  # type: ignore[method-assign,assignment]


@fault("fsdp1-not-averaged", "FSDP1 sums gradients and does not average them", suite=ONE)
def _(this: Fault) -> None:
    from torch.distributed.fsdp import _runtime_utils as runtime

    replace("_div_if_needed", lambda original: lambda tensor, factor: None, this, runtime)


@fault("fsdp1-precision-ignored", "FSDP1 computes in the parameters' own dtype", suite=ONE)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(self: Any, *args: Any, mixed_precision: Any = None, **kwargs: Any) -> None:
            original(self, *args, **kwargs)

        return changed

    replace("__init__", make, this, FullyShardedDataParallel)
