"""What a rank on a GPU owes the next test: its errors found, its memory returned. Not loaded in ranks on the CPU.

CUDA reports errors late: a kernel that fails makes some later call raise, in whatever test that happens to be. So each
test ends by waiting for the device, as the last thing of its tear-down: what fails there is an error of this test,
and what hangs there runs into its time limit, with stacks and collectives as in any other hang.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

_cuda: Any = torch.cuda  # has no annotations
# A rank's CUDA context and NCCL's buffers, which torch's limit does not cover.
_CONTEXT_BYTES = 1 << 29
# Bytes: less than what torch rounds large blocks to is kept by caches of all kinds.
_WORTH_NAMING = 1 << 20


class GpuCare:
    """The pytest plugin of a rank on a GPU."""

    def __init__(self) -> None:
        self._failed = False
        self._before = self._at_call = 0

    def share_memory(self, ranks: int) -> None:
        """Limit this rank to its share of the memory of a GPU on which several ranks compute.

        The first rank to need more than its share then fails by itself. Without the limit, whichever rank asks last
        fails, which need not be the one that takes too much.
        """
        if ranks > 1:
            total = _cuda.get_device_properties(_cuda.current_device()).total_memory
            _cuda.set_per_process_memory_fraction(max(0.0, 1 / ranks - _CONTEXT_BYTES / total))

    def begin(self) -> None:
        """A test starts."""
        self._failed = False
        self._before = self._at_call = _in_use()

    def note_call(self) -> None:
        """Its set-up is over."""
        self._at_call = _in_use()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase is over: after a failure the world ends, and the device may never answer."""
        self._failed |= bool(report.failed)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        """Wait for the device after all that the test tears down, and return cached memory to it."""
        result: Any = yield
        if not self._failed:
            wait_for_gpus()
        return result  # type: ignore[no-any-return]

    def leaks(self, *, shared_fixtures: bool) -> tuple[str, ...]:
        """Name memory that is in use and was not before. Asks torch's own books, not the device.

        Args:
            shared_fixtures: fixtures of a wider scope than the test are still set up; what they hold is theirs.
        """
        if self._failed or not _cuda.is_initialized():
            return ()
        before = max(self._before, self._at_call) if shared_fixtures else self._before
        more = _in_use() - before
        for release in (_clear_workspaces, gc.collect):  # the cheaper one first
            if more > _WORTH_NAMING:
                release()
                more = _in_use() - before
        if more <= _WORTH_NAMING:
            return ()
        return (
            f"memory of cuda:{_cuda.current_device()}: {more / (1 << 20):.1f} MiB more in use than before",
        )


def _in_use() -> int:
    """Bytes of the rank's device that tensors occupy."""
    return _cuda.memory_allocated() if _cuda.is_initialized() else 0


def _clear_workspaces() -> None:
    """Let go of what libraries keep for each stream."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # noqa: SLF001
    if clear is not None:
        clear()


def wait_for_gpus() -> None:
    """Wait for all that this process has started on devices, whichever is the current one; fail with what they report."""
    if not _cuda.is_initialized():
        return
    try:
        for device in range(_cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(device):  # type: ignore[attr-defined]  # noqa: SLF001
                _cuda.synchronize(device)
        _cuda.empty_cache()
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        pytest.fail(
            f"the GPU reported an error after the test: {first}. Something that the test has started and not waited "
            "for failed; CUDA_LAUNCH_BLOCKING=1 shows where. A process cannot use its GPU after that: the world ends",
            pytrace=False,
        )
