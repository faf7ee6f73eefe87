"""Read marks: the worlds of a test, and its GPUs without a world."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disttest.errors import UsageError
from disttest.model import Frozen, WorldKind, WorldShape
from disttest.options.run import RunOptions
from disttest.options.values import check_world_size
from disttest.planning.backends import CPU, DEVICES, backend_named
from disttest.plugin_manager import plugin_manager
from disttest.runtime.controller.expand import WantedWorld, closest_mark
from disttest.runtime.controller.target_host import TargetHost

MARKS = (
    (
        "world_size(*sizes, min=1, max=None): run the test in a world of that many ranks, once for each size; "
        "without sizes, once for each world size of the run within the limits"
    ),
    "backend(*names): run the test on these backends only",
    (
        "device(type): where the ranks compute: on the cpu, whatever the run has, or on cuda only, which skips the test "
        "in a run without GPUs"
    ),
    "nodes(n): spread the ranks evenly over that many machines; n=1 keeps them on one, whatever the run asks for",
    "needs_gpus(n): skip the test, with or without a world, in a run with fewer GPUs",
    "fresh_world: give the test processes of its own, before and after",
    "timeout(seconds): time limit of the test; 0: none",
    "exclusive: run nothing else at the same time",
    "ranks_may_differ: ranks may skip the test, or expect it to fail, where others do not; those that ran it decide",
)


_OWN_NAMES = ("world_size", "needs_gpus", "fresh_world", "ranks_may_differ")
"""Marks that are declared in every session; the other names are so common that another project may use them."""
_DECLARED = pytest.StashKey[set[str]]()


def all_marks() -> tuple[str, ...]:
    """List the marks of the core and of plugins with their descriptions, for pytest's ``markers``."""
    return (*MARKS, *(mark for _, mark in plugin_manager().items("disttest_marks", str)))


def declare_marks(config: pytest.Config, *, common: bool) -> None:
    """Declare the marks to pytest, once.

    Args:
        config: of the session.
        common: also those with common names, such as ``timeout``: in a session without worlds another project may use
            them, and with ``--strict-markers`` a name that is not declared has to stay an error there.
    """
    declared = config.stash.setdefault(_DECLARED, set())
    for mark in all_marks():
        if mark not in declared and (common or mark.startswith(_OWN_NAMES)):
            declared.add(mark)
            config.addinivalue_line("markers", mark)


def has_to_do_with_worlds(file: Path) -> bool:
    """Whether the text of a test file names worlds or disttest; pytest reports a file that cannot be read."""
    try:
        text = file.read_bytes()
    except OSError:
        return False
    return b"world_size" in text or b"disttest" in text


def takes_world(item: pytest.Item) -> bool:
    """Whether a test uses the fixture ``world`` of disttest."""
    chain = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).get("world", ())
    # pytest lists the definitions of a fixture from the outermost to the one that the test gets: a conftest
    # may override `world`.
    return bool(chain) and chain[-1].func.__module__ == "disttest.plugin"


class OwnWorld(Frozen):
    """The world of a test whose marks ask for none."""

    shape: WorldShape
    kind: WorldKind = WorldKind.RANKS
    limit_s: float = 0.0
    """Time limit of the test in seconds, unless the user sets one; 0 for the usual one."""
    ranks_may_differ: bool = False
    """Whether ranks may skip a test that others run, or expect a failure that others do not."""
    new_ranks_because: str | None = None
    """Reason why its class needs new ranks for each test, empty if they may be reused; None if not applicable."""
    refusal: str = ""
    """Reason why none of its ranks would run here; empty if some would."""


OWN_WORLD = pytest.StashKey[OwnWorld | None]()


def own_world(item: pytest.Item, options: RunOptions, host: TargetHost) -> OwnWorld | None:
    """Return the world that a plugin gives a test; None if its marks decide."""
    if OWN_WORLD not in item.stash:
        asked = {"item": item, "options": options, "host": host}
        item.stash[OWN_WORLD] = plugin_manager().call("disttest_world_of", **asked)
    return item.stash[OWN_WORLD]


def new_ranks_for_plugins(world: WorldShape | None, kind: WorldKind, options: RunOptions) -> str:
    """Return the reason why a plugin wants new ranks for a test; empty if none does."""
    asked = {"world": world, "kind": kind, "options": options}
    return plugin_manager().call("disttest_needs_new_ranks", **asked) or ""


def ranks_may_differ(item: pytest.Item) -> bool:
    """Whether a test declares that its ranks may end in different ways."""
    return item.get_closest_marker("ranks_may_differ") is not None


def wanted_shapes(node: pytest.Item | Any, options: RunOptions, host: TargetHost) -> tuple[WorldShape, ...]:
    """List the worlds that a marked test asks for, in order.

    Raises:
        UsageError: a mark is invalid.
    """
    mark = closest_mark(node, "world_size")
    if mark is None:
        return ()
    asked = marked_device(node)
    devices = {
        backend: asked or host.device_for(backend) for backend in _backends(node, options, host, asked)
    }
    # Sizes differ by device: gloo on the CPU next to NCCL on GPUs may use more ranks.
    sizes = {backend: _sizes(mark, options, host, device) for backend, device in devices.items()}
    return tuple(
        WorldShape(size=size, backend=backend, device=device, nodes=_nodes(node, size, host))
        for size in dict.fromkeys(size for some in sizes.values() for size in some)
        for backend, device in devices.items()
        if size in sizes[backend]
    )


def marked_device(node: pytest.Item | Any) -> str:
    """Return where the test's mark makes its ranks compute; empty if the run decides."""
    mark = closest_mark(node, "device")
    if mark is None:
        return ""
    if len(mark.args) != 1 or mark.kwargs or mark.args[0] not in DEVICES:
        raise UsageError(f"device mark takes {' or '.join(json.dumps(name) for name in DEVICES)}")
    return str(mark.args[0])


def _sizes(mark: pytest.Mark, options: RunOptions, host: TargetHost, device: str) -> tuple[int, ...]:
    unknown = set(mark.kwargs) - {"min", "max"}
    if unknown:
        raise UsageError(f"world_size mark takes sizes, min and max, not {', '.join(sorted(unknown))}")
    declared = tuple(dict.fromkeys(check_world_size(size) for size in mark.args))
    least = check_world_size(mark.kwargs.get("min", 1))
    most = check_world_size(mark.kwargs["max"]) if mark.kwargs.get("max") is not None else float("inf")
    run_sizes = options.world_sizes or host.default_sizes(device)
    if declared:
        return tuple(size for size in declared if not options.world_sizes or size in options.world_sizes)
    return tuple(size for size in run_sizes if least <= size <= most)


def _nodes(node: Any, size: int, host: TargetHost) -> int:
    """Return the number of machines for a world: its mark's, otherwise the run's if it divides the size."""
    mark = closest_mark(node, "nodes")
    if mark is None:
        return host.nodes if size % host.nodes == 0 else 1
    wanted = mark.args[0] if len(mark.args) == 1 and not mark.kwargs else None
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise UsageError("nodes mark takes one whole number from 1")
    if size % wanted:
        raise UsageError(
            f"{size} ranks cannot be spread evenly over {wanted} nodes: the nodes mark has to divide the size"
        )
    return wanted


def _backends(node: Any, options: RunOptions, host: TargetHost, device: str) -> tuple[str, ...]:
    run_backends = options.backend or (host.default_backend(device),)
    if device == CPU:
        run_backends = tuple(name for name in run_backends if not backend_named(name).needs_accelerator)
    mark = closest_mark(node, "backend")
    if mark is None or not run_backends:
        return run_backends
    if options.backend:
        return tuple(name for name in mark.args if name in options.backend)
    # Without --backend a test runs on one backend, if possible that of the run.
    return (run_backends[0],) if run_backends[0] in mark.args else tuple(mark.args[:1])


def worlds_of(node: pytest.Item, options: RunOptions, host: TargetHost) -> tuple[WantedWorld, ...] | None:
    """List the worlds of a marked test with obstacles; one without a shape if no world of the run suits it.

    Returns:
        None if another harness, which starts the ranks, owns the mark.

    Raises:
        UsageError: a mark is invalid.
    """
    if _is_foreign(node, options):
        return None
    shapes = wanted_shapes(node, options, host)
    if not shapes:
        return (WantedWorld(shape=None, refusal=_no_world_reason(node, options, host)),)
    return tuple(WantedWorld(shape=shape, refusal=host.refusal(shape)) for shape in shapes)


def _is_foreign(node: pytest.Item, options: RunOptions) -> bool:
    """Whether a plugin or the user says that world_size is the mark of another harness here."""
    if plugin_manager().call("disttest_marks_are_foreign", item=node, options=options):
        return True
    return any(node.path.is_relative_to(node.config.rootpath / folder) for folder in options.foreign_marks)


def _no_world_reason(node: Any, options: RunOptions, host: TargetHost) -> str:
    asked = marked_device(node)
    where = f"device({asked!r})" if asked else ""
    backends = _backends(node, options, host, asked)
    if not backends:
        wanted = [each for each in (_as_written(closest_mark(node, "backend")), where) if each]
        return f"none of the run's backends ({', '.join(options.backend)}) suits {' on '.join(wanted)}"
    devices = {asked or host.device_for(backend) for backend in backends}
    there = dict.fromkeys(size for device in sorted(devices) for size in host.default_sizes(device))
    sizes = options.world_sizes or tuple(there)
    suits = " on ".join(each for each in (_as_written(closest_mark(node, "world_size")), where) if each)
    return f"none of the run's world sizes ({', '.join(map(str, sizes)) or 'none'}) suits {suits}"


def _as_written(mark: pytest.Mark | None) -> str:
    """Format a mark as in the source of a test; empty for None."""
    if mark is None:
        return ""
    words = [*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())]
    return f"{mark.name}({', '.join(words)})"


def needed_gpus(item: pytest.Item) -> int:
    """Return the number of GPUs that an item requires by the ``needs_gpus`` mark; 0 without one.

    Raises:
        UsageError: the mark is invalid.
    """
    mark = closest_mark(item, "needs_gpus")
    if mark is None:
        return 0
    wanted = mark.args[0] if len(mark.args) == 1 and not mark.kwargs else None
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise UsageError(f"{item.nodeid}: needs_gpus mark takes one whole number from 1")
    return wanted
