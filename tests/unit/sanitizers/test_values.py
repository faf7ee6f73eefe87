"""The sanitizer of values: digests of tensors, and what is made of the traces of several ranks or runs, by hand."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch

from disttest.errors import UsageError
from disttest.extras.sanitizers.values.contents import differ, first_difference
from disttest.extras.sanitizers.values.divergence import find_divergence
from disttest.extras.sanitizers.values.trace import NOWHERE, Content, Role, TensorPlace, Trace, Trust
from disttest.extras.sanitizers.values.trace_notes import Notes, read_tensor
from disttest.extras.sanitizers.values.value_judge import ValueFindingKind, judge_values, limits_of
from disttest.extras.sanitizers.values.values_file import (
    FILE_NAME,
    ValuesFile,
    encode_recording,
    pairs,
    read_recordings,
)

PAIR = (0, 1)
Seen = tuple[TensorPlace, torch.Tensor, int]


def content(tensor: torch.Tensor) -> Content:
    found = read_tensor(tensor, most_head=4096)
    assert found is not None
    return found


def trace(*seen: Seen, **fields: Any) -> Trace:
    notes = Notes()
    for place, tensor, number in seen:
        notes.add(place, tensor, number)
    return msgspec.structs.replace(notes.trace(), **fields)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def call(role: Role, tensor: torch.Tensor, number: int = 1, **fields: Any) -> Seen:
    named = {"name": "allreduce", "kind": "SUM", "group": "default", "group_id": "0", "ranks": PAIR}
    shape = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": tuple(tensor.shape)}
    place = TensorPlace(role=role, file="/x/test_a.py", line=7, **{**named, **shape, **fields})
    return place, tensor, number


def parameter(
    role: Role, tensor: torch.Tensor, number: int = 1, trust: Trust | None = Trust.WRAPPED, name: str = "w"
) -> Seen:
    ranks = PAIR if trust else ()
    place = TensorPlace(
        role=role,
        name=name,
        ranks=ranks,
        trust=trust,
        dtype="float32",
        shape=tuple(tensor.shape),
        file="/x/test_a.py",
        line=9,
    )
    return place, tensor, number


def judge(*ranks: Sequence[Seen]) -> list[tuple[str, str]]:
    found = judge_values({rank: trace(*seen) for rank, seen in enumerate(ranks)})
    return [(finding.kind, finding.message) for finding in found]


class TestDigest:
    @pytest.mark.parametrize(
        "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool]
    )
    def test_depends_on_the_order_of_numbers(self, dtype):
        one = torch.tensor([0, 1, 1]).to(dtype)

        assert content(one) == content(one.clone())
        assert content(one).digest != content(one.flip(0)).digest

    def test_is_of_the_numbers_and_not_of_how_they_lie_in_memory(self):
        matrix = torch.randn(5, 7)

        assert content(matrix.t()) == content(matrix.t().contiguous())
        assert content(torch.ones(1).expand(9)) == content(torch.ones(9))
        assert content(matrix[1:, 2]) == content(matrix[1:, 2].clone())

    def test_leaves_the_storage_one_that_can_be_resized(self):
        tensor = torch.randn(4)
        content(tensor)

        tensor.untyped_storage().resize_(0)
        assert read_tensor(tensor, most_head=64) is None

    @pytest.mark.parametrize(
        "tensor", [torch.ones(3, device="meta"), torch.ones(3).to_sparse(), "text", torch.ones(0)]
    )
    def test_what_has_no_numbers_to_compare(self, tensor):
        assert read_tensor(tensor, most_head=64) is None

    def test_what_autograd_functions_transform_is_passed_over(self):
        seen = []
        torch.func.vmap(lambda x: seen.append(read_tensor(x, most_head=64)) or x)(torch.ones(2, 2))

        assert [None] == seen

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    @pytest.mark.parametrize(
        ("value", "word"), [("nan", "nan"), ("-nan", "nan"), ("inf", "inf"), ("-inf", "inf")]
    )
    def test_says_where_numbers_stop_being_finite(self, dtype, value, word):
        tensor = torch.ones(20_000, dtype=dtype)
        tensor[12_345] = float(value)

        assert (word, 12_345, None) == (content(tensor).bad, content(tensor).bad_at, content(tensor).norm)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    @pytest.mark.parametrize("sign", [1, -1])
    def test_large_numbers_are_finite(self, dtype, sign):
        assert "" == content(torch.full((3,), sign * torch.finfo(dtype).max, dtype=dtype)).bad

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("sign", [1, -1])
    def test_halves_have_a_norm_up_to_the_largest(self, dtype, sign):
        largest = torch.finfo(dtype).max

        norm = content(torch.full((4,), sign * largest, dtype=dtype)).norm

        assert pytest.approx(2 * largest) == norm

    def test_no_operation_of_torch_is_seen(self):
        class Counts(torch.utils._python_dispatch.TorchDispatchMode):
            count = 0

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                self.count += 1
                return func(*args, **(kwargs or {}))

        tensor = torch.randn(100, 100, requires_grad=True)
        with Counts() as counts:
            content(tensor)
        assert 0 == counts.count


class TestFirstDifference:
    def place(self, tensor):
        return TensorPlace(
            role=Role.OUTPUT,
            name="x",
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
        )

    def test_has_index_and_both_numbers(self):
        one = torch.arange(12.0).view(3, 4)
        other = one.clone()
        other[1, 2] = 6.5

        found = first_difference(self.place(one), content(one), content(other))
        assert ("index [1, 2]", ("6", "6.5")) == (found.at, found.values)

    def test_numbers_that_are_nearly_the_same_are_told_apart(self):
        one = torch.tensor([1.0])

        found = first_difference(
            self.place(one), content(one), content(torch.nextafter(one, torch.tensor([2.0])))
        )
        assert ("1", "1.00000012") == found.values

    def test_of_large_tensors_the_part_is_known(self):
        one = torch.zeros(100_000)
        other = one.clone()
        other[50_000] = 1

        found = first_difference(self.place(one), content(one), content(other))
        first, last = (int(word.strip("[]")) for word in found.at.removeprefix("indices ").split(" to "))
        assert first <= 50_000 <= last < first + 5000
        assert found.values is None

    def test_a_tolerance_is_a_share_of_what_is_compared(self):
        one, near, far = numbers(1, 100), numbers(1, 100.001), numbers(1, 101)

        assert not differ(content(one), content(near), "float32", 1e-4)
        assert differ(content(one), content(far), "float32", 1e-4)
        assert differ(content(one), content(near), "float32", None)
        assert differ(content(one), content(numbers(1, float("nan"))), "float32", 1.0)


class TestOutputs:
    def test_the_first_collective_that_gave_ranks_other_numbers(self):
        good, bad = numbers(1, 2), numbers(1, 3)
        ((kind, message),) = judge(
            [call(Role.OUTPUT, good, 1), call(Role.OUTPUT, good, 2), call(Role.OUTPUT, good, 3)],
            [call(Role.OUTPUT, good, 1), call(Role.OUTPUT, bad, 2), call(Role.OUTPUT, bad, 3)],
        )

        assert ValueFindingKind.OUTPUT == kind
        assert "all_reduce SUM #2 of group default gave ranks 0, 1 other numbers at test_a.py:7" in message
        assert "at index [1] rank 0 has 2, rank 1 has 3" in message

    @pytest.mark.parametrize("op", ["reduce_scatter_base", "alltoall", "recv"])
    def test_others_may_give_each_rank_its_own(self, op):
        assert [] == judge([call(Role.OUTPUT, numbers(1), name=op)], [call(Role.OUTPUT, numbers(2), name=op)])

    def test_inputs_may_differ(self):
        assert [] == judge([call(Role.INPUT, numbers(1))], [call(Role.INPUT, numbers(2))])

    def test_nothing_follows_from_a_test_in_which_a_call_has_raised(self):
        one, other = trace(call(Role.OUTPUT, numbers(1))), trace(call(Role.OUTPUT, numbers(2)), doubtful=True)

        assert () == judge_values({0: one, 1: other})


class TestParameters:
    def step(self, value, gradient, before=0.5, trust=Trust.WRAPPED, number=1):
        return [
            parameter(Role.BEFORE, numbers(before, 1), trust=None),
            parameter(Role.GRADIENT, numbers(gradient, 1), number, trust=None),
            parameter(Role.PARAMETER, numbers(value, 1), number, trust=trust),
        ]

    @pytest.mark.parametrize(
        ("one", "other", "reason"),
        [
            ((1, 5, 0.5), (2, 6, 0.5), "and so did its gradient"),
            ((1, 5, 0.5), (2, 5, 0.5), "though its gradient did not"),
            ((1, 5, 0.5), (2, 5, 0.6), "and did so before the first step"),
        ],
    )
    def test_replicas_that_part_and_why(self, one, other, reason):
        ((kind, message),) = judge(self.step(*one), self.step(*other))

        assert ValueFindingKind.PARAMETER == kind
        assert "parameter w after step 1 differs on ranks 0, 1 at test_a.py:9" in message
        assert reason in message

    def test_what_nothing_says_to_be_replicas_may_differ(self):
        assert [] == judge(self.step(1, 5, trust=None), self.step(2, 6, trust=None))

    def test_weak_evidence_counts_only_for_what_began_equal(self):
        assert [] == judge(self.step(1, 5, 0.5, Trust.BESIDE), self.step(2, 6, 0.6, Trust.BESIDE))
        assert 1 == len(judge(self.step(1, 5, 0.5, Trust.BESIDE), self.step(2, 6, 0.5, Trust.BESIDE)))

    @pytest.mark.parametrize(
        ("before", "after", "found"),
        [
            ([call(Role.INPUT, numbers(1, 2))], [], 0),
            ([call(Role.INPUT, numbers(1))], [], 1),
            ([call(Role.INPUT, numbers(1, 2), name="broadcast")], [], 1),
            ([], [call(Role.INPUT, numbers(1, 2))], 1),
            ([], [call(Role.INPUT, numbers(1, 2), name="alltoall_base")], 0),
        ],
        ids=["activations are reduced", "a loss", "buffers are sent", "gradients", "rows travel back"],
    )
    def test_weak_evidence_does_not_count_where_activations_travel(self, before, after, found):
        root, _, number = of_module(Role.ROOT, "backward", numbers(1), "")
        ranks = (
            [*before, (root, numbers(rank), number), *after, *self.step(1 + rank, 5, 0.5, Trust.BESIDE)]
            for rank in PAIR
        )

        assert found == len(judge(*ranks))

    def test_zeros_and_ones_have_not_begun_equal_by_a_seed(self):
        assert [] == judge(self.step(1, 5, 1, Trust.BESIDE), self.step(2, 6, 1, Trust.BESIDE))

    def test_those_that_are_the_same_again_were_meant_to_differ(self):
        last = self.step(3, 5, number=2)[1:]

        assert [] == judge([*self.step(1, 5), *last], [*self.step(2, 6), *last])


def of_module(role: Role, name: str, tensor: torch.Tensor, kind: str = "LayerNorm", number: int = 1) -> Seen:
    place = TensorPlace(role=role, name=name, kind=kind, dtype="float32", shape=tuple(tensor.shape), line=5)
    return place, tensor, number


def gather(tensor: torch.Tensor, number: int = 1) -> Seen:
    return call(Role.INPUT, tensor, number, name="allgather_base", kind="")


def stepped(name: str, gradient: float, *, start: tuple[float, float] = (1, 1), trust=None) -> list[Seen]:
    """A parameter of two numbers before and after a step, its gradient twice as large in the second number."""
    begun, slope = numbers(*start), numbers(gradient, 2 * gradient)
    return [
        parameter(Role.BEFORE, begun, trust=None, name=name),
        parameter(Role.GRADIENT, slope, trust=None, name=name),
        parameter(Role.PARAMETER, begun - slope, trust=trust, name=name),
    ]


class TestConstantStarts:
    """Parameters that start as ones, two numbers each; ranks have the gradients 1 and 2 of the one that parts."""

    def rows(self, rank: int, used: str = "next", rows: int = 4) -> list[Seen]:
        """A norm of two rows, which are gathered, and the next module."""
        output = torch.arange(4.0).view(2, 2) + rank
        return [
            of_module(Role.MODULE, "norm", output),
            gather(output),
            of_module(Role.MODULE, used, torch.ones(rows, 3) + rank, "Linear"),
        ]

    def test_a_norm_whose_rows_all_ranks_put_together(self):
        ranks = ([*self.rows(rank), *stepped("norm.weight", rank + 1)] for rank in PAIR)

        ((kind, message),) = judge(*ranks)
        assert ValueFindingKind.PARAMETER == kind
        assert "norm.weight after step 1 differs on ranks 0, 1" in message
        assert "the rows that norm gives each rank are put together by all_gather" in message

    @pytest.mark.parametrize(
        "change", [{"rows": 2}, {"used": ""}], ids=["columns are put together", "only its own model follows"]
    )
    def test_other_gathers_say_nothing(self, change):
        ranks = ([*self.rows(rank, **change), *stepped("norm.weight", rank + 1)] for rank in PAIR)

        assert [] == judge(*ranks)

    def test_a_layer_with_a_weight_is_no_norm(self):
        weight = parameter(Role.BEFORE, torch.ones(3, 2), trust=None, name="norm.weight")
        ranks = ([*self.rows(rank), weight, *stepped("norm.bias", rank + 1)] for rank in PAIR)

        assert [] == judge(*ranks)

    def both(
        self,
        paths: tuple[str, str],
        outputs: tuple[float, float],
        *more: Seen,
        shape: tuple[int, int] = (2, 2),
        like: tuple[float, float] | None = None,
    ) -> list[tuple[str, str]]:
        """Two norms, of which the gradient of the second is the same on the ranks; their outputs have these first numbers."""
        one, other = paths
        return judge(
            *(
                [
                    of_module(Role.MODULE, one, torch.arange(4.0).view(shape) + outputs[rank]),
                    of_module(Role.MODULE, other, torch.arange(4.0).view(2, 2) + (like or outputs)[rank]),
                    *more,
                    *stepped(f"{one}.weight", rank + 1),
                    *stepped(f"{other}.weight", 5),
                ]
                for rank in PAIR
            )
        )

    @pytest.mark.parametrize(
        ("paths", "outputs"),
        [
            (("layers.0.norm", "layers.1.norm"), (0, 0)),
            (("layers.0.norm", "layers.1.norm"), (0, 9)),
            (("block.before", "block.behind"), (0, 9)),
        ],
    )
    def test_a_norm_that_is_used_like_one_with_the_same_gradient(self, paths, outputs):
        ((_, message),) = self.both(paths, outputs)

        assert f"{paths[0]}.weight after step 1 differs" in message
        assert f"{paths[1]}.weight, which is used alike, has the same gradient on all of them" in message

    @pytest.mark.parametrize("paths", [("norm", "expert.norm"), ("norm", "expert_norm")])
    def test_the_norm_of_an_expert_that_sees_all_tokens_is_not_used_alike(self, paths):
        assert [] == self.both(paths, (0, 0))

    def test_the_norm_of_an_expert_to_which_tokens_travel_is_not_used_alike(self):
        travels = call(Role.INPUT, numbers(1, 2), name="alltoall_base", kind="")

        assert [] == self.both(("norm", "expert_norm"), (0, 9), travels)

    def test_layers_in_a_row_are_not_one_layer_of_many(self):
        travels = call(Role.INPUT, numbers(1, 2), name="alltoall_base", kind="")

        assert [] == self.both(("0", "2"), (0, 9), travels)

    def test_a_norm_of_other_rows_is_not_used_alike(self):
        assert [] == self.both(("layers.0.norm", "layers.1.norm"), (0, 9), shape=(1, 4))

    def test_a_norm_of_each_ranks_columns_is_not_used_like_one_of_what_all_have(self):
        assert [] == self.both(("layers.0.norm", "layers.1.norm"), (0, 9), like=(0, 0))

    @pytest.mark.parametrize(
        ("weight", "says"),
        [("layer.weight", "layer.weight is kept"), ("other.weight", "all other parameters")],
    )
    def test_a_bias_beside_what_is_kept_the_same(self, weight, says):
        ((_, message),) = judge(
            *(
                [
                    *stepped("layer.bias", rank + 1, start=(0, 0)),
                    *stepped(weight, 1, start=(2, 3), trust=Trust.REDUCED),
                ]
                for rank in PAIR
            )
        )

        assert "layer.bias after step 1 differs" in message
        assert f"{says}" in message

    @pytest.mark.parametrize(
        "seen",
        [
            lambda rank: stepped("layer.weight", 1, start=(2 + rank, 3), trust=None),
            lambda rank: stepped("layer.weight", 1 + rank, start=(2, 3), trust=None),
            lambda _: [*stepped("other.weight", 1, start=(2, 3), trust=Trust.REDUCED), gather(numbers(1, 2))],
            lambda _: [],
        ],
        ids=["beside a shard", "beside a shard of one seed", "columns are gathered", "beside nothing"],
    )
    def test_a_bias_that_may_be_a_shard(self, seen):
        assert [] == judge(*([*seen(rank), *stepped("layer.bias", rank + 1, start=(0, 0))] for rank in PAIR))

    def test_a_norm_that_starts_with_another_number_on_each_rank(self):
        ranks = (
            [*self.rows(rank), *stepped("norm.weight", rank + 1, start=(rank + 1, rank + 1))] for rank in PAIR
        )

        assert [] == judge(*ranks)

    def test_without_a_module_nothing_is_known(self):
        unnamed = [
            [
                (msgspec.structs.replace(place, model=NOWHERE), tensor, number)
                for place, tensor, number in (
                    *stepped("#1", rank + 1, start=(0, 0)),
                    *stepped("#2", 1, start=(2, 3), trust=Trust.REDUCED),
                )
            ]
            for rank in PAIR
        ]

        assert [] == judge(*unnamed)


class TestNonfinite:
    def test_where_it_came_from_and_how_it_spread(self):
        bad, good = numbers(float("nan")), numbers(1)
        ((kind, message),) = judge(
            [call(Role.INPUT, good), call(Role.OUTPUT, bad)], [call(Role.INPUT, bad), call(Role.OUTPUT, bad)]
        )

        assert ValueFindingKind.NONFINITE == kind
        assert "NaN first appeared on rank 1 in the input of all_reduce SUM #1" in message
        assert "took it to rank 0" in message

    def test_what_was_finite_before_it(self):
        given = of_module(Role.GIVEN, "", numbers(float("-inf"), 1), "Model")
        first, second = (of_module(Role.MODULE, name, numbers(1), "Linear") for name in ("0", "1"))
        bad = [
            of_module(Role.MODULE, "2", numbers(float("nan")), "Root"),
            call(Role.OUTPUT, numbers(float("nan"))),
        ]

        ((_, message),) = judge([given, first, second, *bad], [given, first, second, *bad])
        assert (
            "in the output of module 2 (Root), call 1, at index [0], after the output of module 1" in message
        )

    def test_a_backward_pass_that_begins_finite_is_named_with_its_forward(self):
        finite = [
            of_module(Role.MODULE, "1", numbers(1), "Linear"),
            of_module(Role.ROOT, "backward", numbers(1), ""),
        ]
        bad = [call(role, numbers(float("nan"))) for role in (Role.INPUT, Role.OUTPUT)]

        ((_, message),) = judge([*finite, *bad], [*finite, *bad])
        assert (
            "in the input of all_reduce SUM #1 of group default at test_a.py:7, at index [0], after the output of module 1 "
            "(Linear), call 1 and the root of backward pass 1, which were finite" in message
        )

    def test_what_a_model_is_given(self):
        bad, good = (of_module(Role.GIVEN, "", numbers(value), "Model") for value in (float("nan"), 1))
        sums = call(Role.OUTPUT, numbers(float("nan")))

        ((_, message),) = judge([good, sums], [bad, sums])
        assert "NaN first appeared on rank 1 in the input of module Model, call 1" in message

    def test_infinity_that_is_given_to_a_sum_may_be_meant(self):
        seen = [call(Role.INPUT, numbers(float("inf"))), call(Role.OUTPUT, numbers(float("inf")))]

        assert [] == judge(seen, seen)

    @pytest.mark.parametrize("kind", ["SUM", "AVG", "PRODUCT"])
    def test_a_result_that_overflows(self, kind):
        places = {Role.INPUT: 3e38, Role.OUTPUT: float("inf")}
        seen = [call(role, numbers(value), kind=kind) for role, value in places.items()]

        ((_, message),) = judge(seen, seen)
        assert "infinity first appeared on rank 0 in the output of all_reduce" in message


def recording(*ranks: Sequence[Seen], nodeid: str = "test_a.py::test_x", size: int = 0) -> ValuesFile:
    traces = {rank: trace(*seen) for rank, seen in enumerate(ranks)}
    size = size or len(ranks)
    return ValuesFile(nodeid=f"{nodeid}[{size}xgloo]", size=size, backend="gloo", ranks=traces)


class TestDiverge:
    def test_the_first_difference_over_all_ranks(self):
        same, one, other = (
            call(Role.INPUT, numbers(1)),
            call(Role.OUTPUT, numbers(1)),
            call(Role.OUTPUT, numbers(2)),
        )

        found = find_divergence(
            recording([same, one], [one, same]), recording([same, other], [other, same]), None
        )
        assert found is not None
        assert (1, 0) == (found.rank, found.same)
        assert "the output of all_reduce SUM #1 of group default differs, first at index [0]" in found.message
        assert "A at test_a.py:7: 1 (norm 1); B at test_a.py:7: 2 (norm 2)" in found.message

    def test_another_call_and_one_that_is_missing(self):
        one, other = call(Role.INPUT, numbers(1)), call(Role.INPUT, numbers(1), name="broadcast", kind="")

        divergence = find_divergence(recording([one]), recording([other]), None)
        assert divergence is not None
        assert "A has the input of all_reduce SUM #1" in divergence.message
        divergence = find_divergence(recording([one]), recording([one, other]), None)
        assert divergence is not None
        assert "only B goes on, with the input of broadcast #1" in divergence.message

    def test_calls_of_two_groups_may_come_in_any_order(self):
        one, other = (call(Role.INPUT, numbers(number), group_id=str(number)) for number in (1, 2))
        more = call(Role.INPUT, numbers(3), number=2, group_id="1")

        assert find_divergence(recording([one, other]), recording([other, one]), None) is None
        later = [call(Role.INPUT, numbers(number), group_id=str(number + 8)) for number in (2, 1)]
        assert find_divergence(recording([one, other]), recording(later), None) is None
        divergence = find_divergence(recording([one, other]), recording([other, one, more]), None)
        assert divergence is not None
        assert "only B goes on, with the input of all_reduce SUM #2" in divergence.message

    def test_results_may_be_learned_in_any_order(self):
        one, other = (call(Role.OUTPUT, numbers(number), number=number) for number in (1, 2))

        assert find_divergence(recording([one, other]), recording([other, one]), None) is None

    def test_pickles_may_differ(self):
        one, other = (call(Role.INPUT, torch.tensor([number], dtype=torch.uint8)) for number in (1, 2))

        assert find_divergence(recording([one]), recording([other]), None) is None

    def test_worlds_of_two_sizes_are_compared_by_their_parameters(self):
        step = parameter(Role.PARAMETER, numbers(1))
        near = parameter(Role.PARAMETER, numbers(1.0000001))
        alone, four = recording([step]), recording([call(Role.INPUT, numbers(1)), near], [], [], [])

        assert find_divergence(alone, four, 1e-5) is None
        assert find_divergence(alone, four, None) is not None

    def test_what_is_compared_with_what(self):
        one, four, other = recording([]), recording([], [], [], []), recording([], nodeid="test_a.py::test_y")

        assert [(one, four)] == list(pairs((one,), (four, other)))
        assert [(one, one)] == list(pairs((one,), (one, four)))

    def test_files(self, tmp_path):
        folder = tmp_path / "logs" / "test_x" / "attempt-1"
        folder.mkdir(parents=True)
        raw = msgspec.Raw(msgspec.json.encode(trace(call(Role.INPUT, numbers(1)))))
        (folder / FILE_NAME).write_bytes(encode_recording("test_a.py::test_x[1xgloo]", 1, "gloo", {0: raw}))

        assert (recording([call(Role.INPUT, numbers(1))]),) == read_recordings(tmp_path)

    @pytest.mark.parametrize(
        ("data", "says"),
        [(b"{}", "not a recording"), (b"\xff", "not a recording"), (b'{"version": 2}', "format 2")],
    )
    def test_what_is_none(self, tmp_path, data, says):
        (tmp_path / FILE_NAME).write_bytes(data)

        with pytest.raises(UsageError, match=says):
            read_recordings(tmp_path / FILE_NAME)
        with pytest.raises(UsageError, match="--sanitize values"):
            read_recordings(tmp_path)


def test_what_is_beyond_the_limit_is_counted_and_told(monkeypatch):
    monkeypatch.setattr("disttest.extras.sanitizers.values.trace_notes.MOST_ENTRIES", 1)
    cut = trace(call(Role.INPUT, numbers(1)), call(Role.INPUT, numbers(2), 2))

    assert 1 == cut.beyond
    assert ("values were compared for the first 1 tensors; rank 0 has seen 1 more",) == limits_of({0: cut})


class Slow(dict[Any, int]):
    """Lets other threads run before it takes a value."""

    def __setitem__(self, key: Any, value: int) -> None:
        time.sleep(0)
        super().__setitem__(key, value)


def test_threads_may_note_at_the_same_time(monkeypatch):
    notes = Notes()
    monkeypatch.setattr(notes, "_contents", Slow())

    def add(thread: int) -> None:
        for value in range(1000 * thread, 1000 * thread + 100):
            place, tensor, _ = call(Role.INPUT, torch.tensor([value]), name=str(value))
            notes.add(place, tensor, 1)

    threads = [threading.Thread(target=add, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    seen = notes.trace()
    assert all(
        int(seen.places[each.place].name) == int.from_bytes(seen.contents[each.content].head, sys.byteorder)
        for each in seen.entries
    )
