"""What a tool is: an object that is told of calls and waits. It knows nothing of how they are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

    from disttest.observe.records import Call, Group, StoreCall, Wait


class Tool:
    """Base of all tools: override what you want to be told of; the rest costs nothing.

    Callbacks run in the thread that calls, with the GIL, in the middle of torch. They must be quick, must not call
    collectives, and must not raise: an exception ends up in the test. What they call themselves is not observed.
    """

    def on_issue(self, call: Call) -> None:
        """A call is about to be handed to its backend."""

    def on_return(self, call: Call, work: dist.Work | None) -> None:
        """The backend has taken it.

        Args:
            call: as in :meth:`on_issue`.
            work: its handle; None where the call has none, or C++ holds it.
        """

    def on_wait(self, wait: Wait) -> None:
        """A thread begins to wait."""

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """It has stopped waiting.

        Args:
            wait: as in :meth:`on_wait`.
            error: what the wait raised.
        """

    def on_error(self, call: Call, error: BaseException) -> None:
        """The backend has refused a call, instead of :meth:`on_return`."""

    def on_group(self, group: Group, *, made: bool) -> None:
        """A group has been made, or destroyed."""

    def on_abort(self, group: Group) -> None:
        """A group has been aborted, which is not its destruction: torch still lists it."""

    def on_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation on tensors is about to be run; told only while a tool asks for them (``watching_operations``).

        Args:
            func: of ``torch.ops`` (views and in-place operations each by themselves, below autograd), or a method of a tensor
                or of a storage that reads or changes it past the dispatcher (``tolist``, ``numpy``, ``resize_``).
            args: as they are given to it.
            kwargs: likewise.
        """

    def take(self, call: Call, run: Callable[[], Any]) -> Any:
        """Run a call, or do something else in its place.

        Args:
            call: as in :meth:`on_issue`.
            run: hands it to the backend; what it returns is to be returned.
        """
        del call
        return run()

    def take_store(self, call: StoreCall, run: Callable[[], Any]) -> Any:
        """The same for a call of a store's method."""
        del call
        return run()


CALLBACKS = tuple(name for name in vars(Tool) if name.startswith(("on_", "take")))
