"""Expand tests to worlds: an item with a ``world_size`` mark becomes one item for each of its worlds.

The items are created when their file is collected, so that a node id with a world can be selected, and from finished
items, so that marks of parameters count, which parametrizing the functions would miss. Marks that a hook adds later
are expanded after all hooks.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import pytest
from _pytest import python
from _pytest.unittest import TestCaseFunction

from disttest.errors import UsageError
from disttest.model import Frozen, WorldShape

# Its name before pytest 9.2.
CallSpec: Any = getattr(python, "CallSpec", None) or python.CallSpec2

SHAPING_MARKS = ("world_size", "backend", "device", "nodes")
"""Marks that determine the worlds of a test."""


class _Made(Frozen):
    """The world for which an item was created, and the marks that determined it."""

    shape: WorldShape | None
    """None if no world of the run suits the test, which is skipped."""
    marks: tuple[pytest.Mark | None, ...]
    collected_as: str = ""
    """Original node id, if the item was created after the collection."""


class WantedWorld(Frozen):
    """A world that a test asks for."""

    shape: WorldShape | None
    refusal: str = ""
    """Reason why it cannot run here; empty if it can."""

    @property
    def label(self) -> str:
        """Part of the test's name for this world."""
        return str(self.shape) if self.shape else "no-world"


Wanted = Callable[[pytest.Item], Sequence[WantedWorld] | None]
"""Returns the worlds of a marked test, or None if another harness owns the mark; raises UsageError if it is invalid."""

_MADE = pytest.StashKey[_Made]()
# Original node id of an item that has copies; they share the stash.
_COPY_OF = pytest.StashKey[str]()


def closest_mark(node: Any, name: str) -> pytest.Mark | None:
    """Find the mark that applies: that of a parameter takes precedence over function, class and module."""
    # In `own_markers` pytest lists the marks of a function before those of its parameters, and the first one
    # counts as the closest.
    own: Iterable[Any] = getattr(getattr(node, "callspec", None), "marks", ())
    for mark in own:
        if getattr(mark, "name", "") == name:
            return getattr(mark, "mark", mark)  # type: ignore[no-any-return]
    found: pytest.Mark | None = node.get_closest_marker(name)
    return found


def limit_mark(item: pytest.Item) -> pytest.Mark | None:
    """Return the ``timeout`` mark that limits the item."""
    mark = closest_mark(item, "timeout")
    # pytest-timeout has marks without a limit: `timeout(method="thread")`.
    has_none = mark is not None and mark.kwargs and not mark.args and "timeout" not in mark.kwargs
    return None if has_none else mark


def shape_of(item: pytest.Item) -> WorldShape | None:
    """Return the world for which an item was created; None for an ordinary test."""
    made = item.stash.get(_MADE, None)
    return made.shape if made else None


def collected_as(item: pytest.Item) -> str:
    """Return the node id that selects the item, if its own does not: its world was added by a hook, or it is a copy."""
    made = item.stash.get(_MADE, None)
    return (made.collected_as if made else "") or item.stash.get(_COPY_OF, "")


def repeat_each(items: list[pytest.Item], times: int) -> None:
    """Repeat each test this many times in a row; :func:`make_ids_unique` gives the copies their names."""
    if times > 1:
        items[:] = [each for item in items for each in (item, *(twin_of(item) for _ in range(times - 1)))]


def twin_of(item: pytest.Item) -> pytest.Item:
    """Copy a test, with its own copy of all state that running it changes."""
    twin: Any = copy.copy(item)
    twin.own_markers, twin.user_properties = [*item.own_markers], [*item.user_properties]
    # pytest cannot copy an item or a stash by a public function (pytest 8.4 to 9.2).
    twin._report_sections = []  # noqa: SLF001
    stash: Any = pytest.Stash()
    stash._storage.update(item.stash._storage)  # noqa: SLF001
    twin._store = twin.stash = stash  # noqa: SLF001
    # Functions keep a fixture request, which must not be shared.
    if hasattr(twin, "_initrequest"):
        twin._initrequest()  # noqa: SLF001
    return twin  # type: ignore[no-any-return]


def make_ids_unique(items: list[pytest.Item]) -> None:
    """Give each item a unique id: plugins that repeat tests copy them including their ids, or list them again."""
    taken: dict[str, pytest.Item] = {}
    for index, item in enumerate(items):
        nodeid, number = item.nodeid, 1
        # `items * 2` in a hook lists the same object twice. Without a copy the second run would replace the
        # first.
        if taken.get(nodeid) is item:
            items[index] = item = twin_of(item)
        # A loop, because a test of the project may be named `test_x#2` already.
        while taken.setdefault(item.nodeid, item) is not item:
            number += 1
            rename(item, f"{nodeid}#{number}", collected_as=collected_as(item) or nodeid)


def rename(item: pytest.Item, nodeid: str, *, collected_as: str) -> None:
    """Give an item another id; the old one still selects it."""
    item.stash[_COPY_OF] = collected_as
    _set_id(item, nodeid)


def _set_id(item: Any, nodeid: str) -> None:
    # An item's id cannot be set by a public function; it has another name since pytest 9.2 (pytest 8.4 to 9.2).
    if hasattr(item, "_id"):
        item._id = type(item._id).parse(nodeid)  # noqa: SLF001
    else:  # pytest before 9.2
        item._nodeid = nodeid  # noqa: SLF001


def expand(nodes: Iterable[Any], wanted: Wanted, *, late: bool = False) -> Iterator[Any]:
    """Yield the collected nodes, with each marked test replaced by one item for each of its worlds.

    Args:
        nodes: children of a file or class; nodes other than tests stay as they are.
        wanted: returns the worlds of a marked test.
        late: whether pytest has resolved the selected node ids already.

    Raises:
        UsageError: a mark is invalid.
    """
    # Parameters of one function stay together, so that all its tests at one world size follow each other.
    for _, group in groupby(nodes, key=_function):
        rounds: dict[str, list[Any]] = {}
        for node in group:
            for label, each in _of(node, wanted, late=late):
                rounds.setdefault(label, []).append(each)
        for each_round in rounds.values():
            yield from each_round


def expand_late(items: list[pytest.Item], wanted: Wanted) -> None:
    """Expand items whose marks hooks have added after the collection.

    Raises:
        UsageError: a mark is invalid, or was added too late.
    """
    for item in items:
        made = item.stash.get(_MADE, None)
        if made is not None and (changed := _changed(made.marks, _marks(item))):
            raise UsageError(
                f"{item.nodeid}: its {changed} mark was changed after its worlds were made, by a hook such as "
                "pytest_collection_modifyitems: leave either the hook's mark out, or the one that the test has"
            )
    items[:] = expand(items, wanted, late=True)


def _function(node: Any) -> tuple[int, str]:
    name = getattr(node, "originalname", None)
    return (id(node.parent), name) if name else (id(node), "")


def _is_owed(node: Any) -> bool:
    """Whether a test asks for worlds and has none yet."""
    return (
        isinstance(node, pytest.Item)
        # A doctest has the marks of its module, which mean the test functions.
        and not isinstance(node, pytest.DoctestItem)
        and _MADE not in node.stash
        and closest_mark(node, "world_size") is not None
    )


def _of(node: Any, wanted: Wanted, *, late: bool) -> Iterator[tuple[str, Any]]:
    if not _is_owed(node):
        yield "", node
        return
    try:
        worlds = wanted(node)
    except UsageError as error:
        raise UsageError(f"{node.nodeid}: {error}") from None
    if worlds is None:
        yield "", node
        return
    if not isinstance(node, pytest.Function):
        raise UsageError(f"{node.nodeid}: only test functions and methods can have a world_size mark")
    marks = _marks(node)
    for world in worlds:
        copy = _copy(node, world.label)
        copy.stash[_MADE] = _Made(shape=world.shape, marks=marks, collected_as=node.nodeid if late else "")
        if world.refusal:
            copy.add_marker(pytest.mark.skip(reason=world.refusal))
        yield world.label, copy


def _marks(node: Any) -> tuple[pytest.Mark | None, ...]:
    return tuple(closest_mark(node, name) for name in SHAPING_MARKS)


def _changed(before: Sequence[object], after: Sequence[object]) -> str:
    """Name the first changed mark. Marks hold arbitrary values, so only their identity is compared."""
    found = zip(SHAPING_MARKS, before, after, strict=True)
    # Values may be tensors, whose comparison is not a bool.
    return next((name for name, old, new in found if old is not new), "")


def _copy(node: pytest.Function, label: str) -> pytest.Function:
    """Copy a test under a name with the world in it, keeping everything that plugins have attached."""
    copy = _method(node, label) if isinstance(node, TestCaseFunction) else _plain(node, label)
    # `from_parent` reads the marks of the function again, and so misses those that hooks and plugins added to
    # the node.
    copy.own_markers[:] = node.own_markers
    copy.keywords.update({mark.name: mark for mark in node.own_markers})
    copy.extra_keyword_matches |= node.extra_keyword_matches
    copy.user_properties += node.user_properties
    return copy


def _plain(node: pytest.Function, label: str) -> pytest.Function:
    # pytest builds the node id from the ids in the callspec, so the world becomes one more id (pytest 8.4 to 9.2).
    before = getattr(node, "callspec", None) or CallSpec()
    callspec = dataclasses.replace(before, _idlist=(label, *before._idlist))  # noqa: SLF001
    copy: pytest.Function = type(node).from_parent(
        node.parent,
        name=f"{node.originalname}[{callspec.id}]",
        callspec=callspec,
        fixtureinfo=node._fixtureinfo,  # noqa: SLF001
        keywords={callspec.id: True},
        originalname=node.originalname,
    )
    return copy


def _method(node: TestCaseFunction, label: str) -> WorldMethod:
    method: WorldMethod = WorldMethod.from_parent(node.parent, name=f"{node.name}[{label}]")
    # pytest 9.2 compares ids in parts, for `--lf` and `--nf`, and takes a whole name for one part.
    _set_id(method, method.nodeid)
    return method


class WorldMethod(TestCaseFunction):
    """A unittest method at one world size; pytest's name contains the world, unittest's does not."""

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
        """Run the method under its original name, by which unittest looks it up."""
        full_name, self.name = self.name, self.method_name
        try:
            super().runtest()
        finally:
            self.name = full_name
