"""A pytest item as a test: frozen data that all processes speak of."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from disttest.errors import UsageError
from disttest.limits import NO_LIMIT_S
from disttest.masking import masker
from disttest.model import FlakyRule, Frozen, Isolation, RecordRule, TestCase, WorldKind, WorldShape
from disttest.options.run import RunOptions
from disttest.options.values import check_seconds
from disttest.planning.backends import CPU, backend_named
from disttest.plugin_manager import plugin_manager
from disttest.runtime.controller.expand import closest_mark, collected_as, shape_of
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.controller.unrecorded import why_unrecorded
from disttest.runtime.controller.wanted_worlds import marked_device
from disttest.runtime.hosting.recognise import Hosted, hosted, ranks_may_differ


class OwnWorld(Frozen):
    """The world of a test that asks for none by a mark."""

    shape: WorldShape
    ranks_may_differ: bool = False
    """Whether ranks may skip what others run, or expect a failure where others do not."""


_OWN_WORLD = pytest.StashKey[OwnWorld | None]()


def own_world(item: pytest.Item, options: RunOptions, host: TargetHost) -> OwnWorld | None:
    """The world that a plugin gives a test; None where its marks decide."""
    if _OWN_WORLD not in item.stash:
        asked = {"item": item, "options": options, "host": host}
        item.stash[_OWN_WORLD] = plugin_manager().call("disttest_world_of", **asked)
    return item.stash[_OWN_WORLD]


def is_ordinary(test: TestCase) -> bool:
    """Whether a test runs in the pytest process."""
    return test.world is None and test.kind is not WorldKind.PROCESS


def needs_ranks(item: pytest.Item) -> bool:
    """Whether processes will be started for the item, by us or by its class."""
    return shape_of(item) is not None or hosted(item) is not None


def describe_item(item: pytest.Item, options: RunOptions, host: TargetHost) -> TestCase:
    """A pytest item as a test.

    Raises:
        UsageError: a mark makes no sense.
    """
    path, line, _ = item.location
    module, _, rest = item.nodeid.partition("::")
    *classes, name = rest.split("::") if rest else [module]
    by_host = hosted(item)
    kind = by_host.kind if by_host else WorldKind.RANKS
    why_new = _why_new_ranks(item, by_host, options, host)
    own = own_world(item, options, host)
    shape = own.shape if own else shape_of(item)
    world = _hosted_shape(item, by_host, options, host) if by_host else shape
    return TestCase(
        nodeid=item.nodeid,
        collected_as=collected_as(item),
        slug=slug_of(item.nodeid),
        classname=".".join([*PurePosixPath(module).with_suffix("").parts, *classes]),
        name=name,
        file=PurePosixPath(path).as_posix(),
        line=(line or 0) + 1,
        suite=_suite(module),
        world=world,
        kind=kind,
        isolation=_isolation(item, options, kind, world),
        reuses_ranks=why_new == "",
        new_ranks_because=why_new or "",
        timeout_s=_timeout_s(item, options),
        exclusive=closest_mark(item, "exclusive") is not None or options.is_debugged,
        ranks_may_differ=(own is not None and own.ranks_may_differ) or ranks_may_differ(item),
        data=msgspec.to_builtins(plugin_manager().named("disttest_test_data", item=item)),
    )


def _hosted_shape(item: pytest.Item, by_host: Hosted, options: RunOptions, host: TargetHost) -> WorldShape:
    if shape_of(item) is not None:
        raise UsageError(
            f"{item.nodeid}: a world_size mark on a test whose class starts its ranks by itself; "
            "set the world_size of the class instead"
        )
    # Such a class says by itself which backends it uses: unless it is marked, it may need what the run has.
    device = marked_device(item) or host.device
    suitable = (
        name for name in options.backend if device != CPU or not backend_named(name).needs_accelerator
    )
    backend = next(suitable, host.default_backend(device))
    return WorldShape(size=by_host.size, backend=backend, device=device)


def _suite(module: str) -> str:
    path = PurePosixPath(module)
    parent = path.parent.as_posix()
    return path.stem if parent == "." else parent


def _isolation(
    item: pytest.Item, options: RunOptions, kind: WorldKind, world: WorldShape | None
) -> Isolation:
    if closest_mark(item, "fresh_world") is not None:
        return Isolation.FRESH
    if options.record is not RecordRule.OFF and not why_unrecorded(world, kind, options):
        return Isolation.FRESH  # a recording begins with the life of its rank
    if options.isolation is not None:
        return options.isolation
    if kind is not WorldKind.RANKS or options.ranks_collect:
        return Isolation.WARM  # the main process; ranks are new for each test, or kept, as the class has it
    return Isolation.WARM if "world" in getattr(item, "fixturenames", ()) else Isolation.FRESH


def _why_new_ranks(
    item: pytest.Item, by_host: Hosted | None, options: RunOptions, host: TargetHost
) -> str | None:
    """Why ranks that its class starts are new for the test, empty if they need not be; None where that is no question."""
    if by_host is None or by_host.why_new_ranks is None or options.isolation is not Isolation.WARM:
        return None
    reasons = {
        "marked fresh_world": closest_mark(item, "fresh_world") is not None,
        "each repetition is an attempt of its own": options.repeat > 1,
        "--flaky=fail": options.flaky is FlakyRule.FAIL,
        "ranks are debugged": options.is_debugged,
        "ranks are recorded": options.record is not RecordRule.OFF,
        "ranks on GPUs": (marked_device(item) or host.device) != CPU,
    }
    return next((why for why, holds in reasons.items() if holds), by_host.why_new_ranks)


def _timeout_s(item: pytest.Item, options: RunOptions) -> float:
    mark = closest_mark(item, "timeout")
    if mark is None:
        by_host = hosted(item)
        asked = "timeout" in options.given
        own = None if asked else plugin_manager().call("disttest_timeout", item=item)
        if own is not None:
            return float(own)
        limit_s = options.timeout or NO_LIMIT_S
        return limit_s if asked or by_host is None or not by_host.limit_s else by_host.limit_s
    value = mark.args[0] if mark.args else mark.kwargs.get("timeout")
    if value == 0 and not isinstance(value, bool):
        return NO_LIMIT_S
    try:
        return check_seconds(value)
    except UsageError as error:
        raise UsageError(f"{item.nodeid}: timeout mark: {error}") from None


def slug_of(nodeid: str) -> str:
    """A folder name for a test: readable, safe anywhere, and different for different tests."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", masker.text(nodeid).rpartition("/")[2]).strip("-.")[:80]
    digest = hashlib.sha256(nodeid.encode("utf-8", "backslashreplace")).hexdigest()[:10]
    return f"{readable}-{digest}"


def modules_of(items: Sequence[pytest.Item]) -> tuple[str, ...]:
    """Absolute paths of the files that the items come from."""
    return tuple(sorted({str(Path(item.path)) for item in items}))
