"""Where this suite touches names that torch does not promise."""

from __future__ import annotations

from typing import Any

from ..private import private

SEND = "torch::distributed::autograd::SendRpcBackward"
RECEIVE = "torch::distributed::autograd::RecvRpcBackward"
LEAF = "torch::autograd::AccumulateGrad"


def _of_autograd(name: str) -> Any:
    return private(f"torch.distributed.autograd.{name}")


def current() -> Any:
    """The context of this thread."""
    return _of_autograd("_current_context")()


def retrieve(identity: int) -> Any:
    """Return this rank's records for a context of any rank.

    Raises:
        RuntimeError: nothing.
    """
    return _of_autograd("_retrieve_context")(identity)


def release(identity: int) -> None:
    """Forget a context here."""
    _of_autograd("_release_context")(identity)


def largest_identity() -> int:
    """The last id that this rank could give to a context."""
    return int(_of_autograd("_get_max_id")())


def sends(context: Any) -> list[Any]:
    """The functions that send gradients back, of one context."""
    return list(context._send_functions().values())


def receives(context: Any) -> list[Any]:
    """The functions that receive gradients, of one context."""
    return list(context._recv_functions().values())


def known_ranks(context: Any) -> set[int]:
    """The ranks that a context has to tell about its end."""
    return set(context._known_worker_ids())


def names(function: Any) -> list[str]:
    """The names of the functions that a function passes gradients to."""
    return [following.name() for following, _ in function.next_functions]
