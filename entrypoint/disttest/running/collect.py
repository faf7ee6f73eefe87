"""From pytest items to tests: which worlds a marked test needs, and what is known before any starts."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.unittest import TestCaseFunction

from disttest.errors import UsageError
from disttest.masking import masker
from disttest.model import Frozen, Isolation, Kind, TestCase, WorldShape
from disttest.planning.options import RunOptions, check_seconds, check_world_size
from disttest.running.hosting.recognise import Hosted, hosted
from disttest.testing.skips import early_skip

if TYPE_CHECKING:
    from _pytest.skipping import Skip

SHAPE_FIXTURE = "_disttest_shape"
_SHAPE = pytest.StashKey[WorldShape]()
_CPU_SIZES = (1, 2, 4)
_GPU_SIZES = (1, 2, 4, 8)
_DEVICES = ("cpu", "cuda")
MOST_GPUS = _GPU_SIZES[-1]
"""GPUs of a runner of which nothing else is known."""

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
    "needs_gpus(n): skip the test on a machine with fewer GPUs",
    "fresh_world: give the test processes of its own, before and after",
    "timeout(seconds): time limit of the test",
    "exclusive: run nothing else at the same time",
)


class Host(Frozen):
    """What the collection needs to know of the machine."""

    gpus: int
    """GPUs (or MIG slices) of this run."""
    device: str
    """``cpu`` or ``cuda``: where ranks compute in this run."""
    pool: int = 1
    """Machines like this one that a world may span."""
    nodes: int = 1
    """Over how many of them a world is spread that does not say so itself."""
    slices: bool = False
    """The GPUs are MIG slices, which NCCL refuses."""
    gloo_on_cpu: bool = False
    """The GPUs are NCCL's in this run: worlds on gloo compute on the CPU beside them."""

    def default_backend(self, device: str = "") -> str:
        """The best backend for a device, by default that of the run."""
        return "nccl" if (device or self.device) == "cuda" and not self.slices else "gloo"

    def default_sizes(self, device: str = "") -> tuple[int, ...]:
        """World sizes of a run that names none: those that fit, times the machines that a world is spread over."""
        sizes: tuple[int, ...] = _CPU_SIZES
        if (device or self.device) == "cuda" and self.gpus:
            sizes = tuple(size for size in _GPU_SIZES if size <= self.gpus)
        return tuple(size * self.nodes for size in sizes)

    def device_for(self, backend: str) -> str:
        """Where ranks on a backend compute, unless their test says it."""
        return "cpu" if self.gloo_on_cpu and backend == "gloo" else self.device

    def refusal(self, shape: WorldShape) -> str:
        """Why a world of this shape can not run here; empty when it can."""
        if shape.nodes > self.pool:
            found = "this machine is one" if self.pool == 1 else f"this pool has {self.pool}"
            return f"needs {shape.nodes} nodes for {shape}, {found}: run it with --launcher slurm --nodes N"
        if shape.backend == "nccl" and self.slices:
            return "NCCL refuses MIG slices: --backend gloo runs there"
        if shape.ranks_per_node > self.gpus and (shape.backend == "nccl" or shape.device != "cpu"):
            if shape.nodes > 1:
                return f"needs {shape.ranks_per_node} GPUs on each node for {shape}, they have {self.gpus}"
            return f"needs {shape.size} GPUs for {shape}, this machine has {self.gpus}"
        return ""


def wanted_shapes(node: pytest.Item | Any, options: RunOptions, host: Host) -> tuple[WorldShape, ...]:
    """The worlds that a marked test asks for, in order.

    Raises:
        UsageError: a mark makes no sense.
    """
    mark = node.get_closest_marker("world_size")
    if mark is None:
        return ()
    asked = _device(node)
    devices = {
        backend: asked or host.device_for(backend) for backend in _backends(node, options, host, asked)
    }
    sizes = {backend: _sizes(mark, options, host, device) for backend, device in devices.items()}
    return tuple(
        WorldShape(size=size, backend=backend, device=device, nodes=_nodes(node, size, host))
        for size in dict.fromkeys(size for some in sizes.values() for size in some)
        for backend, device in devices.items()
        if size in sizes[backend]
    )


def _device(node: pytest.Item | Any) -> str:
    """Where a test wants its ranks to compute; empty where that is the run's to say."""
    mark = node.get_closest_marker("device")
    if mark is None:
        return ""
    if len(mark.args) != 1 or mark.kwargs or mark.args[0] not in _DEVICES:
        raise UsageError('device mark takes "cpu" or "cuda"')
    return str(mark.args[0])


def _sizes(mark: pytest.Mark, options: RunOptions, host: Host, device: str) -> tuple[int, ...]:
    unknown = set(mark.kwargs) - {"min", "max"}
    if unknown:
        raise UsageError(f"world_size mark does not take {', '.join(sorted(unknown))}")
    declared = tuple(dict.fromkeys(check_world_size(size) for size in mark.args))
    least = check_world_size(mark.kwargs.get("min", 1))
    most = check_world_size(mark.kwargs["max"]) if mark.kwargs.get("max") is not None else float("inf")
    run_sizes = options.world_sizes or host.default_sizes(device)
    if declared:
        return tuple(size for size in declared if not options.world_sizes or size in options.world_sizes)
    return tuple(size for size in run_sizes if least <= size <= most)


def _nodes(node: Any, size: int, host: Host) -> int:
    """Over how many machines a world is spread: as its mark says, else as the run does where it comes out even."""
    mark = node.get_closest_marker("nodes")
    if mark is None:
        return host.nodes if size % host.nodes == 0 else 1
    wanted = mark.args[0] if len(mark.args) == 1 and not mark.kwargs else None
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise UsageError("nodes mark takes one whole number from 1")
    if size % wanted:
        raise UsageError(f"{size} ranks can not be spread evenly over {wanted} nodes")
    return wanted


def _backends(node: Any, options: RunOptions, host: Host, device: str) -> tuple[str, ...]:
    run_backends = options.backend or (host.default_backend(device),)
    if device == "cpu":
        run_backends = tuple(name for name in run_backends if name != "nccl")
    mark = node.get_closest_marker("backend")
    if mark is None or not run_backends:
        return run_backends
    if options.backend:
        return tuple(name for name in mark.args if name in options.backend)
    return (run_backends[0],) if run_backends[0] in mark.args else tuple(mark.args[:1])


def parametrize_worlds(metafunc: pytest.Metafunc, options: RunOptions, host: Host) -> None:
    """Make one test of each world that a marked function asks for.

    Raises:
        pytest.Collector.CollectError: a mark makes no sense.
    """
    definition = metafunc.definition
    if definition.get_closest_marker("world_size") is None:
        return
    try:
        shapes = wanted_shapes(definition, options, host)
    except UsageError as error:
        raise pytest.Collector.CollectError(f"{definition.nodeid}: {error}") from None
    metafunc.fixturenames.append(SHAPE_FIXTURE)
    values = [_parameter(shape, host) for shape in shapes] or [_no_world(definition, options)]
    metafunc.parametrize(SHAPE_FIXTURE, values, indirect=True)


def _parameter(shape: WorldShape, host: Host) -> Any:
    refusal = host.refusal(shape)
    return pytest.param(shape, id=str(shape), marks=[pytest.mark.skip(reason=refusal)] if refusal else [])


def _no_world(node: Any, options: RunOptions) -> Any:
    return pytest.param(None, id="no-world", marks=pytest.mark.skip(reason=_no_world_reason(node, options)))


def _no_world_reason(node: Any, options: RunOptions) -> str:
    mark = node.get_closest_marker("world_size")
    limits = [*map(str, mark.args), *(f"{name}={value}" for name, value in mark.kwargs.items())]
    run = ",".join(map(str, options.world_sizes)) or "those of this machine"
    where = f" on device({_device(node)!r})" if _device(node) else ""
    return f"none of the run's world sizes ({run}) and backends suits world_size({', '.join(limits)}){where}"


class WorldMethod(TestCaseFunction):
    """A unittest method at one world size; pytest parametrizes functions only."""

    @property
    def method_name(self) -> str:
        """Name of the method, without the world."""
        return self.name.partition("[")[0]

    def _getinstance(self) -> Any:
        return self.parent.obj(self.method_name)  # type: ignore[union-attr]

    def _getobj(self) -> Any:
        owner = self.instance if self.instance is not None else self.parent.obj  # type: ignore[union-attr]
        return getattr(owner, self.method_name)

    def runtest(self) -> None:
        """Run the method under its own name, which is what unittest looks it up by."""
        full_name, self.name = self.name, self.method_name
        try:
            super().runtest()
        finally:
            self.name = full_name


def expand_methods(nodes: Iterable[Any], options: RunOptions, host: Host) -> Iterator[Any]:
    """Yield the nodes, each marked unittest method replaced by one for each of its worlds.

    Raises:
        pytest.Collector.CollectError: a mark makes no sense.
    """
    for node in nodes:
        if not isinstance(node, TestCaseFunction) or node.get_closest_marker("world_size") is None:
            yield node
            continue
        try:
            shapes = wanted_shapes(node, options, host)
        except UsageError as error:
            raise pytest.Collector.CollectError(f"{node.nodeid}: {error}") from None
        if not shapes:
            node.add_marker(pytest.mark.skip(reason=_no_world_reason(node, options)))
            yield node
        for shape in shapes:
            yield _method_at(node, shape, host)


def _method_at(node: TestCaseFunction, shape: WorldShape, host: Host) -> WorldMethod:
    method: WorldMethod = WorldMethod.from_parent(node.parent, name=f"{node.name}[{shape}]")
    method.stash[_SHAPE] = shape
    if refusal := host.refusal(shape):
        method.add_marker(pytest.mark.skip(reason=refusal))
    return method


def shape_of(item: pytest.Item) -> WorldShape | None:
    """The world that an item was made for; None for an ordinary test."""
    if _SHAPE in item.stash:
        return item.stash[_SHAPE]
    callspec = getattr(item, "callspec", None)
    shape = callspec.params.get(SHAPE_FIXTURE) if callspec is not None else None
    return shape if isinstance(shape, WorldShape) else None


def needs_ranks(item: pytest.Item) -> bool:
    """Whether processes will be started for the item, by us or by its class."""
    return shape_of(item) is not None or hosted(item) is not None


def describe_item(item: pytest.Item, options: RunOptions, host: Host) -> TestCase:
    """A pytest item as a test.

    Raises:
        UsageError: a mark makes no sense.
    """
    path, line, _ = item.location
    module, _, rest = item.nodeid.partition("::")
    *classes, name = rest.split("::") if rest else [module]
    by_host = hosted(item)
    return TestCase(
        nodeid=item.nodeid,
        slug=slug_of(item.nodeid),
        classname=".".join([*PurePosixPath(module).with_suffix("").parts, *classes]),
        name=name,
        file=PurePosixPath(path).as_posix(),
        line=(line or 0) + 1,
        suite=_suite(module),
        world=_hosted_shape(item, by_host, options, host) if by_host else shape_of(item),
        kind=by_host.kind if by_host else Kind.RANKS,
        isolation=_isolation(item, options),
        timeout_s=_timeout_s(item, options),
        exclusive=item.get_closest_marker("exclusive") is not None,
    )


def _hosted_shape(item: pytest.Item, by_host: Hosted, options: RunOptions, host: Host) -> WorldShape:
    if shape_of(item) is not None:
        raise UsageError(
            f"{item.nodeid}: a world_size mark on a test whose class starts its ranks by itself; "
            "set the world_size of the class instead"
        )
    # Such a class says by itself which backends it uses: unless it is marked, it may need what the run has.
    device = _device(item) or host.device
    suitable = (name for name in options.backend if name != "nccl" or device != "cpu")
    backend = next(suitable, host.default_backend(device))
    return WorldShape(size=by_host.size, backend=backend, device=device)


def _suite(module: str) -> str:
    path = PurePosixPath(module)
    parent = path.parent.as_posix()
    return path.stem if parent == "." else parent


def _isolation(item: pytest.Item, options: RunOptions) -> Isolation:
    if item.get_closest_marker("fresh_world") is not None:
        return Isolation.FRESH
    if options.isolation is not None:
        return options.isolation
    if hosted(item) is not None:
        return Isolation.WARM  # the main process; ranks are new for each test, or kept, as the class has it
    return Isolation.WARM if "world" in getattr(item, "fixturenames", ()) else Isolation.FRESH


def _timeout_s(item: pytest.Item, options: RunOptions) -> float:
    mark = item.get_closest_marker("timeout")
    if mark is None:
        by_host = hosted(item)
        asked = options.timeout != RunOptions().timeout
        return options.timeout if asked or by_host is None or not by_host.limit_s else by_host.limit_s
    value = mark.args[0] if mark.args else mark.kwargs.get("timeout")
    try:
        return check_seconds(value)
    except UsageError as error:
        raise UsageError(f"{item.nodeid}: timeout mark: {error}") from None


def slug_of(nodeid: str) -> str:
    """A folder name for a test: readable, safe anywhere, and different for different tests."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", masker.text(nodeid).rpartition("/")[2]).strip("-.")[:80]
    digest = hashlib.sha256(nodeid.encode("utf-8", "backslashreplace")).hexdigest()[:10]
    return f"{readable}-{digest}"


def check_backends(items: Iterable[pytest.Item], options: RunOptions) -> None:
    """Skip the tests whose backend the installed torch was built without.

    Raises:
        UsageError: the run was asked for that backend by name.
    """
    for item in items:
        shape = shape_of(item)
        if shape is None or _is_built(shape.backend):
            continue
        if shape.backend in options.backend:
            raise UsageError(
                f"--backend {shape.backend}: the installed torch has no such backend; it has {_built_backends()}"
            )
        item.add_marker(pytest.mark.skip(reason=f"torch has no backend {shape.backend}"))


def _is_built(backend: str) -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is None or not dist.is_available() or dist.is_backend_available(backend)


def _built_backends() -> str:
    from torch.distributed import Backend

    return ", ".join(name for name in Backend.backend_list if name != "undefined" and _is_built(name))


def known_skip(item: pytest.Item) -> str | None:
    """The reason, if the item's marks already say that it will not run; a skip costs no process then."""
    from _pytest.skipping import evaluate_skip_marks

    skip: Skip | None = evaluate_skip_marks(item)
    if skip is not None:
        return skip.reason
    function = getattr(item, "obj", None)
    for owner in (function, getattr(item.parent, "obj", None)):
        if getattr(owner, "__unittest_skip__", False):
            return str(getattr(owner, "__unittest_skip_why__", ""))
    by_host = hosted(item)
    if by_host is not None and by_host.refusal:
        return by_host.refusal
    if (reason := early_skip(function)) is not None:
        return reason
    needs = item.get_closest_marker("needs_gpus")
    return None if needs is None else _gpu_refusal(item, int(needs.args[0]))


_gpus = pytest.StashKey[int]()


def remember_gpus(config: pytest.Config, count: int) -> None:
    """Keep the number of GPUs where the marks are evaluated."""
    config.stash[_gpus] = count


def _gpu_refusal(item: pytest.Item, needed: int) -> str | None:
    found = item.config.stash.get(_gpus, 0)
    return f"needs {needed} GPUs, this machine has {found}" if found < needed else None


def modules_of(items: Sequence[pytest.Item]) -> tuple[str, ...]:
    """Absolute paths of the files that the items come from."""
    return tuple(sorted({str(Path(item.path)) for item in items}))
