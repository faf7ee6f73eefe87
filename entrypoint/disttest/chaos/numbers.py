"""What a test has recorded, in a form in which two runs can be compared."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable
from typing import Any

from disttest.masking import masker

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
        whole = value.detach().cpu().contiguous().clone()
        if whole.numel() <= _SHOWN:
            return repr(whole.tolist())
        digest = zlib.crc32(bytes(whole.reshape(-1).view(torch.uint8).tolist()))
        return f"{str(whole.dtype).removeprefix('torch.')}{list(whole.shape)} with digest {digest:08x}"
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  # it is the test's own
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
