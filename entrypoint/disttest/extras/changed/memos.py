"""Functions that may keep a result for later calls: later tests depend on the parts that the first one used for it."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import CodeType, FrameType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

_MUTATORS = frozenset(("add", "append", "extend", "insert", "setdefault", "update"))
_CONTAINERS = (dict, list, set, WeakKeyDictionary, WeakValueDictionary)


def remembers(frame: FrameType) -> bool:
    """Return whether a function that starts has a cache, or may store something that outlives its call.

    That is a global or nonlocal variable, an attribute of a global object or of a class, or an item of a container that is
    global, an attribute of the class, or a variable of an enclosing function.
    """
    # Not f_locals: it keeps the arguments alive until the function returns (Python 3.11 to 3.13).
    # A frame does not refer to its function object. The qualified name leads to it, except for nested
    # functions.
    *owners, found = _resolved(frame)
    classes: list[Any] = [owner for owner in owners if issubclass(type(owner), type)]
    spaces = [frame.f_globals, *(vars(each) for owner in classes for each in owner.__mro__)]
    return _has_cache(found) or _stores(frame.f_code, spaces)


def _resolved(frame: FrameType) -> Iterator[object]:
    """Yield the classes of a method, and the object that has the name of the function; None for a nested function."""
    space: Mapping[str, object] = frame.f_globals
    for name in frame.f_code.co_qualname.split("."):
        found = space.get(name)
        yield found
        # type(), here and below: an object may answer for its class with code of its project.
        space = vars(found) if issubclass(type(found), type) else {}


def _has_cache(found: object) -> bool:
    """Whether an object is a wrapper such as those of ``functools.cache``, ``cached_property`` or cachetools."""
    kind = type(found)
    # cached_property is no property: its type name has "cache" in it.
    if issubclass(kind, property | classmethod | staticmethod):
        inner = getattr(found, "fget", None) or getattr(found, "__func__", None)
        return _has_cache(inner)
    # cachetools wraps a function and gives the wrapper the attributes cache, cache_key and cache_lock. A text
    # keeps no result: all 500 algorithms of networkx have a `_cached_doc`.
    named = vars(found) if issubclass(kind, FunctionType) else {}
    keeping = (name for name, value in named.items() if not issubclass(type(value), str | None))
    return any("cache" in name for name in (kind.__name__, *keeping))


def _stores(code: CodeType, spaces: list[Mapping[str, object]]) -> bool:
    def outlives(name: object) -> bool:
        return name in code.co_freevars or any(
            issubclass(type(space.get(name)), _CONTAINERS) for space in spaces if isinstance(name, str)
        )

    of_class = code.co_argcount > 0 and code.co_varnames[0] == "cls"
    instructions = ((each.opname, each.argval) for each in dis.get_instructions(code))
    for (before, value), (operation, name) in pairwise(instructions):
        match operation:
            case "STORE_GLOBAL":
                return True
            case "STORE_DEREF" if name in code.co_freevars:
                return True
            # `settings.loaded = 1` is LOAD_GLOBAL settings, STORE_ATTR loaded. In between there is nothing.
            case "STORE_ATTR" if of_class or before == "LOAD_GLOBAL":
                return True
            # The container is pushed before the index, which may be an expression of any length. So each name
            # of the function counts as the container, which selects too many tests rather than too few.
            case "STORE_SUBSCR" if any(map(outlives, (*code.co_names, *code.co_freevars))):
                return True
            # `known.append(x)` loads the method by LOAD_METHOD until Python 3.11, and by LOAD_ATTR since
            # 3.12.
            case "LOAD_METHOD" | "LOAD_ATTR" if name in _MUTATORS and outlives(value):
                return True
    return False
