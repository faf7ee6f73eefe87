"""Detect that a pipeline stage runs its module only to infer shapes, on memory that was never written."""

from __future__ import annotations

import sys
from types import FrameType

_PIPELINE_STAGE = "torch.distributed.pipelining.stage"
_INFERENCES = frozenset({"_shape_inference", "_forward_metadata_inference", "_backward_metadata_inference"})
"""Methods of a pipeline stage that run its module on uninitialised memory, for the shapes of its outputs."""


def infers_shapes() -> bool:
    """Whether this thread is in one of ``_INFERENCES``."""
    stage = sys.modules.get(_PIPELINE_STAGE)
    # inspect.currentframe has no depth, and inspect.stack reads source files (Python 3.11 to 3.13).
    frame: FrameType | None = sys._getframe(1) if stage else None  # noqa: SLF001
    while frame is not None:
        if frame.f_code.co_name in _INFERENCES and frame.f_globals is vars(stage):
            return True
        frame = frame.f_back
    return False
