"""Where this suite touches names that torch does not promise."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from typing import Any

from ..private import has, private


def missing() -> str:
    """Why torch cannot compile here; empty when it can."""
    import torch.distributed as dist

    if not dist.is_available():
        return "this torch was built without torch.distributed"
    return "" if has("torch._dynamo.optimize") else "this torch has no Dynamo"


def missing_compiler() -> str:
    """Why Inductor cannot make code for the CPU here; empty when it can."""
    found = any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    return "" if found else "Inductor needs a C++ compiler, and there is none (g++, clang++)"


def reset() -> None:
    """Forget all compiled code and all counters."""
    private("torch._dynamo.reset")()
    private("torch._dynamo.utils.counters").clear()


def config(**values: Any) -> AbstractContextManager[Any]:
    """Dynamo's settings, for the length of a block."""
    settings = private("torch._dynamo.config")
    for name in values:
        private(f"torch._dynamo.config.{name}")
    return settings.patch(**values)  # type: ignore[no-any-return]


def graph_breaks() -> dict[str, int]:
    """Reasons for which a graph ended early, with how often."""
    return dict(private("torch._dynamo.utils.counters")["graph_break"])


def explain(function: Any, *args: Any) -> Any:
    """Return Dynamo's treatment of a call."""
    return private("torch._dynamo.explain")(function)(*args)


def ddp_optimizer(cap: int, backend: Any) -> Any:
    """The splitter itself, as a backend."""
    return private("torch._dynamo.backends.distributed.DDPOptimizer")(cap, backend)
