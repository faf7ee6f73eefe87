"""What a test has recorded, in a form in which two runs can be compared."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from disttest.masking import masker
from disttest.observe import spec_of

_SHOWN = 8
"""Numbers of a tensor that are shown, not told by their digest."""


def numbers_of(properties: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Name -> value in words: equal words, equal numbers, to the bit.

    Args:
        properties: what ``record_property`` was given; of one name the last counts.
    """
    return {masker.text(str(name)): masker.text(_describe(value)) for name, value in properties}


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
    except Exception as error:  # noqa: BLE001  # it is the test's own
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
