"""Every error that disttest raises on purpose, with its exit code.

DisttestError
├── ReportError          3   a report could not be written
├── PluginError          3   a plugin failed, or does not fit
├── UsageError           4   the request cannot be understood or makes no sense
├── NotEnoughDevices     6   fewer GPUs than were asked for
├── InfrastructureError  7   the machine is broken, not a test
│   ├── ProtocolError    7   a child process sent a malformed message
│   └── JournalError     7   the journal cannot be written
├── EngineError          8   the container engine refused
├── SchedulerError       9   the scheduler of a cluster refused
└── SetupError          10   the script before the tests failed
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """Exit codes of the ``disttest`` command. 0 to 5 mean the same as in pytest; 128+n means signal n."""

    PASSED = 0
    FAILED = 1
    INTERRUPTED = 2
    INTERNAL = 3
    USAGE = 4
    NOTHING_COLLECTED = 5
    NOT_ENOUGH_DEVICES = 6
    INFRASTRUCTURE = 7
    ENGINE = 8
    SCHEDULER = 9
    SETUP = 10
    DEADLINE = 124


# pytest's own exit code counts only if pytest chose it: `os._exit(5)` in a module would otherwise read as "no tests
# collected".
MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.PASSED: "all tests passed, or were skipped or failed as expected",
    ExitCode.FAILED: "a test failed",
    ExitCode.INTERRUPTED: "interrupted, or a file could not be collected",
    ExitCode.INTERNAL: "pytest crashed, or a report could not be written",
    ExitCode.USAGE: "the request is not valid",
    ExitCode.NOTHING_COLLECTED: "there was no test",
    ExitCode.NOT_ENOUGH_DEVICES: "not enough GPUs, or a suite that cannot run here (`--strict`)",
    ExitCode.INFRASTRUCTURE: "infrastructure: no test is to blame",
    ExitCode.ENGINE: "the container engine refused",
    ExitCode.SCHEDULER: "the scheduler of a cluster refused",
    ExitCode.SETUP: "the script of `--setup` failed, and no test was run",
    ExitCode.DEADLINE: "the deadline of the run has passed",
}
"""The meaning of each exit code, for users."""


class DisttestError(Exception):
    """Base of all errors. The message says what happened, where, and what to do next."""

    exit_code = ExitCode.INTERNAL


class PluginError(DisttestError):
    """A plugin raised an exception or does not fit this version of disttest. The message names it."""

    @property
    def trace(self) -> str:
        """Traceback of the plugin's own exception, or of this error if there is none."""
        return "".join(traceback.format_exception(self.__cause__ or self))


class UsageError(DisttestError):
    """The request cannot be carried out."""

    exit_code = ExitCode.USAGE


class NotEnoughDevices(DisttestError):
    """Fewer devices are available than were requested by name."""

    exit_code = ExitCode.NOT_ENOUGH_DEVICES


class InfrastructureError(DisttestError):
    """Something other than a test is broken."""

    exit_code = ExitCode.INFRASTRUCTURE


class ProtocolError(InfrastructureError):
    """A message between two disttest processes was cut, unknown or malformed."""


class JournalError(InfrastructureError):
    """The journal can no longer be written. Results would be lost."""


class EngineError(DisttestError):
    """The container engine is missing or refused."""

    exit_code = ExitCode.ENGINE


class SchedulerError(DisttestError):
    # Its own exit code: the remedy differs from that of a container engine that refuses.
    """The scheduler of a cluster is missing or refused."""

    exit_code = ExitCode.SCHEDULER


class SetupError(DisttestError):
    """The setup script of the user failed."""

    # Its own exit code: neither a test nor a machine is to blame.
    exit_code = ExitCode.SETUP

    def __init__(self, what: str, tail: Iterable[str]) -> None:
        """Compose the message from a description and the last lines of the script's output."""
        super().__init__("\n".join([what, *(f"  {line}" for line in tail)]))


class ReportError(DisttestError):
    """One or more reports could not be written. All others were."""

    exit_code = ExitCode.INTERNAL

    def __init__(self, failed: Sequence[str], *, written: Sequence[Path] = ()) -> None:
        """Name the reports that failed with their reasons, and keep the paths of those that were ``written``."""
        super().__init__(
            f"could not write {'; '.join(failed)}. `disttest report DIR` writes them again from the journal."
        )
        self.failed = tuple(failed)
        self.written = tuple(written)
