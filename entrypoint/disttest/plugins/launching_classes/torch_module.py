"""torch's module of test bases, if it is imported: its data that can be read before any process starts."""

from __future__ import annotations

import sys
import types
from typing import Any

from disttest.options.values import check_world_size

_NAME = "torch.testing._internal.common_distributed"


def torch_module() -> types.ModuleType | None:
    """Return torch's module of test bases if it is imported. It is never imported here."""
    return sys.modules.get(_NAME)


def torch_skips() -> dict[int, str]:
    """Return the skip codes of the installed torch."""
    module = torch_module()
    return {skip.exit_code: skip.message for skip in module.TEST_SKIPS.values()} if module else {}


def rank_count(value: Any) -> int:
    """Convert a ``world_size`` to a number of ranks. As in torch, it is an int or its text.

    Raises:
        UsageError: it is neither, or not between 1 and the limit.
    """
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    return check_world_size(value)
