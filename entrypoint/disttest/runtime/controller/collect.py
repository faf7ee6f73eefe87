"""Convert a pytest item to a test: frozen data that all processes share."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from disttest.errors import UsageError
from disttest.limits import NO_LIMIT_S
from disttest.model import Isolation, Outcome, TestCase, TestResult, WorldKind, WorldShape, parts_of
from disttest.options.run import RunOptions
from disttest.options.values import check_seconds
from disttest.outgoing import outgoing, shorten
from disttest.plugin_manager import plugin_manager
from disttest.runtime.controller.expand import closest_mark, collected_as, limit_mark, shape_of
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.controller.wanted_worlds import (
    OwnWorld,
    new_ranks_for_plugins,
    own_world,
    ranks_may_differ,
)
from disttest.runtime.messages.protocol import clean_text


def is_ordinary(test: TestCase) -> bool:
    """Whether a test runs in the pytest process."""
    return test.world is None and test.kind is not WorldKind.PROCESS


def describe_item(item: pytest.Item, options: RunOptions, host: TargetHost) -> TestCase:
    """Describe a pytest item as a test.

    Raises:
        UsageError: a mark is invalid.
    """
    path, line, _ = item.location
    module, classes, name = parts_of(item.nodeid)
    selected_by = collected_as(item)
    # pytest leaves the file out of the id if it is not below the root directory.
    if not module:
        module, selected_by = PurePosixPath(path).name, f"{path}{selected_by or item.nodeid}"
    own = own_world(item, options, host)
    kind = own.kind if own else WorldKind.RANKS
    world = own.shape if own else shape_of(item)
    return TestCase(
        nodeid=item.nodeid,
        collected_as=selected_by,
        slug=slug_of(item.nodeid),
        classname=".".join([*PurePosixPath(module).with_suffix("").parts, *classes]),
        name=name,
        file=PurePosixPath(path).as_posix(),
        # pytest counts lines from 0, and has None for an item without a line.
        line=(line or 0) + 1,
        suite=_suite(module),
        world=world,
        kind=kind,
        isolation=_isolation(item, options, own, world),
        reuses_ranks=own is not None and own.new_ranks_because == "",
        new_ranks_because=(own and own.new_ranks_because) or "",
        timeout_s=_timeout_s(item, options, own),
        exclusive=runs_alone(item, options),
        ranks_may_differ=(own is not None and own.ranks_may_differ) or ranks_may_differ(item),
        data=msgspec.to_builtins(plugin_manager().named("disttest_test_data", object, item=item)),
    )


def runs_alone(item: pytest.Item, options: RunOptions) -> bool:
    """Whether the user wants no other test to run at the same time."""
    return closest_mark(item, "exclusive") is not None or options.is_debugged


def describe_skipped(report: pytest.CollectReport, root: Path) -> tuple[TestCase, TestResult]:
    """Describe a file, class or folder that skipped itself while it was collected, as one skipped test.

    Its tests are unknown. Without this entry, a suite that vanishes with an optional import would be in no report.
    """
    # pytest makes such a tuple. A plugin that makes its report itself may give anything.
    where, line, message = skip if isinstance(skip := report.longrepr, tuple) else ("", 1, str(skip or ""))
    # pytest's session, which collects what the command line names, has an empty id.
    file, separator, name = (report.nodeid or ".").partition("::")
    # A conftest or a hook may skip a whole folder, whose name has no suffix.
    is_folder = (root / file).is_dir()
    module = ".".join(PurePosixPath(file).with_suffix("").parts) if not is_folder else file.replace("/", ".")
    test = TestCase(
        nodeid=report.nodeid or ".",
        slug=slug_of(report.nodeid),
        # As in pytest's JUnit file: the name of a skipped file is its module.
        classname=module if separator else "",
        name=name.replace("::", ".") or module,
        file=file,
        line=line if Path(where) == root / file else 1,
        # A suite is a folder. In that of the folder above, --strict would not notice that this one has no test.
        suite=file if is_folder else _suite(file),
    )
    reason = re.sub(r"^(Skipped|unittest\.case\.SkipTest): ?", "", shorten(clean_text(message)))
    return test, TestResult(nodeid=test.nodeid, outcome=Outcome.SKIPPED, phase="collect", message=reason)


def _suite(module: str) -> str:
    path = PurePosixPath(module)
    parent = path.parent.as_posix()
    return path.stem if parent == "." else parent


def _isolation(
    item: pytest.Item, options: RunOptions, own: OwnWorld | None, world: WorldShape | None
) -> Isolation:
    # The mark of the test decides first, then a plugin that needs new processes, then the option of the run.
    if closest_mark(item, "fresh_world") is not None:
        return Isolation.FRESH
    kind = own.kind if own else WorldKind.RANKS
    if kind is WorldKind.RANKS and new_ranks_for_plugins(world, kind, options):
        return Isolation.FRESH
    if options.isolation is not None:
        return options.isolation
    if own is not None:
        return (
            Isolation.WARM
        )  # of a main process; its ranks are new for each test, or kept, as the class has it
    return Isolation.WARM if "world" in getattr(item, "fixturenames", ()) else Isolation.FRESH


def _timeout_s(item: pytest.Item, options: RunOptions, world: OwnWorld | None) -> float:
    mark = limit_mark(item)
    if mark is None:
        # An option that the user gave outweighs the limits of plugins and classes. It does not outweigh a
        # mark.
        asked = "timeout" in options.given
        own = None if asked else plugin_manager().call("disttest_timeout", item=item)
        if own is not None:
            return float(own)
        limit_s = options.timeout or NO_LIMIT_S
        return limit_s if asked or world is None or not world.limit_s else world.limit_s
    value = mark.args[0] if mark.args else mark.kwargs.get("timeout")
    # pytest-timeout reads 0 as "no limit" as well.
    if isinstance(value, int | float) and value == 0 and not isinstance(value, bool):
        return NO_LIMIT_S
    try:
        return check_seconds(value)
    except UsageError as error:
        raise UsageError(f"{item.nodeid}: timeout mark: {error}") from None


def slug_of(nodeid: str) -> str:
    """Return a folder name for a test: readable, safe on any file system, and unique."""
    file, separator, name = outgoing.text(nodeid).partition("::")  # parameters may have slashes, too
    whole = f"{file.rpartition('/')[2]}{separator}{name}"
    # 80 characters and the digest stay far below the 255 bytes that Linux allows for a name.
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", whole).strip("-.")[:80]
    # The readable part is cut and replaces characters, so it alone is not unique.
    digest = hashlib.sha256(nodeid.encode("utf-8", "backslashreplace")).hexdigest()[:10]
    return f"{readable}-{digest}"


def modules_of(items: Sequence[pytest.Item]) -> tuple[str, ...]:
    """List the absolute paths of the files that the items come from."""
    return tuple(sorted({str(Path(item.path)) for item in items}))
