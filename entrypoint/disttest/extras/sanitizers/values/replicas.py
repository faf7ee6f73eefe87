"""Find the parameters of this rank that should equal those of other ranks, and the evidence."""

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
    """Ranks that should have the same parameter, and the evidence."""

    ranks: tuple[int, ...] = ()
    trust: Trust | None = None


class _Seen(NamedTuple):
    storage: Any
    """Weak reference: keeps the address from being reused, but not the memory."""
    ranks: tuple[int, ...]
    reduced: bool


class Evidence:
    """Evidence from the calls of a test about its parameters."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._replicated: MutableMapping[torch.Tensor, tuple[int, ...]] = WeakIdKeyDictionary()
        """Parameter -> ranks, from its first sign on: an omission in a later step is a fault."""
        self._reduced: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        """Ranks -> number of elements that they reduced since the last step, by address of the storage."""

    def issue(self, call: Call) -> None:
        """Note a call that may concern parameters or gradients."""
        reduced = call.op in _REDUCTIONS
        if not (reduced or call.op == "broadcast") or len(call.group.ranks) < 2:
            return
        for tensor in call.inputs:
            # Integers are counts and indices, which all kinds of programs reduce.
            if tensor.layout is torch.strided and tensor.is_floating_point():
                storage = _weak_reference(tensor.untyped_storage())
                self._reduced[call.group.ranks][storage.cdata] += tensor.numel() if reduced else 0
                # The storage, not the tensor: programs reduce views and flattened buckets of their
                # parameters.
                self._seen[storage.cdata] = _Seen(storage, call.group.ranks, reduced)
        if len(self._seen) > _MOST_STORAGES:
            self._seen = {key: seen for key, seen in self._seen.items() if not seen.storage.expired()}

    # Ranks start with the same seed, so equal numbers prove nothing: only parameters that the test itself wraps, sends
    # or reduces are compared. Equal input data on all ranks is no finding, although it is a known mistake, since most
    # tests intend it.
    def judge(
        self, parameters: Sequence[torch.Tensor], wrapped: Mapping[int, tuple[int, ...]]
    ) -> dict[int, Replicas]:
        """Judge the parameters of one optimizer after its step; the next step begins.

        Args:
            parameters: parameters with a gradient.
            wrapped: ``id`` of a parameter -> ranks of its DistributedDataParallel; no ranks: it must not be compared.
        """
        found: dict[int, Replicas] = {}
        rest, total = [], 0
        # Phase 1, what the calls say about each parameter.
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
        # Phase 2, parameters that no call names: they follow the others if ranks reduced at least half of the
        # elements.
        beside = [ranks for ranks, numbers in weight.items() if 2 * numbers >= total]
        for parameter in rest:
            found[id(parameter)] = Replicas(beside[0], Trust.BESIDE) if len(beside) == 1 else Replicas()
        self._reduced = defaultdict(Counter)
        return found

    def _gradients_reduced(self, parameters: Iterable[torch.Tensor]) -> Counter[tuple[int, ...]]:
        """Count the elements that ranks reduced, without averaged parameters, which say nothing about others."""
        # _cdata identifies a storage (torch 2.9 to 2.15): its data_ptr() changes when FSDP resizes it.
        averaged = {each.untyped_storage()._cdata for each in parameters if self._is_averaged(each)}  # noqa: SLF001
        return Counter(
            {
                ranks: sum(count for storage, count in numbers.items() if storage not in averaged)
                for ranks, numbers in self._reduced.items()
            }
        )

    def _is_averaged(self, parameter: torch.Tensor) -> bool:
        """Whether ranks reduce the parameter itself from time to time, as in local SGD, and differ in between."""
        seen = self._found(parameter)
        return seen is not None and seen.reduced

    def replicas_of(self, parameter: torch.Tensor) -> Replicas:
        """Judge by the parameter's own calls: it is a replica if its gradient was reduced, or it was broadcast."""
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
        # The key of a storage, as above (torch 2.9 to 2.15).
        return self._seen.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
