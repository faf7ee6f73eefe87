"""Which worlds a marked test gets, by what the run has and asks for."""

from __future__ import annotations

import pytest

from disttest.errors import UsageError
from disttest.model import WorldShape
from disttest.options.run import RunOptions
from disttest.runtime.controller.early_skips import skip_for_want_of_gpus
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.controller.wanted_worlds import needed_gpus, wanted_shapes, worlds_of

GPUS = TargetHost(gpus=2, device="cuda")
BOTH = TargetHost(gpus=2, device="cuda", gloo_on_cpu=True)
SLICES = TargetHost(gpus=2, device="cuda", slices=True)
CPU = TargetHost(gpus=0, device="cpu")


class Mark:
    """As much of a mark as is read; pytest's own must be registered."""

    def __init__(self, name: str, *args: object, **kwargs: object) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs


class Node:
    """As much of a pytest item as its marks."""

    nodeid = "test_x.py::test_x"

    def __init__(self, *marks: Mark) -> None:
        self._marks = {mark.name: mark for mark in marks}
        self.added: list[pytest.MarkDecorator] = []

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.added.append(marker)

    def get_closest_marker(self, name: str) -> Mark | None:
        return self._marks.get(name)


def worlds(host: TargetHost, *marks: Mark, **options: object) -> list[str]:
    shapes = wanted_shapes(Node(*marks), RunOptions(**options), host)
    return [f"{shape} {shape.device}" for shape in shapes]


SIZES = Mark("world_size")
TWO = Mark("world_size", 2)


@pytest.mark.parametrize(
    ("host", "backend", "expected"),
    [
        (CPU, (), ["1xgloo cpu", "2xgloo cpu", "4xgloo cpu"]),
        (GPUS, (), ["1xnccl cuda", "2xnccl cuda"]),
        (GPUS, ("gloo",), ["1xgloo cuda", "2xgloo cuda"]),
        (SLICES, (), ["1xgloo cuda", "2xgloo cuda"]),
        (BOTH, ("gloo", "nccl"), ["1xgloo cpu", "1xnccl cuda", "2xgloo cpu", "2xnccl cuda", "4xgloo cpu"]),
    ],
)
def test_each_backend_computes_at_its_own_place(
    host: TargetHost, backend: tuple[str, ...], expected: list[str]
) -> None:
    assert expected == worlds(host, SIZES, backend=backend)


@pytest.mark.parametrize("host", [CPU, GPUS, BOTH, SLICES])
def test_a_test_for_the_cpu_computes_there_whatever_the_run_has(host: TargetHost) -> None:
    assert ["1xgloo cpu", "2xgloo cpu", "4xgloo cpu"] == worlds(host, SIZES, Mark("device", "cpu"))
    assert ["2xgloo cpu"] == worlds(host, TWO, Mark("device", "cpu"), Mark("backend", "gloo", "nccl"))


def test_a_run_on_nccl_alone_has_no_world_for_it() -> None:
    assert [] == worlds(GPUS, TWO, Mark("device", "cpu"), backend=("nccl",))


@pytest.mark.parametrize(
    ("marks", "options", "reason"),
    [
        ((TWO,), {"world_sizes": (1,)}, "world sizes (1) suits world_size(2)"),
        ((Mark("world_size", min=3),), {}, "world sizes (1, 2) suits world_size(min=3)"),
        ((TWO, Mark("backend", "gloo")), {"backend": ("nccl",)}, "backends (nccl) suits backend('gloo')"),
        ((TWO, Mark("device", "cpu")), {"backend": ("nccl",)}, "backends (nccl) suits device('cpu')"),
        (
            (Mark("world_size", min=5), Mark("device", "cpu")),
            {},
            "world sizes (1, 2, 4) suits world_size(min=5) on device('cpu')",
        ),
    ],
)
def test_a_test_without_a_world_says_which_mark_keeps_it_from_one(
    marks: tuple[Mark, ...], options: dict[str, object], reason: str
) -> None:
    (wanted,) = worlds_of(Node(*marks), RunOptions(**options), GPUS) or ()

    assert (None, f"none of the run's {reason}") == (wanted.shape, wanted.refusal)


def test_a_test_for_gpus_keeps_them_on_gloo() -> None:
    marks = TWO, Mark("device", "cuda"), Mark("backend", "gloo")

    assert ["2xgloo cuda"] == worlds(BOTH, *marks, backend=("gloo", "nccl"))


def test_without_gpus_such_a_test_is_skipped_with_the_reason() -> None:
    (shape,) = wanted_shapes(Node(TWO, Mark("device", "cuda"), Mark("backend", "gloo")), RunOptions(), CPU)

    assert "needs 2 GPUs for 2xgloo, this machine has 0" == CPU.refusal(shape)
    assert "" == GPUS.refusal(shape)
    assert "" == GPUS.refusal(WorldShape(size=8, backend="gloo", device="cpu"))


@pytest.mark.parametrize("arguments", [(), ("tpu",), ("cpu", "cuda"), (["cpu"],)])
def test_what_the_mark_takes(arguments: tuple[object, ...]) -> None:
    with pytest.raises(UsageError, match='device mark takes "cpu" or "cuda"'):
        worlds(GPUS, TWO, Mark("device", *arguments))


def test_a_test_without_a_world_needs_its_gpus_as_well() -> None:
    none, two, three = Node(), Node(Mark("needs_gpus", 2)), Node(Mark("needs_gpus", 3))

    skip_for_want_of_gpus([none, two, three], found=2)  # type: ignore[list-item]

    assert [none.added, two.added] == [[], []]
    assert [mark.kwargs["reason"] for mark in three.added] == ["needs 3 GPUs, this run has 2"]


@pytest.mark.parametrize("arguments", [(), ("2",), (0,), (True,), (1, 2)])
def test_a_needs_gpus_mark_takes_one_number(arguments: tuple[object, ...]) -> None:
    with pytest.raises(UsageError, match=r"test_x: needs_gpus mark takes one whole number from 1"):
        needed_gpus(Node(Mark("needs_gpus", *arguments)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks_per_gpu", "nccl", "refusal"),
    [
        (1, (2, 30, 7), "needs 4 GPUs for 4xnccl, this machine has 2"),
        (2, (2, 30, 7), ""),
        (2, None, ""),
        (
            2,
            (2, 29, 7),
            "needs 4 GPUs for 4xnccl, this machine has 2; --ranks-per-gpu needs NCCL 2.30, and 2.29.7 is loaded: "
            "install torch 2.14.1 or newer",
        ),
    ],
)
def test_worlds_with_more_ranks_than_gpus(
    monkeypatch: pytest.MonkeyPatch, ranks_per_gpu: int, nccl: tuple[int, int, int] | None, refusal: str
) -> None:
    monkeypatch.setattr("disttest.runtime.controller.target_host.loaded_nccl", lambda: nccl)
    host = TargetHost(gpus=2, device="cuda", ranks_per_gpu=ranks_per_gpu)

    assert refusal == host.refusal(WorldShape(size=4, backend="nccl", device="cuda"))
    assert host.refusal(WorldShape(size=5, backend="nccl", device="cuda"))
    assert (1, 2, 4)[: 1 + ranks_per_gpu] == host.default_sizes()


@pytest.mark.parametrize(("backend", "refused"), [("gloo", False), ("xccl", True)])
def test_backends_say_by_themselves_whether_their_ranks_may_share_a_gpu(
    backend: str, *, refused: bool
) -> None:
    host = TargetHost(gpus=1, device="cuda", ranks_per_gpu=2)

    assert refused == bool(host.refusal(WorldShape(size=2, backend=backend, device="cuda")))
