"""Functions that Dynamo must not compile."""

from __future__ import annotations

from typing import Any


def keep_from_dynamo(function: Any) -> None:
    """Keep Dynamo from compiling a function and its callees, without importing Dynamo, which takes a second."""
    # Functions that Dynamo meets while it traces another one need ``_torchdynamo_disable`` as well.
    # The C interface of Dynamo is private; torch.compiler.disable would import Dynamo:
    # https://github.com/pytorch/pytorch/blob/main/torch/_C/_dynamo/eval_frame.pyi
    from torch._C._dynamo import eval_frame

    # The C interface of Dynamo is private (torch 2.9 to 2.15); torch.compiler.disable would import Dynamo:
    # https://github.com/pytorch/pytorch/blob/main/torch/_C/_dynamo/eval_frame.pyi
    skip = eval_frame._FrameAction.SKIP  # noqa: SLF001
    strategy = eval_frame._FrameExecStrategy(skip, skip)  # noqa: SLF001
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
