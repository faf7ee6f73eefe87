"""Clean-up of a rank on a GPU: find late errors, return memory. Not imported in ranks on the CPU.

CUDA reports errors late: a failed kernel makes some later call raise, in any test. Each test therefore ends by waiting
for the device, as the last step of its tear-down. An error there belongs to this test; a hang there runs into its time
limit, with stacks and collectives as in any other hang. A separate limit for this step would be a second clock.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

# torch.cuda has no annotations.
_cuda: Any = torch.cuda
# Bytes of a rank's CUDA context and NCCL's buffers, which torch's limit does not cover.
_CONTEXT_BYTES = 1 << 29
# Bytes; caches of all kinds keep less than the size to which torch rounds large blocks.
_WORTH_NAMING = 1 << 20


class GpuState:
    """The pytest plugin of a rank on a GPU.

    Args:
        ranks: number of ranks on this GPU.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._failed = False
        self._before = self._at_call = 0

    def share_memory(self) -> None:
        """Limit this rank to its share of the memory of a GPU that several ranks share.

        The first rank that exceeds its share then fails. Without the limit, the rank that allocates last fails, which
        may be innocent.
        """
        if self._ranks > 1:
            total = _cuda.get_device_properties(_cuda.current_device()).total_memory
            _cuda.set_per_process_memory_fraction(max(0.0, 1 / self._ranks - _CONTEXT_BYTES / total))

    def begin(self, config: pytest.Config) -> None:
        """Record the memory in use before a test."""
        # Not earlier: when a rank starts, it removes the hooks for reports from all plugins of pytest.
        if not config.pluginmanager.is_registered(self):
            config.pluginmanager.register(self, "disttest-gpu")
        self._failed = False
        self._before = self._at_call = _in_use()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        """Record the memory in use after set-up."""
        self._at_call = _in_use()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure: the world ends then, and the device may never answer."""
        self._failed |= bool(report.failed)

    # The outermost wrapper: what follows its `yield` runs after all other tear-down, fixtures included.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        """Wait for the device after all other tear-down, and release cached memory."""
        result: Any = yield
        if not self._failed:
            wait_for_gpus()
        return result  # type: ignore[no-any-return]

    def leaks(self, *, shared_fixtures: bool) -> tuple[str, ...]:
        """Name memory that is in use and was not before, by torch's allocator statistics.

        Args:
            shared_fixtures: whether fixtures of a wider scope are still set up; their memory is no leak.
        """
        if self._failed or not _cuda.is_initialized():
            return ()
        # A wider fixture that this test has set up keeps its memory for the next one.
        before = max(self._before, self._at_call) if shared_fixtures else self._before
        more = _in_use() - before
        # The cheaper one first: a collection of torch's objects takes up to 0.2 s. Most tests need none then.
        for release in (_clear_workspaces, gc.collect):
            if more > _WORTH_NAMING:
                release()
                more = _in_use() - before
        if more <= _WORTH_NAMING:
            return ()
        return (
            f"memory of cuda:{_cuda.current_device()}: {more / (1 << 20):.1f} MiB more in use than before",
        )


state: GpuState | None = None
"""The state of this rank; None in a process that is not a rank on a GPU."""


def start(ranks: int) -> None:
    """Watch the GPU of this rank, which this number of ranks share."""
    global state
    state = GpuState(ranks)


def _in_use() -> int:
    """Bytes of the rank's device that tensors occupy."""
    return _cuda.memory_allocated() if _cuda.is_initialized() else 0


def _clear_workspaces() -> None:
    """Free the workspaces that libraries keep for each stream."""
    # No public name (torch 2.9 to 2.15): https://github.com/pytorch/pytorch/issues/184084
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # noqa: SLF001
    if clear is not None:
        clear()


def wait_for_gpus() -> None:
    """Wait for all work that this process has started on any device; fail the test with any error."""
    if not _cuda.is_initialized():
        return
    try:
        # All devices: a test may have used others than that of its rank.
        for device in range(_cuda.device_count()):
            # Synchronizing a device without a context would create one there. No public name (torch 2.9 to 2.15).
            if torch._C._cuda_hasPrimaryContext(device):  # type: ignore[attr-defined]  # noqa: SLF001
                _cuda.synchronize(device)
        # Other processes cannot use memory that this one caches.
        _cuda.empty_cache()
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        pytest.fail(
            f"the GPU reported an error after the test: {first}. Work that the test started and did not wait for "
            "failed; CUDA_LAUNCH_BLOCKING=1 shows where. A process cannot use its GPU after that: the world ends",
            pytrace=False,
        )
