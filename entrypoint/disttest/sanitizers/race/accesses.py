"""What an operation does with each of its tensors, from its schema: nothing, reading or writing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch

_NO_BYTES = frozenset(
    (
        "_coalesced_",
        "_nnz",
        "_unsafe_view",
        "as_strided_",
        "dense_dim",
        "detach_",
        "dim",
        "empty_like",
        "full_like",
        "is_same_size",
        "is_set_to",
        "new_empty",
        "new_empty_strided",
        "new_full",
        "new_ones",
        "new_zeros",
        "numel",
        "ones_like",
        "rand_like",
        "randint_like",
        "randn_like",
        "record_stream",
        "rename_",
        "requires_grad_",
        "retain_grad",
        "set_",
        "size",
        "sparse_dim",
        "squeeze_",
        "storage_offset",
        "stride",
        "swapaxes_",
        "swapdims_",
        "sym_is_contiguous",
        "sym_numel",
        "sym_size",
        "sym_storage_offset",
        "sym_stride",
        "t_",
        "transpose_",
        "unsqueeze_",
        "zeros_like",
    )
)
"""Operations that look at a tensor's shape, or change that of the tensor alone; their schemas do not tell."""
_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d", "prim", "profiler"})
"""Of collectives, which are told as calls, and of what takes no tensors."""
HANDS_OUT = frozenset({"__array__", "__dlpack__", "numpy"})
"""Methods that give others the memory, who may read and write it as long as they like."""


class Access(NamedTuple):
    """One tensor of an operation."""

    tensor: Any
    writes: bool


@lru_cache(maxsize=8192)
def _plan(func: Any) -> tuple[tuple[str, bool], ...] | None:
    """Of each argument that may be a tensor its name and whether it is written; an empty name: not touched."""
    schema = getattr(func, "_schema", None)
    if schema is None or func.namespace in _NAMESPACES or func.__name__.partition(".")[0] in _NO_BYTES:
        return None
    return tuple(_of_argument(argument) for argument in schema.arguments)


def _of_argument(argument: Any) -> tuple[str, bool]:
    if "Tensor" not in str(argument.type):
        return "", False
    alias = argument.alias_info
    if alias is None:
        return argument.name, False
    return (argument.name, True) if alias.is_write else ("", False)


def accesses(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Access]:
    """The tensors that an operation reads or writes.

    Args:
        func: as :meth:`disttest.observe.Tool.on_op` has it.
        args: likewise.
        kwargs: likewise.
    """
    if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001
        yield from (Access(value, False) for value in args[:1] if isinstance(value, torch.Tensor))
        return
    plan = _plan(func)
    if plan is None:
        return
    for index, (name, writes) in enumerate(plan):
        if name:
            value = args[index] if index < len(args) else kwargs.get(name)
            yield from (Access(each, writes) for each in _tensors(value))


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        yield from (each for each in value if isinstance(each, torch.Tensor))
