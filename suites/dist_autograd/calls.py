"""The ways to have a function run, under one signature."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed.rpc as rpc

from ..rpc.agents import worker


def local(to: int, function: Any, *args: Any) -> Any:
    """Here, whatever the destination."""
    return function(*args)


def sync(to: int, function: Any, *args: Any) -> Any:
    """There, waiting."""
    return rpc.rpc_sync(worker(to), function, args=args)


def asynchronous(to: int, function: Any, *args: Any) -> Any:
    """There, through a future."""
    return rpc.rpc_async(worker(to), function, args=args).wait()


def by_reference(to: int, function: Any, *args: Any) -> Any:
    """There, through a reference."""
    return rpc.remote(worker(to), function, args=args).to_here()


every_remote_way = pytest.mark.parametrize("call", [sync, asynchronous, by_reference])
