"""Format the values that a test records, so that two runs can be compared."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from disttest.observe import spec_of
from disttest.outgoing import outgoing

_SHOWN = 8
"""Elements of a tensor that are shown as numbers; larger tensors are shown by their digest."""


def numbers_of(properties: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Map each name to its value as text; equal texts mean equal values, to the bit.

    Args:
        properties: arguments of ``record_property``; the last value of a name counts.
    """
    return {outgoing.text(str(name)): outgoing.text(_describe(value)) for name, value in properties}


def _describe(value: Any) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from disttest.observe.memory import digest_of

        whole = value.detach().cpu()
        whole = whole if whole.layout is torch.strided else whole.to_dense()
        if whole.numel() <= _SHOWN:
            return repr(whole.tolist())
        return f"{spec_of(whole)} with digest {digest_of([whole]):08x}"
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  # the repr is the test's code
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
