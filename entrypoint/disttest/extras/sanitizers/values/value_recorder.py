"""Recorder of the sanitizer ``values`` in a rank: note contents of tensors (0.3 ms a megabyte), keep no tensor.

Modules, their parameters and their optimizers are observed through torch's global hooks.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules import module as hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from disttest.extras.sanitizers.sanitizer import SanitizerRecorder
from disttest.extras.sanitizers.values.replicas import Evidence, Replicas
from disttest.extras.sanitizers.values.trace import NOWHERE, Role, TensorPlace, Trace, Trust
from disttest.extras.sanitizers.values.trace_notes import Notes, default_rank, infers_shapes, site_fields
from disttest.model import TO_ROOT, rank_names
from disttest.observe import Call, Wait, WaitKind, as_text, spec_of
from disttest.observe.sites import call_site

_MOST_TENSORS = 8
"""Tensors of one input or output of a module."""
_PLAIN = frozenset({torch.Tensor, nn.Parameter})
_UNKNOWN = Replicas()


class Models:
    """Record of the outputs of modules, and of parameters around optimizer steps."""

    def __init__(self) -> None:
        # By identity: `==` of tensors compares their elements. Weak, so that the record keeps no model alive.
        self._names: MutableMapping[Any, tuple[int, str]] = WeakIdKeyDictionary()
        """Module or parameter -> number of its model, and its path in it."""
        self._roots: MutableMapping[nn.Module, int] = WeakIdKeyDictionary()
        self._wrappers: MutableMapping[Any, bool] = WeakIdKeyDictionary()
        """Each DistributedDataParallel -> whether it was used."""
        self._divided: MutableMapping[nn.Module, bool] = WeakIdKeyDictionary()
        """Models of which this rank's optimizer stepped a part, until they are used again."""
        self._count = 0

    def begin(self, notes: Notes, evidence: Evidence) -> None:
        """Begin a test: number the models from zero."""
        self._notes, self._evidence = notes, evidence
        self._names.clear()
        self._roots.clear()
        self._divided.clear()
        for wrapper in list(self._wrappers):
            self._wrappers[wrapper] = False
        self._count = 0
        self._outer: weakref.ref[Optimizer] | None = None
        self._begun: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()
        """Parameters whose first step has been seen."""

    def watch(self) -> None:
        """Register the hooks. Compiled code does not call them, and is compiled as without them."""
        hooks.register_module_module_registration_hook(_unless_compiling(self._on_child))
        hooks.register_module_forward_pre_hook(_unless_compiling(self._before_forward))
        hooks.register_module_forward_hook(_unless_compiling(self._after_forward))
        register_optimizer_step_pre_hook(_unless_compiling(self._before_step))
        register_optimizer_step_post_hook(_unless_compiling(self._after_step))

    # --- modules

    def _on_child(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        # DistributedDataParallel has no hook for wrapping. It registers the model as its submodule `module`.
        if name == "module" and child is not None and isinstance(parent, DistributedDataParallel):
            self._wrappers[parent] = False
            self._name_all(child)

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if module not in self._names:
            # The first module that is called is the root of its model, or was added to a model later.
            self._name_all(self._root_of(module) or module)
        if self._divided.pop(module, False):
            wrapped = self._all_wrapped()
            for parameter in _plain_parameters(module):
                if (replicas := self._replicas_of(parameter, wrapped)).ranks:
                    self._note(Role.SHARED, parameter, replicas)
        if module in self._roots and not infers_shapes():
            self._note_tensors(Role.GIVEN, module, args)
        # Not at wrapping: programs may change a wrapped model until its first forward, for example load a
        # checkpoint.
        if self._wrappers.get(module) is False:
            self._wrappers[module] = True
            for parameter, replicas in self._wrapped(module):
                self._note(Role.WRAPPED, parameter, replicas)

    def _after_forward(self, module: nn.Module, _args: Any, output: Any) -> None:
        if infers_shapes():
            return
        self._note_tensors(Role.MODULE, module, output)
        # Statistics of batch norm differ between ranks during training, on purpose.
        if not module.training:
            self._note_buffers(module)

    def _note_tensors(self, role: Role, module: nn.Module, value: Any) -> None:
        """Note the input or output of a module."""
        model, name = self._names.get(module, (NOWHERE, ""))
        site = site_fields(call_site())
        for index, tensor in enumerate(_tensors(value)):
            place = TensorPlace(
                role=role,
                name=name,
                kind=type(module).__name__,
                model=model,
                index=index,
                **spec_of(tensor)._asdict(),
                **site,
            )
            self._notes.add(place, tensor)

    def _note_buffers(self, module: nn.Module) -> None:
        wrapper = next((each for each in list(self._wrappers) if each.module is module), None)
        if wrapper is None:
            return
        model, _ = self._names.get(module, (NOWHERE, ""))
        site = site_fields(call_site())
        ranks = _ranks_of(wrapper)
        for name, buffer in module.named_buffers():
            if name not in wrapper.parameters_to_ignore:
                place = TensorPlace(
                    role=Role.BUFFER,
                    name=as_text(name),
                    model=model,
                    ranks=ranks,
                    trust=Trust.WRAPPED,
                    **spec_of(buffer)._asdict(),
                    **site,
                )
                self._notes.add(place, buffer)

    def _root_of(self, module: nn.Module) -> nn.Module | None:
        """Return the named model to which a module was added later."""
        found = (root for root in list(self._roots) if any(each is module for each in root.modules()))
        return next(found, None)

    def _name_all(self, root: nn.Module) -> None:
        model = self._roots.setdefault(root, self._count)
        before = len(self._names)
        for name, parameter in root.named_parameters():
            self._names.setdefault(parameter, (model, as_text(name)))
        self._count += model == self._count and len(self._names) > before
        for name, module in root.named_modules():
            self._names.setdefault(module, (model, as_text(name)))

    # --- parameters

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._outer is not None and self._outer() not in (None, optimizer):
            return  # an inner optimizer: the outer one's step counts
        # Weak: a step that raises never reaches _after_step, and the optimizer may go with its test.
        self._outer = weakref.ref(optimizer)
        parameters = list(_with_gradient(optimizer))
        for parameter in parameters:
            if parameter not in self._begun:
                self._begun[parameter] = True
                self._note(Role.BEFORE, parameter)
            self._note(Role.GRADIENT, parameter)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._outer is None or self._outer() is not optimizer:
            return
        self._outer = None
        parameters = list(_with_gradient(optimizer))
        wrapped = self._all_wrapped()
        placed = {
            id(each): Replicas(_mesh_ranks(each), Trust.PLACED) for each in parameters if _is_placed(each)
        }
        plain = [each for each in parameters if id(each) not in placed]
        expected = {**self._evidence.judge(plain, wrapped), **placed}
        for parameter in parameters:
            self._note(Role.PARAMETER, parameter, expected[id(parameter)])
        self._note_divided({id(parameter) for parameter in parameters}, wrapped)

    def _all_wrapped(self) -> dict[int, tuple[int, ...]]:
        """Map ``id`` of each parameter in a DistributedDataParallel to its ranks."""
        return {
            id(parameter): replicas.ranks
            for wrapper in list(self._wrappers)
            for parameter, replicas in self._wrapped(wrapper)
        }

    def _replicas_of(self, parameter: torch.Tensor, wrapped: Mapping[int, tuple[int, ...]]) -> Replicas:
        ranks = wrapped.get(id(parameter))
        return self._evidence.replicas_of(parameter) if ranks is None else Replicas(ranks, Trust.WRAPPED)

    def _note_divided(self, stepped: Container[int], wrapped: Mapping[int, tuple[int, ...]]) -> None:
        """Note models of which other ranks step some parameters: gradients that were reduced, but not stepped here.

        They are checked when the model is used next, since owners send parameters after the step.
        """
        for root in list(self._roots):
            # ZeroRedundancyOptimizer steps a part of the parameters in each rank.
            owed = [each for each in _plain_parameters(root) if each.grad is not None]
            rest = [each for each in owed if id(each) not in stepped]
            if len(rest) < len(owed) and any(self._replicas_of(each, wrapped).ranks for each in rest):
                self._divided[root] = True

    def _wrapped(self, wrapper: Any) -> Iterator[tuple[torch.Tensor, Replicas]]:
        """Yield the parameters of a DistributedDataParallel."""
        replicas = Replicas(_ranks_of(wrapper), Trust.WRAPPED)
        for name, parameter in wrapper.module.named_parameters():
            if name not in wrapper.parameters_to_ignore and type(parameter) in _PLAIN:
                yield parameter, replicas

    def _note(self, role: Role, parameter: torch.Tensor, replicas: Replicas = _UNKNOWN) -> None:
        model, name = self._name_of(parameter)
        tensor = parameter.grad if role is Role.GRADIENT else parameter
        place = TensorPlace(
            role=role,
            name=name,
            model=model,
            ranks=replicas.ranks,
            trust=replicas.trust,
            **spec_of(parameter)._asdict(),
            **site_fields(call_site()),
        )
        # A replicated DTensor has its numbers in an inner tensor (torch 2.9 to 2.15).
        self._notes.add(place, getattr(tensor, "_local_tensor", tensor))

    def _name_of(self, parameter: torch.Tensor) -> tuple[int, str]:
        if parameter not in self._names:
            for root in list(self._roots):
                self._name_all(root)
        return self._names.setdefault(parameter, (NOWHERE, f"#{len(self._begun)}"))


def _unless_compiling(callback: Callable[..., None]) -> Callable[..., None]:
    """Wrap a hook so that Dynamo finds it empty."""

    def hook(*arguments: Any) -> None:
        # https://docs.pytorch.org/docs/stable/torch.compiler_api.html
        if not torch.compiler.is_compiling():
            callback(*arguments)

    return hook


def _plain_parameters(module: nn.Module) -> list[torch.Tensor]:
    return [parameter for parameter in module.parameters() if type(parameter) in _PLAIN]


def _with_gradient(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and (type(parameter) in _PLAIN or _is_placed(parameter)):
                yield parameter


def _is_placed(parameter: Any) -> bool:
    """Whether a parameter is a DTensor that is replicated over its whole mesh."""
    # Not imported: a test without DTensors should not pay for the import.
    module = sys.modules.get("torch.distributed.tensor")
    return (
        module is not None
        and type(parameter) is module.DTensor
        and all(each.is_replicate() for each in parameter.placements)
    )


def _mesh_ranks(parameter: Any) -> tuple[int, ...]:
    return tuple(sorted(parameter.device_mesh.mesh.flatten().tolist()))


def _ranks_of(wrapper: DistributedDataParallel) -> tuple[int, ...]:
    """Return the ranks that should be equal; empty if a communication hook lets them differ for some steps."""
    names = (getattr(hook, "__qualname__", "").lower() for hook, _ in getattr(wrapper, "_comm_hooks", ()))
    # post_localSGD_hook lets ranks differ between two averages: https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
    if any("localsgd" in name for name in names):
        return ()
    try:
        return tuple(dist.get_process_group_ranks(wrapper.process_group))
    except (ValueError, KeyError):  # destroyed
        return ()


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """Yield the first tensors of an input or output of a module."""
    waiting, found = [output], 0
    while waiting and found < _MOST_TENSORS:
        value = waiting.pop(0)
        if type(value) in _PLAIN:
            found += 1
            yield value
        elif isinstance(value, list | tuple):
            waiting.extend(value[:_MOST_TENSORS])
        elif isinstance(value, dict):
            waiting.extend(list(value.values())[:_MOST_TENSORS])


_MOST_PENDING = 256
"""Calls that were not waited for; their tensors are kept for the wait."""
_MOST_ROOTS = 8
"""Roots of one backward pass."""
_SENDING = frozenset({"send", "barrier", "monitored_barrier"})


class Calls:
    """Record of the tensors of a test's calls.

    The output of a call that C++ code issues and waits for is read when the backward pass around it is over. Outside of
    a backward pass it is unknown when such a call is done, and whether its output was written since.
    """

    def __init__(self, notes: Notes, rank: int) -> None:
        self._notes = notes
        self._rank = rank
        self._pending: dict[int, Call] = {}
        self._backward: Counter[int] = Counter()
        """Thread -> running backward passes; they nest where layers are checkpointed."""
        self._before: dict[tuple[object, ...], int] = {}
        """Calls of each kind before the test, in a world that has run others."""

    def issue(self, call: Call) -> None:
        """Note the input of a call that is about to be handed to its backend."""
        self._note(Role.INPUT, call, call.read_in(self._rank))
        if call.op in _SENDING or (call.op in TO_ROOT and call.root != self._rank):
            return
        self._pending[call.n] = call
        # The oldest goes: the record holds its tensors, and a program may never wait for it.
        if len(self._pending) > _MOST_PENDING:
            del self._pending[next(iter(self._pending))]

    def begin(self, wait: Wait) -> None:
        """Note the beginning of a wait."""
        if wait.kind is WaitKind.BACKWARD:
            self._backward[wait.thread] += 1
            roots = () if infers_shapes() else wait.roots[:_MOST_ROOTS]
            for index, root in enumerate(roots):
                if isinstance(root, torch.Tensor):  # not an edge of the graph
                    self._note_root(index, root, wait)

    def done(self, wait: Wait, *, well: bool) -> None:
        """Note the results of a wait that is over."""
        if wait.kind is WaitKind.BACKWARD:
            self._backward[wait.thread] -= 1
        if not well:
            if wait.call is not None:
                self.drop(wait.call)
        elif wait.call is not None:
            self._finish(wait.call.n)
        # Only the outermost pass: a checkpointed layer runs a pass inside of a pass, while DDP still reduces.
        elif wait.kind is WaitKind.BACKWARD and not self._backward[wait.thread]:
            waited = [n for n, call in self._pending.items() if _ends_with_backward(call, wait)]
            for n in waited:
                self._finish(n)

    def _note_root(self, index: int, tensor: torch.Tensor, wait: Wait) -> None:
        place = TensorPlace(
            role=Role.ROOT,
            name="backward",
            index=index,
            **spec_of(tensor)._asdict(),
            **site_fields(wait.site),
        )
        self._notes.add(place, tensor)

    def drop(self, call: Call) -> None:
        """Drop a call that failed."""
        self._pending.pop(call.n, None)

    def _finish(self, n: int) -> None:
        call = self._pending.pop(n, None)
        if call is not None:
            self._note(Role.OUTPUT, call, call.outputs or call.inputs)

    def _note(self, role: Role, call: Call, tensors: tuple[torch.Tensor, ...]) -> None:
        kind = (call.group.name, *((call.op, call.peer, call.tag) if call.is_p2p else ()))
        # A warm world numbers calls over all its tests. Two runs of a test must have equal numbers.
        number = call.seq - self._before.setdefault(kind, call.seq - 1)
        for index, tensor in enumerate(tensors):
            self._notes.add(_place(role, call, index, tensor), tensor, number)


def _ends_with_backward(call: Call, wait: Wait) -> bool:
    return call.by_cpp and call.in_backward and call.thread == wait.thread


def _place(role: Role, call: Call, index: int, tensor: Any) -> TensorPlace:
    group = call.group
    return TensorPlace(
        role=role,
        name=call.op,
        kind=call.reduce_op,
        group=as_text(group.description) or rank_names(group.ranks),
        group_id=as_text(group.name),
        ranks=group.ranks,
        peer=call.peer,
        root=call.root,
        index=index,
        **spec_of(tensor)._asdict(),
        **site_fields(call.site),
    )


class ValuesRecorder(SanitizerRecorder):
    """Recorder of the tensors of calls, modules and optimizers of one test after another.

    Args:
        rank: number of this rank in its world.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._models = Models()
        self.begin()
        # Once in a process: torch's global hooks stay registered, and begin() gives them the next test.
        self._models.watch()

    def begin(self) -> None:
        """Begin a test."""
        self._notes, self._evidence = Notes(), Evidence()
        self._calls = Calls(self._notes, self._rank)
        self._models.begin(self._notes, self._evidence)

    def report(self) -> Trace:
        """Return the observations since the test began."""
        return self._notes.trace()

    def on_issue(self, call: Call) -> None:
        """Note the inputs of a call."""
        self._notes.doubtful |= default_rank() not in (self._rank, -1)
        self._calls.issue(call)
        self._evidence.issue(call)

    def on_error(self, call: Call, error: BaseException) -> None:
        """Note that a call was refused."""
        del error
        self._calls.drop(call)
        self._notes.doubtful = True

    def on_wait(self, wait: Wait) -> None:
        """Note that a backward pass begins."""
        self._calls.begin(wait)

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Note the results of a call."""
        self._calls.done(wait, well=error is None)
        self._notes.doubtful |= error is not None and wait.call is not None
