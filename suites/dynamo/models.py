"""Small models whose splits are known, and backends that look at graphs."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close


class Toy(nn.Module):
    """Four linear layers; two of them are large."""

    def __init__(self, width: int = 1000, context: Any = nullcontext) -> None:
        super().__init__()
        sizes = (10, width, width, width, 5)
        layers = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        self.net = nn.Sequential(*layers)
        self._context: Any = context

    def forward(self, tensor: Tensor) -> Tensor:
        with self._context():
            return self.net(tensor)


class ScaledLinear(nn.Module):
    """A layer of the user's own; compares with a number, which becomes an input of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 512) / 20)

    def forward(self, tensor: Tensor) -> Tensor:
        moved = torch.mm(tensor, self.weight.t())
        return moved + torch.where(moved < 0.5, 0.3, 0.6)


class Custom(nn.Module):
    """Two inputs, which may be the same tensor, and a layer of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.seq = nn.Sequential(
            nn.Linear(512, 512), nn.ReLU(), ScaledLinear(), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()
        )

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.seq(one + other)


class Encoder(nn.Module):
    """Tokens in, loss and logits out: a language model as the compiler sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(1)]
        )
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits = self.head(hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def seeded(make: Any, *args: Any, **kwargs: Any) -> Any:
    """A model with the same values on every rank and every time."""
    torch.manual_seed(1337)
    return make(*args, **kwargs)


def toy_input(rows: int = 20) -> Tensor:
    """For ``Toy``."""
    return torch.randn(rows, 10, generator=torch.Generator().manual_seed(3))


def tokens(rank: int = 0) -> tuple[Tensor, Tensor]:
    """For ``Encoder``; different on each rank."""
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(50, (4, 16), generator=generator), torch.randint(50, (4, 16), generator=generator)


class FakeDDP(nn.Module):
    """Turns the splitter on as DDP does while its forward runs, and communicates nothing."""

    def __init__(self, module: nn.Module, bucket_cap_mb: int = 25) -> None:
        super().__init__()
        self.module = module
        self.bucket_bytes_cap = bucket_cap_mb * 1024 * 1024

    def forward(self, *args: Any) -> Any:
        with self._active():
            return self.module(*args)

    def _active(self) -> AbstractContextManager[None]:
        return _Active(self)


class _Active:
    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __enter__(self) -> None:
        DistributedDataParallel._active_ddp_module = self._module  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        DistributedDataParallel._active_ddp_module = None


class Graphs:
    """A backend that keeps the graphs it is given and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        self.graphs.append(graph)
        return graph

    def __len__(self) -> int:
        return len(self.graphs)

    def nodes(self, operation: str) -> list[torch.fx.Node]:
        """All nodes of one kind."""
        return [node for graph in self.graphs for node in graph.graph.nodes if node.op == operation]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """By plain name, whatever the model is wrapped in."""
    strip = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
    found = {}
    for name, parameter in model.named_parameters():
        for part in strip:
            name = name.replace(part, "")
        assert parameter.grad is not None, f"{name} has no gradient"
        found[name] = parameter.grad
    return found


def assert_trains_alike(
    eager: nn.Module, compiled: Any, owner: nn.Module, inputs: tuple[Tensor, ...]
) -> None:
    """Two steps forward and backward: same results, same gradients.

    Args:
        eager: the model that is right.
        compiled: the model that is called.
        owner: the module inside ``compiled`` whose parameters are looked at.
    """
    for _ in range(2):
        results = []
        for call, model in ((eager, eager), (compiled, owner)):
            model.zero_grad()
            output = call(*inputs)
            loss = output[0] if isinstance(output, tuple) else output.sum()
            loss.backward()
            results.append((output, gradients(model)))
        assert_close(results[1], results[0])
