"""Makes tests, batches and slots for the planner's tests."""

from __future__ import annotations

from disttest.model import Batch, Isolation, Slot, TestCase, WorldShape


def slots(count: int, device: str = "cpu", group_size: int = 0) -> tuple[Slot, ...]:
    prefix = "cpu" if device == "cpu" else "gpu"
    return tuple(
        Slot(
            name=f"{prefix}:{index}",
            device=device,
            index=index,
            group=f"island{index // group_size}" if group_size else "",
        )
        for index in range(count)
    )


def batch(
    name: str,
    size: int = 1,
    seconds: float = 1.0,
    *,
    device: str = "cpu",
    exclusive: bool = False,
    urgent: bool = False,
) -> Batch:
    return Batch(
        batch_id=name,
        nodeids=(f"test_{name}",),
        shape=WorldShape(size=size, backend="gloo", device=device),
        isolation=Isolation.FRESH,
        expected_s=seconds,
        exclusive=exclusive,
        urgent=urgent,
    )


def case(
    name: str,
    size: int | None = 2,
    *,
    file: str = "tests/test_a.py",
    suite: str = "tests",
    warm: bool = False,
    exclusive: bool = False,
    backend: str = "gloo",
    nodes: int = 1,
    device: str = "cpu",
) -> TestCase:
    shape = WorldShape(size=size, backend=backend, nodes=nodes, device=device) if size else None
    suffix = f"[{shape}]" if shape else ""
    return TestCase(
        nodeid=f"{file}::{name}{suffix}",
        slug=f"{name}-{size}",
        classname=file.removesuffix(".py").replace("/", "."),
        name=f"{name}{suffix}",
        file=file,
        line=1,
        suite=suite,
        world=shape,
        isolation=Isolation.WARM if warm else Isolation.FRESH,
        exclusive=exclusive,
    )
