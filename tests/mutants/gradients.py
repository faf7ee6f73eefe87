"""Faults in distributed autograd and the optimiser on top."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

from .faults import Fault, fault, replace

BACKWARD = "dist_autograd/test_backward.py"
CONTEXTS = "dist_autograd/test_contexts.py"
REFERENCES = "dist_autograd/test_references.py"
ACCUMULATE = "dist_autograd/test_accumulation.py"
ERRORS = "dist_autograd/test_errors.py"
OPTIMIZER = "dist_autograd/test_optimizer.py"


def _change_gradients(this: Fault, change: Any) -> None:
    """``change(gradients, context)`` is what a context is said to hold."""

    def make(original: Any) -> Any:
        return lambda context: change(original(context), context)

    replace("get_gradients", make, this, dist_autograd)


def _change_backward(this: Fault, change: Any) -> None:
    """``change(original, context, roots, retain_graph)``."""

    def make(original: Any) -> Any:
        def changed(context: Any, roots: Any, retain_graph: bool = False) -> Any:
            return change(original, context, roots, retain_graph)

        return changed

    replace("backward", make, this, dist_autograd)


@fault("gradients-lost", "a context holds no gradients", suite=BACKWARD, both=True)
def _(this: Fault) -> None:
    _change_gradients(this, lambda found, context: {})


@fault("one-gradient-lost", "a context holds all gradients but one", suite=BACKWARD)
def _(this: Fault) -> None:
    _change_gradients(this, lambda found, context: dict(list(found.items())[1:]))


@fault("gradients-doubled", "gradients are counted twice", suite=BACKWARD, both=True)
def _(this: Fault) -> None:
    _change_gradients(this, lambda found, context: {leaf: 2 * value for leaf, value in found.items()})


@fault("gradients-swapped", "the gradients of two tensors are exchanged", suite=BACKWARD)
def _(this: Fault) -> None:
    def change(found: Any, context: int) -> Any:
        return dict(zip(found, reversed(list(found.values())), strict=True))

    _change_gradients(this, change)


@fault("sparse-made-dense", "sparse gradients are filled up", suite=BACKWARD)
def _(this: Fault) -> None:
    def change(found: Any, context: int) -> Any:
        return {leaf: value.to_dense() if value.is_sparse else value for leaf, value in found.items()}

    _change_gradients(this, change)


@fault("wrong-context", "gradients of another rank's pass are not kept in its context", suite=REFERENCES)
def _(this: Fault) -> None:
    def change(found: Any, context: int) -> Any:
        return found if context >> 48 == rpc.get_worker_info().id else {}

    _change_gradients(this, change)


@fault("gradients-in-grad", "gradients go to .grad as well", suite=BACKWARD)
def _(this: Fault) -> None:
    def change(original: Any, context: Any, roots: Any, retain_graph: bool) -> None:
        original(context, roots, True)
        for leaf, value in dist_autograd.get_gradients(context).items():
            leaf.grad = value

    _change_backward(this, change)


@fault("only-first-root", "all roots but the first are left out", suite=BACKWARD)
def _(this: Fault) -> None:
    def change(original: Any, context: Any, roots: Any, retain_graph: bool) -> None:
        original(context, roots[:1] if roots else roots, retain_graph)

    _change_backward(this, change)


@fault("passes-replace", "a second pass replaces the gradients of the first", suite=ACCUMULATE)
def _(this: Fault) -> None:
    passes: dict[int, int] = {}

    def backward(original: Any, context: Any, roots: Any, retain_graph: bool) -> None:
        original(context, roots, retain_graph)
        passes[context] = passes.get(context, 0) + 1

    _change_backward(this, backward)
    _change_gradients(
        this, lambda found, context: {leaf: value / passes.get(context, 1) for leaf, value in found.items()}
    )


@fault("errors-in-backward-swallowed", "an error in backward is not raised", suite=ERRORS)
def _(this: Fault) -> None:
    def change(original: Any, *rest: Any) -> None:
        with contextlib.suppress(RuntimeError):
            original(*rest)

    _change_backward(this, change)


@fault("context-not-cleaned", "a context is not released at its end", suite=CONTEXTS, both=True)
def _(this: Fault) -> None:
    replace("_release_context", lambda original: lambda context: None, this, dist_autograd)


@fault("contexts-share-an-identity", "the id that a block is given is not its own", suite=CONTEXTS)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        return lambda self: original(self) and 1

    replace("__enter__", make, this, dist_autograd.context)


@fault("counters-stand-still", "the counters of contexts are always 0", suite=CONTEXTS)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        return lambda: dict.fromkeys(original(), "0")

    replace("_get_debug_info", make, this, dist_autograd)


@fault("reference-backward-does-nothing", "backward of a reference is left out", suite=REFERENCES)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        return lambda self, context=-1, retain_graph=False: None

    replace("backward", make, this, rpc.PyRRef)


def _optimizer() -> Any:
    from torch.distributed.optim import DistributedOptimizer

    return DistributedOptimizer


@fault("optimizer-steps-twice", "a step is made twice", suite=OPTIMIZER)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(self: Any, context: int) -> None:
            original(self, context)
            original(self, context)

        return changed

    replace("step", make, this, _optimizer())


@fault("optimizer-forgets-a-rank", "the parameters of one rank are not stepped", suite=OPTIMIZER)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(self: Any, context: int) -> None:
            everything = self.remote_optimizers
            self.remote_optimizers = everything[:-1] or everything
            original(self, context)
            self.remote_optimizers = everything

        return changed

    replace("step", make, this, _optimizer())


@fault("hooks-ignored", "hooks of tensors do not run in backward", suite=BACKWARD)
def _(this: Fault) -> None:
    replace("register_hook", lambda original: lambda self, hook: None, this, torch.Tensor)
