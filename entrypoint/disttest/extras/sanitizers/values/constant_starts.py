"""Find the replicas among parameters that start as zeros or ones. Pure functions.

All ranks start with the same numbers, whether a parameter is a replica or a shard: a bias of zeros may belong to a
column of the layer. Neither the start nor the shape is evidence, but the use of a parameter is:

- its companions: parameters of its module that a seed has initialised and that have as many rows, such as the weight of
  a bias. If its module has none, all such parameters of the test count: if every one of them is kept equal, and ranks
  exchange only gradients, the model has no shards;
- its rows: a norm whose output all ranks concatenate, and whose next module gets the rows of all ranks, treats parts of
  one batch or sequence. If the ranks concatenate columns, as shards do, the next module gets as many rows as the norm;
- its likes: the same parameter of another layer, or of another norm of the same module, that is used alike and has the
  same gradient on all ranks.

An expert or a pipeline stage has companions that differ between ranks, and no such rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from disttest.extras.sanitizers.values.contents import is_constant
from disttest.extras.sanitizers.values.observations import (
    Observation,
    ObservationIndex,
    are_equal,
    at,
    subject,
)
from disttest.extras.sanitizers.values.trace import NOWHERE, Role, TensorPlace
from disttest.model import rank_names

_GATHERS = frozenset(
    {"allgather", "allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced"}
)
_OF_GRADIENTS = frozenset({"allreduce", "allreduce_coalesced", "broadcast"})
_BEGIN_FORWARD = frozenset({Role.GIVEN, Role.PARAMETER})
_NUMBER = re.compile(r"\d+")


class InferredReplicas(NamedTuple):
    """Ranks that should have the same parameter."""

    ranks: tuple[int, ...]
    because: str
    """Clause that names the evidence."""


class ConstantStarts:
    """Parameters of a test that start as zeros or ones.

    Args:
        observed: observations of the test.
    """

    def __init__(self, observed: ObservationIndex) -> None:
        self._index = observed
        # The first forward decides, whatever the step: a long training would repeat the search thousands of times.
        self._gathers: dict[tuple[int, int, str], _Gather | None] = {}
        self._likes: dict[tuple[int, str], list[Observation]] = {}

    def infer(self, group: Sequence[Observation]) -> Iterator[InferredReplicas]:
        """Yield the ranks that should have the same parameter after a step, with the evidence.

        A parameter that a seed initialised has none.

        Args:
            group: the ranks' observations of the parameter after the step.
        """
        first = group[0]
        # Without a module, another rank may number its tensors differently.
        is_named = first.place.model != NOWHERE
        if not is_named or not self._starts_constant(first) or not _is_one_thing(group):
            return
        # Each rule may find other ranks. The judge compares the parameter on all of them.
        for find in (self._by_companions, self._by_rows, self._by_likes):
            yield from find(group)

    # --- companions

    def _by_companions(self, group: Sequence[Observation]) -> Iterator[InferredReplicas]:
        """A parameter is a replica if its companions are."""
        first = group[0]
        of_module = [each for each in self._made_by_seed if _module_of(each.place) == _module_of(first.place)]
        matching = [each for each in of_module if each.place.shape[:1] == first.place.shape]
        companions = matching if of_module or self.activations_travel else self._made_by_seed
        # All of them must agree: one companion that differs between ranks is the weight of a shard or of an
        # expert.
        kept = [self._kept_by(each, first.number) for each in companions]
        ranks = kept[0] if kept else ()
        # A model that consists of zeros and ones may be private to each rank, next to a common model.
        is_of_common = any(each.place.model == first.place.model for each in companions)
        if not ranks or not is_of_common or any(each != ranks for each in kept):
            return
        what = f"{matching[0].place.name} is" if matching else "all other parameters that a seed has made are"
        yield InferredReplicas(ranks, f"{what} kept the same on {rank_names(ranks)}")

    @cached_property
    def _made_by_seed(self) -> list[Observation]:
        return [each for each in self._parameters if not self._starts_constant(each)]

    def _kept_by(self, parameter: Observation, number: int) -> tuple[int, ...]:
        """Return the ranks that keep a parameter equal from the start to a step; empty if any rank differs."""
        place = parameter.place
        begun = self._index.matching(Role.BEFORE, parameter)
        after = self._index.together.get((Role.PARAMETER, place.model, place.name, 0, number), {})
        kept = {
            observation.place.ranks for observation in after.values() if observation.place.trust is not None
        }
        if len(kept) != 1 or len(after) < 2 or not are_equal(begun.values()) or not are_equal(after.values()):
            return ()
        return (
            next(iter(kept)) if all(observation.place.ranks in kept for observation in after.values()) else ()
        )

    # --- rows

    def _by_rows(self, group: Sequence[Observation]) -> Iterator[InferredReplicas]:
        """A norm is a replica over ranks whose outputs are concatenated as rows of one tensor."""
        first = group[0]
        # In the order of ranks: a set of texts has another order for each seed of Python's hashes.
        for call in dict.fromkeys(map(self._gathers_rows, group)):
            if call is not None and set(call.ranks) <= {observation.rank for observation in group}:
                because = f"the rows that {_module_of(first.place)[1] or 'the module'} gives each rank"
                yield InferredReplicas(call.ranks, f"{because} are put together{call.where}")

    def _is_of_norm(self, observation: Observation) -> bool:
        """Whether all parameters of its module have one shape: that of the last dimensions of the output."""
        output = self._output_of(observation, observation.rank)
        shape = observation.place.shape
        beside = (
            each.place.shape
            for each in self._parameters
            if _module_of(each.place) == _module_of(observation.place)
        )
        is_norm = all(each == shape for each in beside)
        return is_norm and output is not None and bool(shape) and output.place.shape[-len(shape) :] == shape

    def _gathers_rows(self, observation: Observation) -> _Gather | None:
        """Return the call that concatenates the first output of a norm with those of other ranks, if by rows."""
        key = observation.rank, observation.place.model, observation.place.name
        if key not in self._gathers:
            self._gathers[key] = self._find_gather(observation)
        return self._gathers[key]

    def _find_gather(self, observation: Observation) -> _Gather | None:
        output = self._output_of(observation, observation.rank)
        if output is None or not self._is_of_norm(observation):
            return None
        rows = math.prod(output.place.shape[: len(output.place.shape) - len(observation.place.shape)])
        # One iterator for both searches: the module that uses the rows must come after the call.
        following = iter(self._index.of_rank[observation.rank][output.position + 1 :])
        call = next((each for each in following if _is_gather_of(each, output)), None)
        used_by = next((each for each in following if _is_of_other_module(each, output)), None)
        if call is None or used_by is None or len(call.place.ranks) < 2:
            return None
        if math.prod(used_by.place.shape[:-1]) != rows * len(call.place.ranks):
            return None  # columns were concatenated, or rows are used separately
        return _Gather(call.place.ranks, f" by {subject(call)}{at(call.place)}")

    # --- likes

    def _by_likes(self, group: Sequence[Observation]) -> Iterator[InferredReplicas]:
        """A parameter is a replica if another one, used alike, has the same gradient on all ranks."""
        first = group[0]
        ranks = tuple(observation.rank for observation in group)
        key = first.place.model, first.place.name
        # Once for each parameter: which parameters are used alike does not change from step to step.
        if key not in self._likes:
            self._likes[key] = [
                each
                for each in self._parameters
                if each.place.name != first.place.name
                and self._starts_constant(each)
                and self._is_used_alike(first, each, ranks)
            ]
        for other in self._likes[key]:
            if self._has_one_gradient(other, first.number, ranks):
                because = f"{other.place.name}, which is used alike, has the same gradient on all of them"
                yield InferredReplicas(ranks, because)
                return

    def _has_one_gradient(self, parameter: Observation, number: int, ranks: Sequence[int]) -> bool:
        """Whether ranks have the same gradient before a step. Zeros do not count, since the parameter may be unused."""
        place = parameter.place
        gradients = self._index.together.get((Role.GRADIENT, place.model, place.name, 0, number), {})
        if set(ranks) != gradients.keys() or not are_equal(gradients.values()):
            return False
        # Equal gradients of zeros also belong to a parameter that no rank used.
        return not any(is_constant(each.content, each.place.dtype) for each in gradients.values())

    def _is_used_alike(self, one: Observation, other: Observation, ranks: Sequence[int]) -> bool:
        """Whether two parameters have one role, in modules of one class and position with similar outputs."""
        places = one.place, other.place
        if len({(place.model, place.shape, _leaf_of(place)) for place in places}) > 1:
            return False
        outputs = [[self._output_of(each, rank) for rank in ranks] for each in (one, other)]
        seen = [[each for each in of_one if each is not None] for of_one in outputs]
        if any(len(each) < len(ranks) for each in seen):
            return False
        # Different numbers of rows belong to experts, which get some of the tokens.
        if len({(each.place.kind, each.place.shape) for of_one in seen for each in of_one}) > 1:
            return False
        is_same_input = {are_equal(of_one) for of_one in seen}
        if len(is_same_input) > 1:
            return False
        paths = [_module_of(place)[1] for place in places]
        has_same_name = len({path.rpartition(".")[2] for path in paths}) == 1
        if has_same_name and len({_NUMBER.sub("#", path) for path in paths}) == 1:
            return True  # layers.0.norm and layers.1.norm
        # Next to it in the same module may be the norm of an expert, which gets some tokens or all of them.
        is_beside = self._is_of_norm(one) and len({path.rpartition(".")[0] for path in paths}) == 1
        return is_beside and not is_same_input.pop() and not self._tokens_travel

    @cached_property
    def _tokens_travel(self) -> bool:
        """Whether ranks send each other parts of their tensors."""
        return any(
            observation.place.peer is not None or observation.place.name.startswith("alltoall")
            for observation in self._inputs
        )

    @cached_property
    def activations_travel(self) -> bool:
        """Whether ranks exchange more than gradients: parts of a forward, as sharded layers and experts do."""
        return any(
            observation.place.name not in _OF_GRADIENTS
            or (observation.rank, observation.position) in self._of_forward
            for observation in self._inputs
        )

    @cached_property
    def _inputs(self) -> list[Observation]:
        """Inputs of calls, except single numbers: ranks reduce and gather losses for their logs."""
        return [
            observation
            for observations in self._index.of_rank.values()
            for observation in observations
            if observation.place.role is Role.INPUT
            # The operation c10d::barrier takes a tensor, which has no number of the model.
            and observation.place.name != "barrier"
            and math.prod(observation.place.shape) > 1
        ]

    @cached_property
    def _of_forward(self) -> frozenset[tuple[int, int]]:
        """Rank and position of the inputs of calls before a backward pass, except buffers that ranks broadcast."""
        found = set()
        for observations in self._index.of_rank.values():
            is_forward = True
            for observation in observations:
                role = observation.place.role
                is_forward = role is not Role.ROOT and (is_forward or role in _BEGIN_FORWARD)
                if is_forward and role is Role.INPUT and observation.place.name != "broadcast":
                    found.add((observation.rank, observation.position))
        return frozenset(found)

    # --- what was seen

    @cached_property
    def _parameters(self) -> list[Observation]:
        """First observation of each parameter before its first step."""
        found: dict[tuple[int, str], Observation] = {}
        for observations in self._index.of_rank.values():
            for observation in observations:
                if observation.place.role is Role.BEFORE:
                    # The lowest rank's, since the ranks come in order.
                    found.setdefault((observation.place.model, observation.place.name), observation)
        return list(found.values())

    def _starts_constant(self, observation: Observation) -> bool:
        """Whether all ranks start with one and the same number in all elements."""
        begun = self._index.matching(Role.BEFORE, observation).values()
        is_alike = bool(begun) and are_equal(begun)
        return is_alike and all(is_constant(each.content, each.place.dtype) for each in begun)

    def _output_of(self, parameter: Observation, rank: int) -> Observation | None:
        """Return the first output of a parameter's module."""
        model, path = _module_of(parameter.place)
        return self._index.together.get((Role.MODULE, model, path, 0, 1), {}).get(rank)


class _Gather(NamedTuple):
    ranks: tuple[int, ...]
    where: str


def _is_one_thing(group: Sequence[Observation]) -> bool:
    return len({(observation.place.dtype, observation.place.shape) for observation in group}) == 1


def _module_of(place: TensorPlace) -> tuple[int, str]:
    return place.model, place.name.rpartition(".")[0]


def _leaf_of(place: TensorPlace) -> str:
    return place.name.rpartition(".")[2]


def _is_of_other_module(observation: Observation, output: Observation) -> bool:
    """Whether the observation is the output of another module that does not contain the first one."""
    place, own = observation.place, output.place
    contains = place.model == own.model and f"{own.name}.".startswith(f"{place.name}." if place.name else "")
    return place.role is Role.MODULE and not contains


def _is_gather_of(observation: Observation, output: Observation) -> bool:
    """Whether a call gathers the output of a module. The content decides, since views and copies are other tensors.

    A copy may permute dimensions; its norm is then the same except for rounding.
    """
    place, content, own = observation.place, observation.content, output.content
    if place.role is not Role.INPUT or place.name not in _GATHERS or place.dtype != output.place.dtype:
        return False
    if math.prod(place.shape) != math.prod(output.place.shape):
        return False
    has_same_norm = bool(content.norm and own.norm) and math.isclose(
        content.norm or 0, own.norm or 0, rel_tol=1e-6
    )
    return content.digest == own.digest or has_same_norm
