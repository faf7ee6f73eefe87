"""Accesses of an operation to each of its tensors, from its schema: none, read or write."""

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
"""Operations that read only the shape of a tensor, or change only that; their schemas do not show it."""
_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d", "prim", "profiler"})
"""Namespaces of collectives, which are observed as calls, and of operations without tensors."""
_COPYING = frozenset({"all_reduce", "all_reduce_coalesced", "broadcast"})
"""Functional collectives that copy their input first; the call uses the copy."""
HANDS_OUT = frozenset({"__array__", "__dlpack__", "numpy"})
"""Methods that hand out the memory, which may then be read and written at any time."""


class Access(NamedTuple):
    """Access to one tensor of an operation."""

    tensor: Any
    writes: bool


class _Argument(NamedTuple):
    """Position of an argument with one or more tensors that the operation accesses."""

    place: int
    name: str
    writes: bool


@lru_cache(maxsize=8192)
def _plan(func: Any) -> tuple[_Argument, ...]:
    # `add_.Tensor(Tensor(a!) self, Tensor other, …) -> Tensor(a!)` writes self and reads other.
    # `view(Tensor(a) self, …) -> Tensor(a)` reads no byte.
    schema = getattr(func, "_schema", None)
    name = func.__name__.partition(".")[0]
    if schema is None or name in _NO_BYTES:
        return ()
    if func.namespace in _NAMESPACES and not (func.namespace == "_c10d_functional" and name in _COPYING):
        return ()
    touched = (_touched_argument(place, argument) for place, argument in enumerate(schema.arguments))
    return tuple(each for each in touched if each is not None)


def _touched_argument(place: int, argument: Any) -> _Argument | None:
    """Return None if the argument is not a tensor, or only a view of it is made."""
    # Tensor, Optional[Tensor], List[Tensor], List[Optional[Tensor]].
    if "Tensor" not in str(argument.type):
        return None
    alias = argument.alias_info
    if alias is not None and not alias.is_write:
        return None
    return _Argument(place, argument.name, alias is not None)


def accesses(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Access]:
    """Yield the tensors that an operation reads or writes.

    Args:
        func: operation, as in :meth:`disttest.observe.Tool.on_op`.
        args: positional arguments, likewise.
        kwargs: keyword arguments, likewise.
    """
    # Dispatch modes receive this class, which has no public name (torch 2.9 to 2.15).
    if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001
        # Methods that read past the dispatcher, such as tolist, have no schema. Their tensor is the first
        # argument.
        yield from (Access(value, False) for value in args[:1] if isinstance(value, torch.Tensor))
        return
    for place, name, writes in _plan(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        if isinstance(value, torch.Tensor):
            yield Access(value, writes)
        # cat and _foreach_add_ take lists, whose tensors are all accessed alike.
        elif isinstance(value, list | tuple):
            yield from (Access(each, writes) for each in value if isinstance(each, torch.Tensor))
