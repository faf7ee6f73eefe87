"""Describe a result rank by rank in lines of text, the same for terminal, JUnit and summary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from disttest.model import MAIN_RANK, Cause, Outcome, RankEnd, RankRecord, TestResult, rank_names
from disttest.results.hang_findings import HARNESS
from disttest.results.rulings import is_disagreement

STACKS_HEADING = "[disttest: stacks of rank "
"""Heading in a rank's log; the lines below it are stacks appended by disttest."""

# Output of faulthandler for a fatal signal: a heading, then the frames of each thread.
# A sample: "Fatal Python error: Segmentation fault", an empty line, "Current thread 0x00007f01 (most recent
# call first):", frames, and since Python 3.10 a line "Extension modules: …".
_CRASH = re.compile(
    r"^Fatal Python error: .*\n(?:\s*\n|.*\(most recent call first\):\n|  .*(?:\n|\Z))*(?:Extension modules: .*)?",
    re.MULTILINE,
)

_THREAD_ID = re.compile(r"(hread) 0x[0-9a-f]+")
# The thread that answers the world's questions about a hanging rank.
_OWN_THREAD = "/disttest/runtime/rank/flight.py"
# torch's harness logs the traceback that the report contains already, with a prefix on each line.
_TORCHS_ACCOUNT = re.compile(
    r"^(\[rank\d+\]:)?[EWI]\d{4} \S+ \d+ .*torch/testing/_internal/common_\w+\.py:\d+\] ?"
)
# The stack of C++ behind the message of an exception of torch.
_CPP_FRAME = re.compile(r"^frame #\d+: .+ in .+\)$")
_RUNNER = re.compile(rf'File "[^"]*(/_pytest/|/pluggy/|{HARNESS})')
# Observer frames are between the user's call and torch's, and wait for neither.
_OBSERVER = re.compile(r'^  File "[^"]*/disttest/observe/\w+\.py", line ')

_MOMENT = re.compile(r" after \d+\.\d\d s")


def describe_ranks(result: TestResult, *, logs_in: str | None = "") -> Iterator[str]:
    """Yield a line for each rank, one for earlier tests, and the stacks of ended ranks; equal ranks share a line.

    Args:
        result: result to describe.
        logs_in: prefix of log paths that leads the reader to the results directory; None omits the paths.
    """
    alike: dict[tuple[bool, str], list[tuple[RankRecord, str]]] = {}
    for record in result.ranks:
        text = describe_rank(record, result)
        # Ranks that differ only in the moment of their failure are alike.
        # `rank_names` has no form for the main process among ranks.
        key = (record.rank == MAIN_RANK, _MOMENT.sub("", text))
        alike.setdefault(key, []).append((record, text))
    for told in alike.values():
        records = [record for record, _ in told]
        yield f"{rank_names([record.rank for record in records])}: {told[0][1]}{_logs(records, logs_in)}"
    if result.after:
        ran = "1 test" if len(result.after) == 1 else f"{len(result.after)} tests"
        yield f"{ran} ran before it in the same processes, the last: {result.after[-1]}"
    yield from _stacks(result)


def _logs(records: Sequence[RankRecord], logs_in: str | None) -> str:
    logs = [record.log for record in records if record.log]
    if not logs or logs_in is None:
        return ""
    more = f" and {len(logs) - 1} more" if len(logs) > 1 else ""
    return f" (log: {logs_in}{logs[0]}{more})"


def describe_rank(record: RankRecord, result: TestResult) -> str:
    """Describe one rank, and whether it is the culprit or a victim."""
    role = ""
    if record.rank == result.culprit and record.outcome is Outcome.PASSED:
        role = ", while others waited for it [culprit]"
    elif record.rank == result.culprit:
        role = " [culprit]"
    elif record.rank in result.victims:
        role = " [victim]"
    return f"{_describe_end(record, result.culprit)}{role}"


def how_ended(record: RankRecord) -> str:
    """Describe the end of a rank in a word or two, for tables and headings."""
    # First, because disttest kills hung ranks, too.
    if record.hung:
        return record.ended_for or "timed out"
    if record.end is RankEnd.KILLED and not record.has_failed:
        return "ended by disttest"
    if record.has_died and not record.has_failed:
        return "crashed"
    return str(record.outcome or Outcome.NOT_RUN).replace("_", " ")


def how_failed(result: TestResult) -> str:
    """Name the kind of failure, the same in every report."""
    failing = [finding for finding in result.findings if finding.fails]
    for finding in failing:
        if finding.failure:
            return finding.failure
    if hung := [rank for rank in result.ranks if rank.hung]:
        return next((rank.ended_for for rank in hung if rank.ended_for), "timed out")
    if result.cause is Cause.INFRASTRUCTURE:
        return "infrastructure"
    if failing:
        return "finding"
    if is_disagreement(result):
        return "ranks disagree"
    culprit = next((rank for rank in result.ranks if rank.rank == result.culprit), None)
    return "crashed" if culprit and how_ended(culprit) == "crashed" else str(result.outcome)


def _describe_end(record: RankRecord, culprit: int | None) -> str:
    after = "" if record.failed_after_s is None else f" after {record.failed_after_s:.2f} s"
    if record.woken:
        return record.message
    if record.ended_for:
        return f"raised {record.in_flight}, then {record.message}" if record.in_flight else record.message
    if record.end is RankEnd.KILLED:
        if record.outcome is not None and record.outcome.is_bad:
            rest = (
                "its report could not be rendered" if record.unrendered else "it did not finish and was ended"
            )
            return f"failed in {record.phase}{after}: {record.message}; {rest}"
        when = " at the deadline" if record.hung else ""
        if record.in_flight:
            return f"raised {record.in_flight} in {record.phase}, had not handled it yet{when}, ended by disttest"
        return f"still running in {record.phase}{when}, ended by disttest"
    if record.has_died and not record.has_failed:
        return f"{record.message}{after and f' ({after.strip()})'}"
    if record.outcome is None:
        return "did not run it: its call has no report"
    if record.outcome is Outcome.PASSED:
        left_out = record.subtests_skipped
        whole = "ran to its end" if record.rank == culprit else "passed"
        return f"{whole}, {left_out} subtests skipped or expected to fail" if left_out else whole
    return f"{record.outcome} in {record.phase}{after}: {record.message}"


def _stacks(result: TestResult) -> Iterator[str]:
    by_text: dict[str, list[int]] = {}
    for record in result.ranks:
        if stacks := record.all_stacks:
            # Ranks that wait in the same line have the same text once thread ids are removed.
            by_text.setdefault(stacks, []).append(record.rank)
    for text, ranks in by_text.items():
        yield f"stacks of {rank_names(ranks)}:"
        yield from (f"  {line}" for line in text.splitlines())


def without_stacks(log: str) -> str:
    """Return a rank's own output, without the stacks, crash dumps and tracebacks that the report shows."""
    own = _CRASH.sub("", log.partition(STACKS_HEADING)[0]).strip()
    left_out = (_TORCHS_ACCOUNT, _CPP_FRAME)
    return "\n".join(line for line in own.splitlines() if not any(each.match(line) for each in left_out))


def crash_stacks(log: str) -> str:
    """Return the stacks that a fatal signal left in a log; empty if there are none."""
    dumps = [match[0] for match in _CRASH.finditer(log)]
    return shorten_stacks(dumps[-1].partition("\n")[2].partition("\nExtension modules: ")[0]) if dumps else ""


def shorten_stacks(text: str) -> str:
    """Shorten stacks (innermost frame first): remove thread ids, and frames of the runner and of disttest."""
    # faulthandler separates threads by an empty line.
    threads = (thread for thread in text.strip().split("\n\n") if _OWN_THREAD not in thread)
    return "\n\n".join(_shorten(thread) for thread in threads)


def _shorten(thread: str) -> str:
    lines: list[str] = []
    for line in thread.splitlines():
        if _OBSERVER.search(line):
            continue
        # Frames below the first one of the runner belong to its callers, not to the test. The innermost
        # frame always stays, so that no thread is empty.
        if line.startswith("  ") and _RUNNER.search(line) and lines[-1:] and lines[-1].startswith("  "):
            break
        lines.append(_THREAD_ID.sub(r"\1", line))
    return "\n".join(lines)
