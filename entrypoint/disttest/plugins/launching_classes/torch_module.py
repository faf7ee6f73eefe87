"""torch's module of test bases, as far as somebody has imported it: what can be read there before any process starts."""

from __future__ import annotations

import sys
import types
from typing import Any

from disttest.options.values import check_world_size

_NAME = "torch.testing._internal.common_distributed"


def torch_module() -> types.ModuleType | None:
    """torch's module of test bases, if somebody has imported it; nobody is made to."""
    return sys.modules.get(_NAME)


def torch_skips() -> dict[int, str]:
    """The skip codes of the installed torch."""
    module = torch_module()
    return {skip.exit_code: skip.message for skip in module.TEST_SKIPS.values()} if module else {}


def rank_count(value: Any) -> int:
    """A ``world_size`` as a number of ranks: an int, or its text, as torch takes both.

    Raises:
        UsageError: it is neither, or not from 1 to the limit.
    """
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    return check_world_size(value)
