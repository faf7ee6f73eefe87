"""Replaced attributes of torch's classes and modules, and their restoration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disttest.observe import hub
from disttest.observe.frames import keep_from_dynamo

Original = Callable[..., Any]
_ABSENT = object()


class Replacements:
    """Replaced attributes, until :meth:`remove` restores them."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Original], Original]) -> None:
        """Replace a function by one that is made from it."""
        original = getattr(owner, name, None)
        if original is None:
            hub.note_missing(f"{owner.__name__}.{name}")
            return
        replacement = make(original)
        replacement.__name__, replacement.__doc__ = name, original.__doc__
        vars(replacement)["_torchdynamo_disable"] = True  # the attribute that torch.compiler.disable sets
        keep_from_dynamo(replacement)
        self.put(owner, name, replacement)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute by any object, or override an inherited one."""
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))  # from vars(): getattr would bind it
        setattr(owner, name, value)

    def remove(self) -> None:
        """Restore the replaced attributes."""
        for owner, name, original in reversed(self._undo):
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._undo.clear()
