"""The circuit breaker for broken devices: from suspicious failures to a preflight to quarantine. Pure.

    CLOSED --(two tests fail in a way that looks like the device)--> PROVING
    PROVING --(the preflight finds nothing)--> CLOSED, and twice as slow to suspect again
    PROVING --(some devices are broken, enough are left)--> CLOSED, without those
    PROVING --(too few are left)--> OPEN, for good

The controller passes each result and follows the decision. A failure on devices that pass the preflight counts as
the test's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from disttest.model import Frozen, Outcome, RankEnd, RankRecord, Slot, TestResult

_SIGNS = (
    # Messages of CUDA, NCCL, NVML and the kernel for failures of a device rather than of a program. The driver's own
    # codes are in https://docs.nvidia.com/deploy/xid-errors/index.html.
    (r"uncorrectable ECC|cudaErrorECC|ECC error", "an uncorrectable memory error"),
    (r"GPU is lost|fell off the bus|NVML_ERROR_GPU_IS_LOST|cudaErrorDevicesUnavailable", "a lost GPU"),
    (r"CUDA-capable device\(s\) is/are busy or unavailable", "a GPU that is busy or unavailable"),
    (r"no CUDA-capable device is detected|No CUDA GPUs are available", "no visible GPU"),
    (r"GPU \S+ is missing: torch sees", "a missing GPU"),
    (r"CUDA error: (unknown error|unspecified launch failure|initialization error)", "a CUDA error"),
    (r"CUDA error: (an illegal instruction|hardware stack error|the launch timed out)", "a CUDA error"),
    (r"CUDA error: (an illegal memory access|misaligned address|invalid device ordinal)", "a CUDA error"),
    (r"cudaError(Unknown|LaunchFailure|IllegalAddress|HardwareStackError|SystemDriver)", "a CUDA error"),
    (r"CUDA driver (error|initialization failed)", "a CUDA error"),
    (r"CUDNN_STATUS_(INTERNAL_ERROR|EXECUTION_FAILED)", "a cuDNN error"),
    (r"CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)", "a cuBLAS error"),
    (r"unhandled system error|ncclSystemError|unhandled cuda error|ncclUnhandledCudaError", "an NCCL error"),
    (r"ncclInternalError|NCCL.*internal error", "an NCCL error"),
    (r"Failed to initialize NVML|Driver/library version mismatch|NVMLError", "a lost driver"),
    (r"\bXid\b", "a driver error (Xid)"),
)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), name) for pattern, name in _SIGNS)

_DRIVER_SIGNALS = {7: "SIGBUS", 9: "SIGKILL"}
"""Signals by which the driver ends a process whose GPU it had to reset. A test does not cause them itself."""

FIRST_THRESHOLD = 2


class BreakerState(StrEnum):
    """The state of the breaker."""

    CLOSED = "closed"
    PROVING = "proving"
    OPEN = "open"


_LEGAL = {
    (BreakerState.CLOSED, BreakerState.PROVING),
    (BreakerState.PROVING, BreakerState.CLOSED),
    (BreakerState.PROVING, BreakerState.OPEN),
}


# Device errors are proved before they count: a test can also ruin its own CUDA context on a healthy GPU.
# docs/decisions/0028-failures-suspect-the-machine.md
class Prove(Frozen):
    """Decision: repeat the preflight on these slots once nothing runs there; start nothing on them meanwhile."""

    slots: tuple[Slot, ...]
    reason: str


class QuarantineDecision(Frozen):
    """Decision: stop using these slots, and rerun their tests on the others."""

    broken: dict[str, str]
    """Slot name, mapped to the reason."""
    again: tuple[str, ...]
    """Node ids of tests whose failure the device caused."""


class GiveUp(Frozen):
    """Decision: too few slots are left, so the rest of the tests is not run."""

    broken: dict[str, str]
    again: tuple[str, ...]
    """Node ids of tests whose failure the device caused. They become infrastructure errors."""
    reason: str
    """Message of the tests that are not run: ``not run: GPU 3 (uuid): …``."""


class Cleared(Frozen):
    """Decision: the devices are healthy, so the failures were the tests' own."""


def find_device_sign(result: TestResult) -> str:
    """Return the sign of a device fault in a failure; empty if there is none."""
    # Only ranks that failed on their own count. A rank that disttest killed, or that waited for another one, proves
    # nothing.
    if not result.outcome.is_bad:
        return ""
    signs = (sign for rank in result.ranks for sign in (_sign_of(rank),) if sign)
    return next(signs, "") or _sign_in(f"{result.message}\n{result.details}")


def _sign_of(rank: RankRecord) -> str:
    # disttest has killed it, so its last message says nothing about the device.
    if rank.end is RankEnd.KILLED:
        return ""
    if rank.end is RankEnd.SIGNALLED and rank.signal in _DRIVER_SIGNALS:
        return f"rank {rank.rank} was ended by {_DRIVER_SIGNALS[rank.signal]}"
    if rank.outcome in (Outcome.PASSED, Outcome.SKIPPED, Outcome.XFAILED):
        return ""
    return _sign_in(f"{rank.message}\n{rank.details}")


def _sign_in(text: str) -> str:
    return next((name for pattern, name in _PATTERNS if pattern.search(text)), "")


class Breaker:
    """The state machine of a run. At least ``narrowest`` slots must be left for the run to make sense."""

    def __init__(self, slots: Iterable[Slot], *, narrowest: int = 1) -> None:
        self.state = BreakerState.CLOSED
        self._slots = {slot.name: slot for slot in slots}
        self.narrowest = narrowest
        self._threshold = FIRST_THRESHOLD
        self._suspects: dict[str, tuple[str, tuple[str, ...]]] = {}

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that may be used."""
        return tuple(self._slots.values())

    def observe(self, result: TestResult, slots: Iterable[Slot]) -> Prove | None:
        """Process a result; return a decision if the preflight should be repeated now.

        Args:
            result: result of one attempt of one test.
            slots: slots that it ran on. Failures on CPU slots are never a device's fault.
        """
        names = tuple(slot.name for slot in slots if slot.device != "cpu" and slot.name in self._slots)
        sign = find_device_sign(result)
        if self.state is BreakerState.OPEN or not names or not sign:
            return None
        # By test, so that the retries of one test do not count as several tests.
        self._suspects.setdefault(result.nodeid, (sign, names))
        # During a proof, further suspects wait for its result.
        if self.state is BreakerState.PROVING or len(self._suspects) < self._threshold:
            return None
        self._become(BreakerState.PROVING)
        return Prove(slots=self._suspected(), reason=self._reason())

    def suspects(self, nodeid: str) -> bool:
        """Return whether it is undecided if the device caused the failure of a test."""
        return nodeid in self._suspects

    def lost(self, broken: Mapping[str, str]) -> QuarantineDecision | GiveUp | Cleared:
        """Decide on slots that the driver itself reports as broken. That needs no preflight."""
        others = {
            nodeid: suspect for nodeid, suspect in self._suspects.items() if not set(suspect[1]) & set(broken)
        }
        self._become(BreakerState.PROVING)
        decision = self.proved(broken)
        if isinstance(decision, QuarantineDecision):
            self._suspects = others  # the report says nothing about other slots
        return decision

    def proved(self, broken: Mapping[str, str]) -> QuarantineDecision | GiveUp | Cleared:
        """Decide on the finding of the preflight (slot name, mapped to its fault).

        Raises:
            AssertionError: no preflight was requested.
        """
        assert self.state is BreakerState.PROVING, f"a proof came while the breaker was {self.state}"
        found = {name: reason for name, reason in broken.items() if name in self._slots}
        accused = tuple(nodeid for nodeid, (_, names) in self._suspects.items() if set(names) & set(found))
        self._suspects.clear()
        if not found:
            # A test that breaks CUDA's context on healthy GPUs would otherwise cost a preflight each time.
            self._threshold *= 2
            self._become(BreakerState.CLOSED)
            return Cleared()
        for name in found:
            del self._slots[name]
        if len(self._slots) < self.narrowest:
            self._become(BreakerState.OPEN)
            return GiveUp(broken=found, again=accused, reason=self._last_words(found))
        self._become(BreakerState.CLOSED)
        return QuarantineDecision(broken=found, again=accused)

    def _become(self, state: BreakerState) -> None:
        assert (self.state, state) in _LEGAL, f"{self.state} -> {state}"
        self.state = state

    def _suspected(self) -> tuple[Slot, ...]:
        names = {name for _, slots in self._suspects.values() for name in slots}
        return tuple(slot for slot in self.slots if slot.name in names)

    def _reason(self) -> str:
        signs = [f"{nodeid}: {sign}" for nodeid, (sign, _) in self._suspects.items()]
        return f"{len(signs)} tests failed in a way that looks like the device: " + "; ".join(signs)

    def _last_words(self, found: Mapping[str, str]) -> str:
        left = f"{len(self._slots)} of {self.narrowest} needed devices are left"
        return f"not run: {'; '.join(found.values())} ({left})"
