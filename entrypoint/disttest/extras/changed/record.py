"""The record: parts of the project that each test used, in one file that is replaced as a whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from disttest.clock import monotonic, sleep
from disttest.errors import UsageError
from disttest.extras.changed.limits import LOCK_S, MISSES, POLL_S
from disttest.extras.changed.sources import Unit
from disttest.model import UNREADABLE, Frozen, Outcome
from disttest.reports.write import write_whole

VERSION = 2


class RecordedTest(Frozen):
    """The last run of a test."""

    units: tuple[int, ...]
    """Parts that it used, as places in ``Record.units``."""
    outcome: Outcome
    """``passed`` (or failed as expected), ``failed``, ``skipped``, or ``not_run`` if the run ended before the test did."""
    environment: int
    """Place in ``Record.environments``."""
    duration_s: float = 0.0
    gpus: int = 0
    """GPUs that it occupied."""


def outcome_of(reported: Collection[tuple[str, Outcome]]) -> Outcome:
    """Return the outcome of a test from those of its phases. A phase has several if the test has subtests."""
    for outcome in (Outcome.FAILED, Outcome.SKIPPED):
        if any(each is outcome for _, each in reported):
            return outcome
    # pytest.exit, a signal or --deadline ends a run in the middle of a test, after the report of its set-up.
    return Outcome.PASSED if {"call", "teardown"} <= {phase for phase, _ in reported} else Outcome.NOT_RUN


class Miss(Frozen):
    """A canary that failed: a test that the selection had left out."""

    test: str
    base: str
    """The commit that the files were compared with."""


class Record(Frozen, omit_defaults=False):  # the version is always written
    """The content of the file."""

    version: int = VERSION
    project: str = ""
    """Its repository, such as ``github.com/org/project``; empty if unknown."""
    units: tuple[tuple[str, str, str], ...] = ()
    """File, part and digest."""
    environments: tuple[dict[str, str], ...] = ()
    tests: dict[str, RecordedTest] = msgspec.field(default_factory=dict)
    misses: tuple[Miss, ...] = ()


class Ran(Frozen):
    """A test of this run, for the record."""

    units: Mapping[Unit, str]
    """Part -> digest."""
    outcome: Outcome
    duration_s: float
    gpus: int


class _Head(Frozen):
    version: int = 0


class _UnusableError(Exception):
    """There is no record that can be used; the text says why."""


class _NewerError(_UnusableError):
    """The record is of a newer version."""


def read_record(path: Path, project: str) -> tuple[Record, str]:
    """Return the record, and why there is none that can be used; empty if there is one."""
    try:
        return _usable(path, project), ""
    except _UnusableError as error:
        return Record(project=project), str(error)


def _usable(path: Path, project: str) -> Record:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise _UnusableError(
            f"there is no record {path.name} yet (a run writes it; keep it out of git)"
        ) from error
    except OSError as error:
        raise _UnusableError(f"the record {path} cannot be read: {error.strerror}") from error
    try:
        # The version first: the rest of a file of another version may not decode.
        version = msgspec.json.decode(data, type=_Head).version
        if version > VERSION:
            raise _NewerError(f"the record {path} is of version {version}, and this disttest reads {VERSION}")
        if version < VERSION:
            raise _UnusableError(f"the record {path} is of an earlier version of disttest")
        record = msgspec.json.decode(data, type=Record)
        # Python accepts a negative place and takes another part. So a damaged file must not pass unchecked.
        for test in record.tests.values():
            _check_places((test.environment,), record.environments)
            _check_places(test.units, record.units)
    except (*UNREADABLE, IndexError) as error:
        raise _UnusableError(f"the record {path} is damaged") from error
    # --coverage-record or a cache of CI may bring the file of another repository, in which equal names are
    # other files.
    if project and record.project not in ("", project):
        raise _UnusableError(f"the record {path} is of another repository")
    return record


def _check_places(places: Iterable[int], of: Sequence[object]) -> None:
    if not all(0 <= place < len(of) for place in places):
        raise IndexError


def update_record(path: Path, change: Callable[[Record], Record], project: str) -> None:
    """Change the file while no other process does. A record that cannot be used is replaced.

    Raises:
        UsageError: another process holds it for too long, it is of a newer version, or it cannot be written.
    """
    try:
        with _only_writer(path):
            try:
                record = _usable(path, project)
            # An older disttest must not destroy a record that a newer one can use.
            except _NewerError as error:
                raise UsageError(f"{error}; it is left as it is") from error
            except _UnusableError:
                record = Record(project=project)
            write_whole(path, msgspec.json.encode(change(record)).decode())
    except OSError as error:
        raise UsageError(f"the record {path} cannot be written: {error.strerror}") from error


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    # The folder is locked: it outlives the file, which each writer replaces.
    # flock(2), since the kernel releases it whenever its holder ends, also by SIGKILL.
    descriptor = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ends_s = monotonic() + LOCK_S
        while not _locks(descriptor):
            if monotonic() > ends_s:
                raise UsageError(f"another process has been writing the record {path} for {LOCK_S:g} s")
            sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def renamed(record: Record, names: Mapping[str, str]) -> Record:
    """Return the record under the present names of files: later runs may compare with a revision that has them already."""

    def present(test: str) -> str:
        file, separator, rest = test.partition("::")
        return f"{names.get(file, file)}{separator}{rest}"

    return msgspec.structs.replace(
        record,
        units=tuple((names.get(file, file), part, digest) for file, part, digest in record.units),
        tests={present(test): recorded for test, recorded in record.tests.items()},
    )


def with_run(
    record: Record, ran: Mapping[str, Ran], environment: dict[str, str], misses: Iterable[Miss]
) -> Record:
    """Return the record with the tests of a run; tests that did not run stay as they are."""
    places: dict[tuple[str, str, str], int] = {}
    environments: list[dict[str, str]] = []
    tests = {}

    def place(unit: tuple[str, str, str]) -> int:
        return places.setdefault(unit, len(places))

    def keep(found: dict[str, str]) -> int:
        if found not in environments:
            environments.append(found)
        return environments.index(found)

    # Numbered again: parts and environments that no test uses any more go.
    for name, test in record.tests.items():
        if name not in ran:
            tests[name] = msgspec.structs.replace(
                test,
                units=tuple(place(record.units[number]) for number in test.units),
                environment=keep(record.environments[test.environment]),
            )
    for name, new in ran.items():
        tests[name] = RecordedTest(
            units=tuple(sorted(place((*unit, digest)) for unit, digest in new.units.items())),
            outcome=new.outcome,
            environment=keep(environment),
            duration_s=new.duration_s,
            gpus=new.gpus,
        )
    return msgspec.structs.replace(
        record,
        units=tuple(places),
        environments=tuple(environments),
        tests=tests,
        misses=(*record.misses, *misses)[-MISSES:],
    )
