"""Waits for a GPU, and the calls that it waits for: over NCCL the host itself waits for none of them.

Such a call returns when it is in a queue. The current stream waits for it, immediately or from ``wait()`` of its
handle on. A thread waits where it needs a result of that stream. These functions are replaced when the first such
call is observed, and not if all calls are on the CPU.
"""

from __future__ import annotations

# The calls are those that this rank has observed. The driver would have to be asked by a process that hangs.
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from disttest.observe import hub
from disttest.observe.records import Call, Wait, WaitKind
from disttest.observe.replacing import Original, Replacements, keep_from_dynamo

# The dispatcher's key sets have no public Python interface (torch 2.9 to 2.15).
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)  # noqa: SLF001
_MOST_CALLS = 10_000
"""Number of calls without a waiting stream that are kept. The oldest are dropped."""

Stream = tuple[torch.device, int]
"""Device, and torch's number of the stream."""


class Queues(Replacements):
    """The calls that streams of this process wait for, and the functions where threads wait for streams."""

    def __init__(self) -> None:
        super().__init__()
        self._loose: dict[int, tuple[Call, torch.device]] = {}
        """Calls that no stream is known to wait for, by number."""
        self._last: defaultdict[torch.device, dict[str, Call]] = defaultdict(dict)
        """The last call of each group. A device-wide synchronisation waits for it."""
        self._behind: defaultdict[Stream, dict[str, Call]] = defaultdict(dict)
        """The last call of each group that a stream waits for."""
        self._library: Any = None

    def remove(self) -> None:
        """Restore the replaced functions."""
        super().remove()
        self._library = None

    @property
    def are_used(self) -> bool:
        """Whether a queued call was observed."""
        return bool(self._last)

    def note_issued(self, call: Call, device: torch.device) -> None:
        """Record a queued call.

        Args:
            call: the call, without its tensors.
            device: device of its tensors.
        """
        if not self._last:
            self._try_to_replace(device)
        # `cuda` and `cuda:0` are different keys, and may be the same device.
        device = torch.device(device.type, _index(device))
        self._last[device][call.group.name] = call
        self._loose[call.n] = call, device
        # torch has made the current stream wait for it within the call.
        if not call.is_async:
            self._note_joined(call)
        elif len(self._loose) > _MOST_CALLS:
            del self._loose[next(iter(self._loose))]

    def last_before(self, device: torch.device) -> tuple[str, int] | None:
        """Return group and number of the last collective that a call in a device's current stream must wait for."""
        if not self._last:
            return None
        queued = self._behind.get(_current(device), {}).values()
        # A wait for a call that C++ has issued is inferred, which is too uncertain for conclusions.
        sure = [call for call in queued if not call.is_p2p and (call.is_functional or not call.by_cpp)]
        last = max(sure, key=lambda call: call.n, default=None)
        return None if last is None else (last.group.name, last.seq)

    def note_done(self, wait: Wait) -> None:
        """Record that a thread has waited."""
        # If it was for calls of a GPU, the current stream waits for them from now on.
        if wait.call is not None:
            self._note_joined(wait.call)
        elif wait.kind is WaitKind.BACKWARD:
            # DDP ends its backward pass by waiting for the calls that C++ has issued meanwhile.
            for call, _ in list(self._loose.values()):
                if call.by_cpp and not call.is_functional:
                    self._note_joined(call)

    def forget(self, group: str) -> None:
        """Drop a destroyed group. Another one may get its name and count from the start."""
        for last in (*self._last.values(), *self._behind.values()):
            last.pop(group, None)
        for call, _ in list(self._loose.values()):
            if call.group.name == group:
                del self._loose[call.n]

    def _note_joined(self, call: Call) -> None:
        queued = self._loose.pop(call.n, None)
        if queued is not None:
            self._behind[_current(queued[1])][call.group.name] = call

    # --- functions in which threads wait

    def _try_to_replace(self, device: torch.device) -> None:
        try:
            self._replace(torch.get_device_module(device))
        except (AttributeError, RuntimeError) as error:  # the user's call continues
            hub.note_gap(f"waits for {device.type}: {type(error).__name__}: {error}")

    def _replace(self, module: Any) -> None:
        # The object below torch.library.Library, as in `kernels.py`; `item()` has no public operation (torch 2.9 to
        # 2.15).
        self._library = torch._C._dispatch_library("IMPL", "aten", "", __file__, 0)  # noqa: SLF001
        item = self._item(torch.ops.aten._local_scalar_dense.default.redispatch)  # noqa: SLF001
        keep_from_dynamo(item)
        self._library.impl("_local_scalar_dense", "BackendSelect", item, True)
        for name in ("cpu", "to", "tolist"):
            self.replace(torch.Tensor, name, self._copying)
        self.replace(module, "synchronize", self._synchronizing)
        self.replace(torch.accelerator, "synchronize", self._synchronizing)
        self.replace(module.Stream, "synchronize", self._stream_synchronizing)

    def _item(self, redispatch: Callable[..., Any]) -> Callable[..., Any]:
        """Return the kernel through which every read of one number goes: ``item()``, ``bool()``, ``assert_close``."""

        def item(keys: Any, tensor: Any) -> Any:
            __tracebackhide__ = True
            if not isinstance(tensor, torch.Tensor):
                return tensor  # torch passes the number itself if it made the tensor from it
            run = partial(redispatch, keys & _BELOW, tensor)
            if hub.is_idle() or tensor.device.type in ("cpu", "meta"):
                return run()
            return self._wait(self._behind, _current(tensor.device), run)

        return item

    def _copying(self, original: Original) -> Original:
        """Wrap a method of tensors that may copy to the host. Copies to other devices only need their stream."""
        # `copy_` is not among them: torch passes Python numbers to a kernel in the place of tensors that it made from
        # them.

        def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if hub.is_idle() or tensor.device.type in ("cpu", "meta") or not _to_host(original, args, kwargs):
                return original(tensor, *args, **kwargs)
            run = partial(original, tensor, *args, **kwargs)
            return self._wait(self._behind, _current(tensor.device), run)

        return copy

    def _synchronizing(self, original: Original) -> Original:
        def synchronize(device: Any = None) -> None:
            __tracebackhide__ = True
            # There is an entry: the first queued call has replaced this function.
            whole = torch.device(next(iter(self._last)).type, _index(device))
            run = partial(original, device)
            if hub.is_idle():
                run()
            else:
                self._wait(self._last, whole, run)
                for stream in [each for each in self._behind if each[0] == whole]:
                    del self._behind[stream]

        return synchronize

    def _stream_synchronizing(self, original: Original) -> Original:
        def synchronize(stream: torch.Stream) -> None:
            __tracebackhide__ = True
            run = partial(original, stream)
            if hub.is_idle():
                run()
            else:
                self._wait(self._behind, (stream.device, stream.stream_id), run)

        return synchronize

    def _wait(self, queues: defaultdict[Any, dict[str, Call]], queue: Any, run: Callable[[], Any]) -> Any:
        """Wait for all calls of a queue, which is empty afterwards."""
        __tracebackhide__ = True
        calls = tuple(sorted(queues[queue].values(), key=lambda call: call.n)) if queue in queues else ()
        if not calls:
            return run()
        with hub.waiting(WaitKind.DEVICE, calls=calls):
            result = run()
        for call in calls:
            # Another thread may have queued a newer call of the group meanwhile.
            if queues[queue].get(call.group.name) is call:
                del queues[queue][call.group.name]
        return result


def _current(device: torch.device) -> Stream:
    stream = torch.accelerator.current_stream(device)
    return stream.device, stream.stream_id


def _index(device: Any) -> int:
    """Return the index of a device given as a number, a name, or None for the current one."""
    if isinstance(device, int):
        return device
    index = torch.device(device).index if device is not None else None
    return torch.accelerator.current_device_index() if index is None else index


def _to_host(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a copy is one to the host that its caller waits for."""
    if original.__name__ != "to":
        return True
    values = (*args, *kwargs.values())
    target = next((each for each in values if isinstance(each, (str, torch.device, torch.Tensor))), None)
    device = getattr(target, "device", target)
    # `to(device, dtype, non_blocking, copy)` takes both as positional arguments, too.
    unawaited = next((each for each in args if isinstance(each, bool)), kwargs.get("non_blocking"))
    return str(device).startswith("cpu") and not unawaited
