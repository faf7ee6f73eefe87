"""Find the results of shards in the directories of ``disttest merge``, and import their logs into the merged run.

Results may be cut or missing. They are artifacts of other machines, so their content is untrusted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from urllib.parse import quote

import msgspec

from disttest.errors import UsageError
from disttest.extras.shards.hooks import NAME
from disttest.extras.shards.shard_plan import Plan, ShardFacts, decode_plan
from disttest.model import UNREADABLE, Frozen, RankRecord
from disttest.results.events import (
    AnyEvent,
    CollectionFailed,
    Noted,
    RunFinished,
    RunStarted,
    ShardJoined,
    TestCollected,
    TestFinished,
    WorldEnded,
    WorldStarted,
)
from disttest.results.fold import Folding, RunResult
from disttest.results.journal import FILE_NAME, read_events
from disttest.safe_open import Tree, create_file, read_regular

RESULTS = "results.json"
PLAN = "plan.json"


class ShardSource(Frozen):
    """Results directory of one run."""

    directory: Path
    label: str
    """Name that is unique in a merge and safe for a folder: ``shard-2``, ``shard-2.2``, ``run-1``."""
    started: RunStarted | None
    """None if its event is lost."""

    @property
    def number(self) -> int | None:
        """Number of the shard; None if the run had no plan."""
        return self.started.shard if self.started else None

    @property
    def is_merged(self) -> bool:
        """Whether it is the result of an earlier merge."""
        return _is_merged(self.started)

    @property
    def vanished(self) -> tuple[str, ...]:
        """Node ids of planned tests that no longer exist."""
        data = self.started.invocation.data if self.started else {}
        try:
            return msgspec.convert(data.get(NAME, {}), ShardFacts).vanished
        except msgspec.ValidationError:  # untrusted
            return ()

    def events(self) -> Iterator[AnyEvent]:
        """Read the events of the run from its journal, or derive them from its ``results.json``."""
        return _events(self.directory)


def find_shards(directories: Sequence[Path]) -> tuple[ShardSource, ...]:
    """Find the results directories in and below the given ones, in the order of their shards and starts.

    Args:
        directories: results directories, or folders that contain some, such as downloaded artifacts. Results of an
            earlier merge are left out unless they are given themselves.

    Raises:
        UsageError: a directory does not exist.
    """
    found: dict[Path, None] = {}
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"there is no directory {directory}; give the results directories of the shards")
        found.update(dict.fromkeys(_results_below(directory.resolve())))
    # A folder of shards may also have the merge of an earlier attempt, whose tests would count twice.
    given = {directory.resolve() for directory in directories}
    firsts = ((_first(path), path) for path in found)
    started = sorted(
        ((first, path) for first, path in firsts if path in given or not _is_merged(first)), key=_order
    )
    seen: dict[str, int] = {}
    sources: list[ShardSource] = []
    for position, (first, path) in enumerate(started, 1):
        name = f"shard-{first.shard}" if first and first.shard is not None else f"run-{position}"
        seen[name] = seen.get(name, 0) + 1
        label = name if seen[name] == 1 else f"{name}.{seen[name]}"
        sources.append(ShardSource(directory=path, label=label, started=first))
    return tuple(sources)


def refuse_repeats(sources: Sequence[ShardSource]) -> None:
    """Refuse two results of one shard.

    Raises:
        UsageError: two sources have the same shard number.
    """
    by_number: dict[int, ShardSource] = {}
    for source in sources:
        if source.number is None:
            continue
        other = by_number.setdefault(source.number, source)
        if other is not source:
            raise UsageError(
                f"shard {source.number} has two results: {other.directory} and {source.directory}; "
                "pass --reruns if the later one is a rerun, or leave one out"
            )


def _results_below(directory: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(directory):
        if FILE_NAME in files or RESULTS in files:
            # The folders below are the logs of these results and the results of earlier runs.
            below.clear()
            yield Path(folder)
        else:
            below.sort()


def _is_merged(first: RunStarted | None) -> bool:
    return first is not None and first.argv[:2] == ("disttest", "merge")


def _first(directory: Path) -> RunStarted | None:
    """Return the start of a run, joined from the events of the supervisor and of the controller, as reports have it."""
    folding = Folding()
    for event in takewhile(lambda event: isinstance(event, RunStarted | Noted), _events(directory)):
        folding.handle(event)
    return folding.started


def _order(found: tuple[RunStarted | None, Path]) -> tuple[float, float, Path]:
    first, path = found
    number = first.shard if first else None
    return (float("inf") if number is None else number, first.at_s if first else float("inf"), path)


def _events(directory: Path) -> Iterator[AnyEvent]:
    if os.path.lexists(directory / FILE_NAME):
        return _journal_events(directory / FILE_NAME)
    try:
        run = msgspec.json.decode(read_regular(directory / RESULTS), type=RunResult)
    except (*UNREADABLE, OSError) as error:
        return iter([Noted(at_s=0.0, message=f"{directory / RESULTS} cannot be read: {error}")])
    return unfold(run)


def _journal_events(path: Path) -> Iterator[AnyEvent]:
    """Read the events of a journal. One that cannot be opened, or is a link, affects only its own shard."""
    try:
        yield from read_events(path)
    except UsageError as error:
        yield Noted(at_s=0.0, message=str(error))


def unfold(run: RunResult) -> Iterator[AnyEvent]:
    """Yield events that fold into this result."""
    started = RunStarted(
        at_s=run.started_at_s,
        run_id=run.run_id,
        argv=run.argv,
        root=run.root,
        hardware=run.hardware,
        slots=run.slots,
        disttest=run.disttest,
        plan_id=run.plan_id,
        shard=run.shard,
        invocation=run.invocation,
        cpu_slots=run.cpu_slots,
    )
    if run.called_at_s is not None:
        # A run has two of these events, of its supervisor and of its controller.
        yield msgspec.structs.replace(started, at_s=run.called_at_s)
    yield started
    for error in run.collection_errors:
        yield CollectionFailed(at_s=run.started_at_s, nodeid=error.nodeid, message=error.message)
    for world in run.worlds:
        yield WorldStarted(
            at_s=world.started_at_s, world_id=world.world_id, shape=world.shape, slots=world.slots, pid=0
        )
        if world.ended_at_s is not None:
            yield WorldEnded(at_s=world.ended_at_s, world_id=world.world_id, reason=world.reason)
    for test in run.tests:
        yield TestCollected(at_s=run.started_at_s, test=test.test)
        for attempt in test.attempts:
            yield TestFinished(at_s=attempt.started_at_s + attempt.duration_s, result=attempt)
    for shard in run.shards:
        yield ShardJoined(at_s=shard.ended_at_s, shard=shard)
    for note in run.notes:
        yield Noted(at_s=run.ended_at_s, message=note)
    yield RunFinished(at_s=run.ended_at_s, exit_code=run.exit_code, reason=run.reason)


def find_plan(directories: Iterable[Path]) -> Path | None:
    """Find the plan in or below the given directories; folders below a results directory are not searched."""
    for directory in directories:
        for folder, below, files in os.walk(directory):
            if PLAN in files and _is_regular(Path(folder) / PLAN):
                return Path(folder) / PLAN
            if FILE_NAME in files or RESULTS in files:
                below.clear()
            below.sort()
    return None


def find_copies(plan: Plan, sources: Iterable[ShardSource]) -> tuple[Plan, ...]:
    """Return the plan and its copies in the results of shards; masked ones come last."""
    found = {b"": plan}
    for source in sources:
        try:
            data = read_regular(source.directory / PLAN)
            # Most copies are equal, and a plan can have 100,000 tests.
            if (digest := hashlib.sha256(data).digest()) not in found:
                found[digest] = decode_plan(data)
        except (OSError, UsageError):
            continue
    shape = _shape(plan)
    copies = (copy for copy in found.values() if copy.plan_id == plan.plan_id and _shape(copy) == shape)
    return tuple(sorted(copies, key=lambda copy: copy.is_changed))


def _shape(plan: Plan) -> list[tuple[int, int]]:
    return [(shard.number, len(shard.tests)) for shard in plan.shards]


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


MOST_COPIED = 1 << 30
"""Largest log that is copied, in bytes; a sparse file can claim a terabyte."""


class ShardLogs:
    """Imports the logs of one shard into the merged directory."""

    def __init__(self, source: ShardSource, into: Path) -> None:
        self._tree = Tree(source.directory)
        # One flat folder for each shard: creating 200,000 folders takes longer than the rest of a large merge.
        self._folder = f"logs/{source.label}"
        (into / self._folder).mkdir(parents=True, exist_ok=True)
        self._target = os.open(into / self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.missing = 0

    def moved(self, record: RankRecord) -> RankRecord:
        """Return the record with its log linked into the merged directory."""
        if not record.log:
            return record
        parts = record.log.split("/")
        # quote also escapes `+`, so that two paths never become one name.
        name = "+".join(quote(part, safe="[]", errors="replace") for part in parts[parts[0] == "logs" :])
        if not self._import_log(record.log, name):
            self.missing += 1
            return msgspec.structs.replace(record, log="")
        return msgspec.structs.replace(record, log=f"{self._folder}/{name}")

    def _import_log(self, log: str, name: str) -> bool:
        # Only a regular file below the shard's own results directory is a log: artifacts are untrusted input.
        try:
            fd = self._tree.open(log)
        except OSError:
            return False
        try:
            return self._link(fd, name) or _copied(fd, name, self._target)
        finally:
            os.close(fd)

    def _link(self, fd: int, name: str) -> bool:
        try:
            # Linking through /proc links the file that was opened, even if another file has taken its name since.
            # Because of dst_dir_fd, Python calls linkat with AT_SYMLINK_FOLLOW; link(2) follows no link.
            os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=self._target)
        except FileExistsError:
            # A test may be reported twice, for example if a rank dies late. Both results name the same log.
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close both directories."""
        self._tree.close()
        os.close(self._target)


def _copied(fd: int, name: str, folder: int) -> bool:
    """Copy the log if it cannot be hard-linked: it is on another file system, or on one without links."""
    if os.fstat(fd).st_size > MOST_COPIED:
        return False
    try:
        copy = create_file(name, at=folder)
    except OSError:
        return False
    with os.fdopen(fd, "rb", closefd=False) as source, os.fdopen(copy, "wb") as target:
        shutil.copyfileobj(source, target)
    return True
