"""Dense and sparse tensors for the same tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

Maker = Callable[..., Tensor]


def dense(*, grad: bool = True, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """A (3, 3) tensor; different seeds, different values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(3, 3, dtype=dtype, generator=generator).requires_grad_(grad)


def sparse(*, grad: bool = True, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """A (3, 3) sparse tensor with three entries."""
    places = torch.tensor([[0, 1, 1], [2, 0, 2]])
    values = torch.tensor([3.2, 4.1, 5.3], dtype=dtype) + seed
    return torch.sparse_coo_tensor(places, values, (3, 3)).coalesce().requires_grad_(grad)


def total(tensor: Tensor) -> Tensor:
    """The sum, a scalar with a gradient, of either kind."""
    return torch.sparse.sum(tensor) if tensor.is_sparse else tensor.sum()


both = pytest.mark.parametrize("make", [dense, sparse])
"""Run the test with either kind."""


def assert_same(actual: Any, expected: Any, **kwargs: Any) -> None:
    """Equal values, and equally sparse."""
    assert actual.is_sparse == expected.is_sparse, f"sparse is {actual.is_sparse}, not {expected.is_sparse}"
    assert_close(*(t.to_dense() if t.is_sparse else t for t in (actual, expected)), **kwargs)


def local_gradients(loss: Tensor | Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients by plain autograd, leaving ``.grad`` alone."""
    roots = [loss] if isinstance(loss, Tensor) else list(loss)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad(roots, wanted, allow_unused=True))
    return [next(found) if leaf.requires_grad else None for leaf in leaves]


def assert_gradients(context: int, leaves: Sequence[Tensor], expected: Sequence[Tensor | None]) -> None:
    """The context holds exactly these gradients here."""
    import torch.distributed.autograd as dist_autograd

    found = dist_autograd.get_gradients(context)
    for leaf, gradient in zip(leaves, expected, strict=True):
        if gradient is None:
            assert leaf not in found
        else:
            assert leaf in found, "a gradient is missing"
            assert_same(found[leaf], gradient)
    assert len(found) == sum(gradient is not None for gradient in expected)
    assert all(leaf.grad is None for leaf in leaves), "gradients belong to the context and not to .grad"
