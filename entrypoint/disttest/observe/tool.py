"""The interface of tools: objects that are notified of calls and waits, independent of how these are observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

    from disttest.observe.records import Call, Group, StoreCall, Wait


class Tool:
    """Base of all tools. Override the callbacks that you need; the others cost nothing.

    Callbacks run in the calling thread, with the GIL, in the middle of torch. They must be fast, must not call
    collectives, and must not raise: an exception would fail the test. Their own calls are not observed.
    """

    def on_issue(self, call: Call) -> None:
        """A call is about to be passed to its backend."""

    def on_return(self, call: Call, work: dist.Work | None) -> None:
        """The backend has accepted a call.

        Args:
            call: as in :meth:`on_issue`.
            work: its handle; None if the call has none or C++ holds it.
        """

    def on_wait(self, wait: Wait) -> None:
        """A thread begins to wait."""

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """A thread has stopped waiting.

        Args:
            wait: as in :meth:`on_wait`.
            error: exception that the wait raised.
        """

    def on_error(self, call: Call, error: BaseException) -> None:
        """The backend has refused a call. This replaces :meth:`on_return`."""

    def on_group(self, group: Group, *, made: bool) -> None:
        """A group has been created or destroyed."""

    def on_abort(self, group: Group) -> None:
        """A group has been aborted. It is not destroyed: torch still lists it."""

    def on_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation on tensors is about to run. Only called while a tool requests it (``watching_operations``).

        Args:
            func: an operation of ``torch.ops`` (views and in-place operations separately, below autograd), or a method
                of a tensor or storage that bypasses the dispatcher (``tolist``, ``numpy``, ``resize_``).
            args: its positional arguments.
            kwargs: its keyword arguments.
        """

    def take(self, call: Call, run: Callable[[], Any]) -> Any:
        """Run a call, or do something different in its place.

        Args:
            call: as in :meth:`on_issue`.
            run: passes the call to the backend; return its result.
        """
        del call
        return run()

    def take_store(self, call: StoreCall, run: Callable[[], Any]) -> Any:
        """Run a call of a store's method, or do something different in its place; see :meth:`take`."""
        del call
        return run()


CALLBACKS = tuple(name for name in vars(Tool) if name.startswith(("on_", "take")))
