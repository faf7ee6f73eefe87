"""Which parameters of this rank should be the same on other ranks, and what tells."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

from disttest.extras.sanitizers.values.trace import Trust

if TYPE_CHECKING:
    from disttest.observe import Call

_REDUCTIONS = frozenset({"allreduce", "allreduce_coalesced"})
_MOST_STORAGES = 4096


_weak_reference: Any = StorageWeakRef


class Replicas(NamedTuple):
    """The ranks that should have the same, and why."""

    ranks: tuple[int, ...] = ()
    trust: Trust | None = None


class _Seen(NamedTuple):
    storage: Any
    """Keeps the address from being used again, and no memory."""
    ranks: tuple[int, ...]
    reduced: bool


class Evidence:
    """From the calls of a test to what its parameters should be."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._replicated: MutableMapping[torch.Tensor, tuple[int, ...]] = WeakIdKeyDictionary()
        """Parameter -> ranks, from its first sign on: what is forgotten in a later step was meant."""
        self._reduced: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        """Ranks -> numbers that they have reduced since the last step, by address of the storage."""

    def issue(self, call: Call) -> None:
        """A call, which may be about parameters or gradients."""
        reduced = call.op in _REDUCTIONS
        if not (reduced or call.op == "broadcast") or len(call.group.ranks) < 2:
            return
        for tensor in call.inputs:
            if tensor.layout is torch.strided and tensor.is_floating_point():
                storage = _weak_reference(tensor.untyped_storage())
                self._reduced[call.group.ranks][storage.cdata] += tensor.numel() if reduced else 0
                self._seen[storage.cdata] = _Seen(storage, call.group.ranks, reduced)
        if len(self._seen) > _MOST_STORAGES:
            self._seen = {key: seen for key, seen in self._seen.items() if not seen.storage.expired()}

    def judge(
        self, parameters: Sequence[torch.Tensor], wrapped: Mapping[int, tuple[int, ...]]
    ) -> dict[int, Replicas]:
        """What is to be expected of the parameters of one optimizer after its step; the next one begins.

        Args:
            parameters: those that have a gradient.
            wrapped: ``id`` of a parameter -> ranks of the DistributedDataParallel that it is in; none: not to be compared.
        """
        found: dict[int, Replicas] = {}
        rest, total = [], 0
        weight = self._gradients_reduced(parameters)
        for parameter in parameters:
            total += parameter.numel()
            if (ranks := wrapped.get(id(parameter))) is not None:
                found[id(parameter)] = Replicas(ranks, Trust.WRAPPED) if ranks else Replicas()
            elif self._is_averaged(parameter):
                found[id(parameter)] = Replicas()
            elif ranks := self._ranks_of(parameter):
                found[id(parameter)] = Replicas(ranks, Trust.REDUCED)
                weight[ranks] = max(weight[ranks], parameter.numel())
            else:
                rest.append(parameter)
        beside = [ranks for ranks, numbers in weight.items() if 2 * numbers >= total]
        for parameter in rest:
            found[id(parameter)] = Replicas(beside[0], Trust.BESIDE) if len(beside) == 1 else Replicas()
        self._reduced = defaultdict(Counter)
        return found

    def _gradients_reduced(self, parameters: Iterable[torch.Tensor]) -> Counter[tuple[int, ...]]:
        """Ranks -> numbers that they have reduced, but for parameters: those that are averaged say nothing of others."""
        averaged = {each.untyped_storage()._cdata for each in parameters if self._is_averaged(each)}  # noqa: SLF001
        return Counter(
            {
                ranks: sum(count for storage, count in numbers.items() if storage not in averaged)
                for ranks, numbers in self._reduced.items()
            }
        )

    def _is_averaged(self, parameter: torch.Tensor) -> bool:
        """Whether ranks reduce the parameter itself, now and then: in between each has its own, as in local SGD."""
        seen = self._found(parameter)
        return seen is not None and seen.reduced

    def replicas_of(self, parameter: torch.Tensor) -> Replicas:
        """What its own calls say: a replica if its gradient was reduced, or it was sent to the others."""
        ranks = () if self._is_averaged(parameter) else self._ranks_of(parameter)
        return Replicas(ranks, Trust.REDUCED) if ranks else Replicas()

    def _ranks_of(self, parameter: torch.Tensor) -> tuple[int, ...]:
        known = self._replicated.get(parameter, ())
        for tensor in (parameter, parameter.grad):
            seen = self._found(tensor) if not known and tensor is not None else None
            known = seen.ranks if seen else known
        if known:
            self._replicated[parameter] = known
        return known

    def _found(self, tensor: torch.Tensor) -> _Seen | None:
        if tensor.layout is not torch.strided:
            return None
        return self._seen.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
