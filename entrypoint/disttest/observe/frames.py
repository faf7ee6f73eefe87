"""Which of our frames Dynamo sees: none."""

from __future__ import annotations

from typing import Any


def keep_from_dynamo(function: Any) -> None:
    """Keep Dynamo from compiling a function and what it calls, without importing Dynamo, which takes a second.

    A function that Dynamo meets while it traces another one is a matter of its own (``_torchdynamo_disable``).
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP  # noqa: SLF001
    strategy = eval_frame._FrameExecStrategy(skip, skip)  # noqa: SLF001
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
