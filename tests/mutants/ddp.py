"""Faults in DistributedDataParallel, its hooks, averagers, samplers and optimisers."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager, utils
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import distributed as module
from torch.utils.data import DistributedSampler

from .faults import Fault, fault, replace

DDP = module.DistributedDataParallel
EQUAL = "ddp/test_equivalence.py"
ACCUMULATE = "ddp/test_accumulation.py"
HOOKS = "ddp/test_hooks.py"
BUFFERS = "ddp/test_buffers.py"
JOIN = "ddp/test_join.py"
UNUSED = "ddp/test_unused_parameters.py"
STATIC = "ddp/test_static_graph.py"
VERIFY = "ddp/test_verification.py"
IGNORED = "ddp/test_ignored.py"
AVERAGE = "ddp/test_averaging.py"
OPTIMIZERS = "ddp/test_optimizers.py"
LOGGING = "ddp/test_logging.py"
TYPES = "ddp/test_types.py"

Future = torch.futures.Future


def _done(tensor: torch.Tensor) -> Any:
    future: Any = Future()
    future.set_result(tensor)
    return future


def _summed(tensor: torch.Tensor, group: Any) -> Any:
    return dist.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda done: done.value()[0])


def _reduce_by(reduce: Any, this: Fault) -> None:
    """Every wrapped model without a hook of the user's reduces its buckets by this function of bucket and group."""

    def make(call: Any) -> Any:
        def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._comm_hooks and not getattr(self, "_planted", False) and torch.is_grad_enabled():
                self._planted = True
                hook = _hook_for(reduce)
                with contextlib.suppress(RuntimeError):
                    dist._register_comm_hook(self.reducer, self.process_group, hook)
            return call(self, *args, **kwargs)

        return changed

    replace("_pre_forward", make, this, DDP)


def _hook_for(reduce: Any) -> Any:
    def hook(group: Any, bucket: Any) -> Any:
        return reduce(bucket, group)

    hook.__annotations__ = {"bucket": dist.GradBucket, "return": Future[torch.Tensor]}
    return hook


@fault("no-averaging", "gradients are summed, not averaged", suite=EQUAL)
def _(this: Fault) -> None:
    _reduce_by(lambda bucket, group: _summed(bucket.buffer(), group), this)


@fault("averaged-by-wrong-size", "gradients are divided by one rank too many", suite=EQUAL)
def _(this: Fault) -> None:
    _reduce_by(lambda bucket, group: _summed(bucket.buffer() / (dist.get_world_size(group) + 1), group), this)


def _mean(bucket: Any, group: Any) -> Any:
    return _summed(bucket.buffer() / dist.get_world_size(group), group)


@fault("last-bucket-skipped", "the last bucket is not reduced when there are several", suite=EQUAL)
def _(this: Fault) -> None:
    _reduce_by(lambda b, g: _done(b.buffer()) if b.is_last() and b.index() else _mean(b, g), this)


@fault("first-bucket-skipped", "the first bucket is not reduced", suite=EQUAL)
def _(this: Fault) -> None:
    _reduce_by(lambda b, g: _done(b.buffer()) if b.index() == 0 else _mean(b, g), this)


@fault("gradients-stay-local", "gradients are not reduced at all", suite=EQUAL)
def _(this: Fault) -> None:
    _reduce_by(lambda bucket, group: _done(bucket.buffer()), this)


@fault("one-rank-left-out", "one rank's gradients are left out of the mean", suite=EQUAL)
def _(this: Fault) -> None:
    def reduce(bucket: Any, group: Any) -> Any:
        left_out = dist.get_rank(group) == dist.get_world_size(group) - 1
        return _summed(bucket.buffer() * (0 if left_out else 1) / dist.get_world_size(group), group)

    _reduce_by(reduce, this)


@fault("result-kept-by-one-rank", "one rank keeps its own gradients after the reduction", suite=EQUAL)
def _(this: Fault) -> None:
    def reduce(bucket: Any, group: Any) -> Any:
        own = bucket.buffer().clone()
        last = dist.get_rank(group) == dist.get_world_size(group) - 1
        return _mean(bucket, group).then(lambda done: own if last else done.value())

    _reduce_by(reduce, this)


@fault("gradients-narrowed", "gradients travel in half precision", suite=EQUAL)
def _(this: Fault) -> None:
    def reduce(bucket: Any, group: Any) -> Any:
        kind = bucket.buffer().dtype
        tensor = bucket.buffer().to(torch.bfloat16) / dist.get_world_size(group)
        return _summed(tensor, group).then(lambda done: done.value().to(kind))

    _reduce_by(reduce, this)


@fault("last-gradient-skipped", "the last element of each bucket is not reduced", suite=EQUAL)
def _(this: Fault) -> None:
    def reduce(bucket: Any, group: Any) -> Any:
        own = bucket.buffer()[-1:].clone()
        return _mean(bucket, group).then(lambda done: torch.cat([done.value()[:-1], own]))

    _reduce_by(reduce, this)


@fault("hook-called-once-only", "a registered hook runs in the first backward only", suite=HOOKS)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(self: Any, state: Any, hook: Any) -> Any:
            seen: set[int] = set()

            def once(given: Any, bucket: Any) -> Any:
                if bucket.index() in seen:
                    return _mean(bucket, self.process_group)
                seen.add(bucket.index())
                return hook(given, bucket)

            once.__annotations__ = {"bucket": dist.GradBucket, "return": Future[torch.Tensor]}
            once.__qualname__ = getattr(hook, "__qualname__", "hook")
            return call(self, state, once if callable(hook) else hook)

        return changed

    replace("register_comm_hook", make, this, DDP)


@fault("hook-without-division", "allreduce_hook does not divide", suite=HOOKS)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda group, tensor: _summed(tensor, group or dist.group.WORLD)

    replace("_allreduce_fut", make, this, default_hooks)


@fault("fp16-hook-keeps-precision", "fp16_compress_hook does not compress", suite=HOOKS)
def _(this: Fault) -> None:
    replace(
        "_compress_hook", lambda call: lambda dtype, group, bucket: _mean(bucket, group), this, default_hooks
    )


@fault("powersgd-starts-at-once", "PowerSGD ignores the step it should start at", suite=HOOKS)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(self: Any, *args: Any, **kwargs: Any) -> None:
            call(self, *args, **kwargs)
            self.start_powerSGD_iter = 0

        return changed

    replace("__init__", make, this, powerSGD_hook.PowerSGDState)


@fault("powersgd-forgets-its-error", "PowerSGD does not feed its error back", suite=HOOKS)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(self: Any, *args: Any, **kwargs: Any) -> None:
            call(self, *args, **kwargs)
            self.use_error_feedback = False

        return changed

    replace("__init__", make, this, powerSGD_hook.PowerSGDState)


@fault("post-local-never-local", "post-local SGD averages over the world for ever", suite=HOOKS)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(self: Any, *args: Any, **kwargs: Any) -> None:
            call(self, *args, **kwargs)
            self.start_localSGD_iter = 10**9

        return changed

    replace("__init__", make, this, post_localSGD_hook.PostLocalSGDState)


@fault("buffers-not-broadcast", "forward does not broadcast buffers", suite=BUFFERS)
def _(this: Fault) -> None:
    replace("_sync_buffers", lambda call: lambda self: None, this, DDP)


@fault(
    "buffers-always-broadcast", "forward broadcasts buffers that it was told to leave alone", suite=BUFFERS
)
def _(this: Fault) -> None:
    replace("will_sync_module_buffers", lambda call: lambda self: len(self.modules_buffers) > 0, this, DDP)


@fault("buffer-hook-ignored", "a buffer hook is accepted and never called", suite=BUFFERS)
def _(this: Fault) -> None:
    replace("_register_buffer_comm_hook", lambda call: lambda *a, **k: None, this, DDP)


@fault("not-synchronised-at-construction", "wrapping copies neither parameters nor buffers", suite=EQUAL)
def _(this: Fault) -> None:
    replace("_sync_module_states", lambda call: lambda *a, **k: None, this, module)


@fault("synchronised-from-the-last-rank", "wrapping copies the last rank's values", suite=EQUAL)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda *a, **k: call(*a, **{**k, "src": dist.get_world_size(k["process_group"]) - 1})

    replace("_sync_module_states", make, this, module)


@fault("no-sync-ignored", "no_sync synchronises all the same", suite=ACCUMULATE)
def _(this: Fault) -> None:
    replace("no_sync", lambda call: lambda self: contextlib.nullcontext(), this, DDP)


@fault("no-sync-for-ever", "after no_sync nothing is synchronised any more", suite=ACCUMULATE)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        @contextlib.contextmanager
        def changed(self: Any) -> Any:
            self.require_backward_grad_sync = False
            yield

        return changed

    replace("no_sync", make, this, DDP)


@fault("join-without-shadowing", "ranks that have joined do not shadow the others' collectives", suite=JOIN)
def _(this: Fault) -> None:
    replace("main_hook", lambda call: lambda self: None, this, module._DDPJoinHook)


@fault("join-without-final-model", "join does not synchronise the model in the end", suite=JOIN)
def _(this: Fault) -> None:
    replace("post_hook", lambda call: lambda self, last: None, this, module._DDPJoinHook)


@fault("join-divides-by-all", "join divides by all ranks, whatever was asked for", suite=JOIN)
def _(this: Fault) -> None:
    replace(
        "__init__", lambda call: lambda self, ddp, **k: call(self, ddp, divide_by_initial_world_size=True), this,
        module._DDPJoinHook,
    )  # fmt: skip


@fault("join-swallows-early-end", "throw_on_early_termination is ignored", suite=JOIN)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda self, divide=True, enable=True, throw_on_early_termination=False, **k: call(
            self, k.get("divide_by_initial_world_size", divide), enable, False
        )

    replace("join", make, this, DDP)


def _with_options(this: Fault, **forced: Any) -> None:
    """Wrapping ignores these arguments."""

    def make(call: Any) -> Any:
        def changed(self: Any, *args: Any, **kwargs: Any) -> None:
            call(
                self, *args, **{**kwargs, **{name: value for name, value in forced.items() if name in kwargs}}
            )

        return changed

    replace("__init__", make, this, DDP)


@fault("search-ignored", "find_unused_parameters is ignored", suite=UNUSED)
def _(this: Fault) -> None:
    _with_options(this, find_unused_parameters=False)


@fault("static-graph-ignored", "static_graph is ignored", suite=STATIC)
def _(this: Fault) -> None:
    _with_options(this, static_graph=False)


@fault("bucket-view-ignored", "gradient_as_bucket_view is ignored", suite=EQUAL)
def _(this: Fault) -> None:
    _with_options(this, gradient_as_bucket_view=False)


@fault("bucket-size-ignored", "bucket_cap_mb is ignored", suite=f"{LOGGING} {HOOKS}")
def _(this: Fault) -> None:
    _with_options(this, bucket_cap_mb=25)


@fault("group-ignored", "process_group is ignored", suite=f"{VERIFY} {HOOKS}")
def _(this: Fault) -> None:
    _with_options(this, process_group=None)


@fault("skip-unused-ignored", "skip_all_reduce_unused_params is ignored", suite=UNUSED)
def _(this: Fault) -> None:
    _with_options(this, skip_all_reduce_unused_params=False)


def _after_backward(this: Fault, act: Any) -> None:
    """Run ``act(model)`` on gradients when a backward through a wrapped model is over."""

    def make(call: Any) -> Any:
        def changed(self: Any, output: Any) -> Any:
            result = call(self, output)
            engine = torch.autograd.Variable._execution_engine

            def begin(gradient: torch.Tensor) -> None:
                # Queued twice: the reducer's own callback, queued in between, comes first.
                engine.queue_callback(lambda: engine.queue_callback(lambda: act(self)))

            tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
            for tensor in tensors[:1]:
                if tensor.requires_grad:
                    tensor.register_hook(begin)
            return result

        return changed

    replace("_post_forward", make, this, DDP)


@fault("unused-become-zero", "parameters that nobody used get gradients of zero", suite=UNUSED)
def _(this: Fault) -> None:
    def act(model: Any) -> None:
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    _after_backward(this, act)


@fault(
    "unused-keep-old-gradients",
    "parameters unused here keep their old gradients, whoever else used them",
    suite=UNUSED,
)
def _(this: Fault) -> None:
    def act(model: Any) -> None:
        for parameter in list(model.parameters())[1:2]:
            if model.find_unused_parameters and dist.get_rank() == 0:
                parameter.grad = None

    _after_backward(this, act)


@fault("gradient-doubled", "the first parameter's gradient is counted twice", suite=EQUAL, both=True)
def _(this: Fault) -> None:
    def act(model: Any) -> None:
        for parameter in list(model.parameters())[:1]:
            if parameter.grad is not None:
                parameter.grad.mul_(2)

    _after_backward(this, act)


@fault("static-graph-forgets", "what the first step of a static graph recorded is thrown away", suite=STATIC)
def _(this: Fault) -> None:
    replace("_set_static_graph", lambda call: lambda self: None, this, DDP)


@fault("ignored-are-not-ignored", "parameters to ignore are reduced all the same", suite=IGNORED)
def _(this: Fault) -> None:
    replace("_set_params_and_buffers_to_ignore_for_model", lambda call: lambda model, names: None, this, DDP)
    DDP._set_params_and_buffers_to_ignore_for_model = staticmethod(
        DDP._set_params_and_buffers_to_ignore_for_model
    )


@fault("shapes-not-verified", "models of different shapes are accepted", suite=VERIFY, both=True)
def _(this: Fault) -> None:
    replace("_verify_param_shape_across_processes", lambda call: lambda *a, **k: None, this, module)


@fault(
    "errors-swallowed",
    "errors of construction and registration are logged and not raised",
    suite=HOOKS,
    both=True,
)
def _(this: Fault) -> None:
    replace("_log_and_throw", lambda call: lambda self, kind, text: None, this, DDP)


@fault("hooks-not-removed", "_remove_autograd_hooks does nothing", suite=UNUSED)
def _(this: Fault) -> None:
    replace("_remove_autograd_hooks", lambda call: lambda self: None, this, DDP)


@fault("group-not-updated", "_update_process_group does nothing", suite=OPTIMIZERS)
def _(this: Fault) -> None:
    replace("_update_process_group", lambda call: lambda self, group: None, this, DDP)


@fault("fused-optimizer-idle", "an optimiser fused into the hook never steps", suite=OPTIMIZERS)
def _(this: Fault) -> None:
    replace("_register_fused_optim", lambda call: lambda *a, **k: None, this, DDP)


@fault("sink-always-clones", "the output is cloned although it was told not to be", suite=TYPES)
def _(this: Fault) -> None:
    replace("_set_ddp_sink_clone", lambda call: lambda self, value: None, this, DDP)


@fault("log-without-error", "errors are missing from the logging data", suite=f"{UNUSED} {HOOKS}")
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda self: {n: v for n, v in call(self).items() if n not in ("error", "has_error")}

    replace("_get_ddp_logging_data", make, this, DDP)


@fault("log-stands-still", "the logged iteration never moves", suite=LOGGING)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda self: {name: 0 if name == "iteration" else value for name, value in call(self).items()}

    replace("_get_ddp_logging_data", make, this, DDP)


@fault("averager-ignores-period", "the periodic averager averages at every step", suite=AVERAGE)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(self: Any, *args: Any, **kwargs: Any) -> None:
            call(self, *args, **kwargs)
            self.period = 1

        return changed

    replace("__init__", make, this, averagers.PeriodicModelAverager)


@fault("averager-ignores-warmup", "the periodic averager has no warm-up", suite=AVERAGE)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(self: Any, *args: Any, **kwargs: Any) -> None:
            call(self, *args, **kwargs)
            self.warmup_steps = 0

        return changed

    replace("__init__", make, this, averagers.PeriodicModelAverager)


@fault("average-is-a-sum", "model averaging sums", suite=AVERAGE)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(params: Any, group: Any) -> None:
            tensors = list(params)
            call(iter(tensors), group)
            with torch.no_grad():
                for tensor in tensors:
                    tensor.mul_(dist.get_world_size(group))

        return changed

    replace("average_parameters", make, this, utils)


@fault("hierarchy-never-averages", "the hierarchical averager finds no level", suite=AVERAGE)
def _(this: Fault) -> None:
    kind = hierarchical_model_averager.HierarchicalModelAverager
    replace("_find_process_group", lambda call: lambda self: None, this, kind)


@fault("optimizer-forgets-its-step", "a loaded optimiser starts at step 0", suite=AVERAGE)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(self: Any, state: Any) -> None:
            call(self, state)
            self.averager.step = 0

        return changed

    replace("load_state_dict", make, this, PostLocalSGDOptimizer)


@fault("sampler-ignores-rank", "every rank gets the first rank's samples", suite=OPTIMIZERS)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(self: Any) -> Any:
            self.rank = 0
            return call(self)

        return changed

    replace("__iter__", make, this, DistributedSampler)


@fault("sampler-ignores-epoch", "every epoch has the same order", suite=OPTIMIZERS)
def _(this: Fault) -> None:
    replace("set_epoch", lambda call: lambda self, epoch: None, this, DistributedSampler)


@fault("sampler-does-not-drop", "drop_last is ignored", suite=OPTIMIZERS)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda self, *a, **k: call(self, *a, **{**k, "drop_last": False})

    replace("__init__", make, this, DistributedSampler)
