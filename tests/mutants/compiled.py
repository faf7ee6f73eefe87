"""Faults in compiled distributed training."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from torch._dynamo.backends.distributed import DDPOptimizer

from .faults import Fault, fault, replace

SPLITS = "dynamo/test_splits.py"
DDP = "dynamo/test_ddp.py"
FSDP = "dynamo/test_fsdp.py"
COLLECTIVES = "dynamo/test_collectives.py"
COUNTED = "the splitter of torch 2.13 counts them anyway; the test that says so is an expected failure"


def _change_results(this: Fault, change: Any) -> None:
    """``change(result of the compiled code, the model, its inputs)`` is what the caller gets."""

    def make(original: Any) -> Any:
        def changed(model: Any = None, **kwargs: Any) -> Any:
            if model is None or not isinstance(model, torch.nn.Module):
                return original(model, **kwargs)
            compiled = original(model, **kwargs)
            return lambda *inputs: change(compiled, model, inputs)

        return changed

    replace("compile", make, this, torch)


def _first(result: Any, change: Any) -> Any:
    return (change(result[0]), *result[1:]) if isinstance(result, tuple) else change(result)


@fault("never-split", "the graph of a model in DDP is not split", suite=SPLITS)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        return lambda self, graph, inputs: self.backend_compile_fn(graph, inputs)

    replace("compile_fn", make, this, DDPOptimizer)


def _change_cap(this: Fault, change: Any) -> None:
    def make(original: Any) -> Any:
        def changed(self: Any, bucket_bytes_cap: int, *args: Any, **kwargs: Any) -> None:
            original(self, bucket_bytes_cap, *args, **kwargs)
            change(self)

        return changed

    replace("__init__", make, this, DDPOptimizer)


@fault("buckets-too-large", "buckets are filled four times over", suite=SPLITS)
def _(this: Fault) -> None:
    def change(optimizer: Any) -> None:
        optimizer.bucket_bytes_cap *= 4

    _change_cap(this, change)


@fault("first-bucket-like-the-others", "the first bucket is as large as the others", suite=SPLITS)
def _(this: Fault) -> None:
    def change(optimizer: Any) -> None:
        optimizer.first_bucket_cap = optimizer.bucket_bytes_cap

    _change_cap(this, change)


@fault("split-at-every-layer", "every layer is a bucket", suite=SPLITS)
def _(this: Fault) -> None:
    def change(optimizer: Any) -> None:
        optimizer.bucket_bytes_cap = optimizer.first_bucket_cap = 1

    _change_cap(this, change)


@fault("ignored-parameters-counted", "ignored parameters fill buckets", suite=SPLITS, equivalent=COUNTED)
def _(this: Fault) -> None:
    replace("_ignore_parameter", lambda original: lambda self, parameter: False, this, DDPOptimizer)


@fault("compiled-gradients-lost", "the result of compiled code has no gradient", suite=DDP)
def _(this: Fault) -> None:
    _change_results(
        this, lambda compiled, model, inputs: _first(compiled(*inputs), lambda t: t.detach().requires_grad_())
    )


@fault("compiled-gradients-doubled", "gradients through compiled code count twice", suite=DDP)
def _(this: Fault) -> None:
    def change(compiled: Any, model: Any, inputs: Any) -> Any:
        return _first(compiled(*inputs), lambda t: 2 * t - t.detach())

    _change_results(this, change)


@fault("buffer-change-lost", "compiled code does not write its buffers back", suite=DDP)
def _(this: Fault) -> None:
    def change(compiled: Any, model: Any, inputs: Any) -> Any:
        before = [buffer.clone() for buffer in model.buffers()]
        result = compiled(*inputs)
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.set_(value)
        return result

    _change_results(this, change)


@fault("stale-guard", "compiled code returns what it returned for a smaller input of that width", suite=DDP)
def _(this: Fault) -> None:
    kept: dict[int, Any] = {}

    def change(compiled: Any, model: Any, inputs: Any) -> Any:
        if inputs and not isinstance(inputs[0], tuple) and not inputs[0].requires_grad:
            return kept.setdefault(id(compiled), compiled(*inputs))
        return compiled(*inputs)

    _change_results(this, change)


@fault("autocast-forgotten", "compiled code computes in float32 under autocast", suite=SPLITS)
def _(this: Fault) -> None:
    _change_results(this, lambda compiled, model, inputs: _first(compiled(*inputs), torch.Tensor.float))


@fault("not-compiled", "torch.compile returns the model as it is", suite=SPLITS)
def _(this: Fault) -> None:
    replace("compile", lambda original: lambda model=None, **kwargs: model, this, torch)


@fault("attribute-change-lost", "what forward sets on a module is not set", suite=FSDP)
def _(this: Fault) -> None:
    def change(compiled: Any, model: Any, inputs: Any) -> Any:
        inner = getattr(model, "module", model)
        result = compiled(*inputs)
        inner.__dict__.pop("state", None)
        return result

    _change_results(this, change)


@fault("guard-collectives-ignored", "ranks never compile again together", suite=COLLECTIVES)
def _(this: Fault) -> None:
    replace("set_enable_guard_collectives", lambda original: lambda enabled: False, this, torch.compiler)


@fault("functional-all-reduce-lost", "a compiled all_reduce returns its input", suite=COLLECTIVES)
def _(this: Fault) -> None:
    replace("all_reduce", lambda original: lambda tensor, op, group, tag="": tensor + 0, this, functional)
