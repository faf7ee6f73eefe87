"""Where this suite touches names that torch does not promise."""

from __future__ import annotations

from typing import Any

from ..private import find, has


def missing() -> str:
    """Why torch cannot shard here; empty when it can."""
    import torch.distributed as dist

    if not dist.is_available():
        return "this torch was built without torch.distributed"
    return "" if has("torch.distributed.fsdp.fully_shard") else "this torch has no FSDP (fully_shard)"


def local_part(parameter: Any) -> Any:
    """This rank's shard of a DTensor."""
    dtensor = find("torch.distributed.tensor.DTensor")
    assert isinstance(parameter, dtensor), f"{type(parameter).__name__} is not sharded"
    return parameter.to_local()
