"""Replaced attributes of torch's classes and modules, which Dynamo must not compile, and their restoration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disttest.observe import hub


def keep_from_dynamo(function: Any) -> None:
    """Keep Dynamo from compiling a function and its callees, without importing Dynamo, which takes a second."""
    # Functions that Dynamo meets while it traces another one need ``_torchdynamo_disable`` as well.
    from torch._C._dynamo import eval_frame

    # The C interface of Dynamo is private (torch 2.9 to 2.15); torch.compiler.disable would import Dynamo:
    # https://github.com/pytorch/pytorch/blob/main/torch/_C/_dynamo/eval_frame.pyi
    skip = eval_frame._FrameAction.SKIP  # noqa: SLF001
    strategy = eval_frame._FrameExecStrategy(skip, skip)  # noqa: SLF001
    eval_frame.set_code_exec_strategy(function.__code__, strategy)


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
        # An attribute may have been replaced twice, and the first entry has the original.
        for owner, name, original in reversed(self._undo):
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._undo.clear()
