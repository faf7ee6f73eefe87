"""Derive the verdict of each test from the records of all nodes and the scheduler's reason for the end. Pure functions.

A test passes only if each of its ranks has a green record. A rank without a record is an infrastructure error with the
scheduler's reason, except that taking all of the job's memory is the test's fault. The scheduler's exit code decides
nothing: ``srun`` returned 0 in three of eight trials in which a node was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.launcher import JobOutcome, JobState
from disttest.model import Cause, Frozen, Outcome, RankEnd, RankRecord, TestCase, TestResult, rank_names
from disttest.results.rulings import RankState, state_of
from disttest.results.verdict import by_guilt, is_red, is_symptom, judge
from disttest.runtime.world.judging import with_plugin_error

_MOST_NODES_NAMED = 8
_PASSED = frozenset({RankState.PASSED, RankState.PARTLY})
_WELL = _PASSED | {RankState.SKIPPED, RankState.NOT_RUN, RankState.XPASSED}
"""States of the ranks of a passed test: for all ranks, and where ranks may differ."""


class PartitionRecord(Frozen):
    """Records of one node's ranks in a test."""

    nodeid: str
    node: int
    host: str
    ranks: tuple[RankRecord, ...]
    started_at_s: float = 0.0
    """Start on the client's clock."""
    duration_s: float = 0.0
    cancelled: str = ""
    """Reason why this node ended its ranks during the test, unless they were the reason themselves."""
    by_scheduler: bool = False
    """Whether the scheduler had asked the node to end by then."""
    plugin_error: str = ""
    """Exception of a plugin: the message, and the traceback on further lines."""
    given_up: bool = False
    """Whether the client had given up the job by then; ``cancelled`` is the client's reason in that case."""


def verdict(
    job: JobSpec, records: Iterable[PartitionRecord], end: JobOutcome | None, *, hosts: Sequence[str] = ()
) -> tuple[TestResult, ...]:
    """Judge each test of a job.

    Args:
        job: the job.
        records: records of the nodes in any order; a later one of a node and test replaces an earlier one.
        end: how the job ended; None if it has not, which leaves a missing record unexplained.
        hosts: names of the nodes in order, as far as known.
    """
    by_test: dict[str, dict[int, PartitionRecord]] = {test.nodeid: {} for test in job.tests}
    for record in records:
        by_test.setdefault(record.nodeid, {})[record.node] = record
    return tuple(
        judge_partitions(test, tuple(by_test[test.nodeid].values()), end, job_id=job.job_id, hosts=hosts)
        for test in job.tests
    )


def judge_partitions(
    test: TestCase,
    partitions: Sequence[PartitionRecord],
    end: JobOutcome | None,
    *,
    job_id: str = "",
    hosts: Sequence[str] = (),
    attempt: int = 1,
) -> TestResult:
    """Judge one test that spans nodes; it never passes if a plugin failed on one of them."""
    result = _judge_records(test, partitions, end, job_id=job_id, hosts=hosts, attempt=attempt)
    errors = (f"node {each.host}: {each.plugin_error}" for each in partitions if each.plugin_error)
    return with_plugin_error(result, next(errors, ""))


def _judge_records(
    test: TestCase,
    partitions: Sequence[PartitionRecord],
    end: JobOutcome | None,
    *,
    job_id: str,
    hosts: Sequence[str],
    attempt: int,
) -> TestResult:
    assert test.world is not None
    by_rank = {
        record.rank: msgspec.structs.replace(record, node=partition.host)
        for partition in partitions
        for record in partition.ranks
    }
    # A record comes from another machine, so its rank may be any number.
    present = [by_rank[rank] for rank in sorted(by_rank) if 0 <= rank < test.world.size]
    missing = [rank for rank in range(test.world.size) if rank not in by_rank]
    # A node without records is named by its ranks; ranks of other nodes that the client ended are its victims.
    is_named = bool(missing) and any(partition.given_up for partition in partitions)
    if end is not None and is_for_the_job(partitions) and not is_named:
        ended = {
            record.rank
            for partition in partitions
            for record in partition.ranks
            if _was_ended(partition) or (partition.given_up and is_symptom(record))
        }
        missing = sorted({*missing, *ended})
        present = [record for record in present if record.rank not in ended]
    # A missing record outweighs a failure: the survivors' view of a machine that died proves nothing.
    started_at_s = min((partition.started_at_s for partition in partitions), default=0.0)
    duration_s = max((partition.duration_s for partition in partitions), default=0.0)
    if missing:
        return _without(
            test,
            present,
            missing,
            end,
            started_at_s=started_at_s,
            duration_s=duration_s,
            hosts=hosts,
            attempt=attempt,
        )
    cancelled = next((partition.cancelled for partition in partitions if partition.cancelled), "")
    ranks = _settle_hang(present, test.timeout_s)
    result = judge(
        test,
        _settle_cancellation(ranks) if cancelled else ranks,
        attempt=attempt,
        started_at_s=started_at_s,
        duration_s=duration_s,
        world_id=job_id,
        cancelled=cancelled,
    )
    return _name_nodes(result)


def is_for_the_job(partitions: Iterable[PartitionRecord]) -> bool:
    """Whether nodes ended their ranks because the job ended, and the ranks of the other nodes did not all pass.

    The scheduler ended the job, or the client gave it up because a node was lost. The peers of these ranks went away,
    so their failures prove nothing, and the reason for the end of the job decides.
    """
    known = tuple(partitions)
    others = [record for partition in known if not _was_ended(partition) for record in partition.ranks]
    unwell = (is_red(record) or record.outcome is None for record in others)
    return any(map(_was_ended, known)) and (not others or any(unwell))


def _was_ended(partition: PartitionRecord) -> bool:
    return bool(partition.cancelled) and (partition.given_up or partition.by_scheduler)


def check_lease_result(test: TestCase, result: TestResult) -> TestResult:
    """Check a lease's verdict against its records: a pass needs a green record of each rank."""
    if test.world is None or result.outcome.is_bad or not result.outcome.has_run or not _wants_ranks(test):
        return result
    allowed = _WELL if test.ranks_may_differ else _PASSED
    green = {record.rank for record in result.ranks if state_of(record) in allowed}
    missing = sorted(set(range(test.world.size)) - green)
    if not missing or result.outcome is not Outcome.PASSED:
        return result
    message = f"reported as passed, but {rank_names(missing)} of {test.world.size} left no green record"
    return msgspec.structs.replace(result, outcome=Outcome.ERROR, cause=Cause.INFRASTRUCTURE, message=message)


def _wants_ranks(test: TestCase) -> bool:
    return test.kind == "ranks"


def _without(
    test: TestCase,
    present: Sequence[RankRecord],
    missing: Sequence[int],
    end: JobOutcome | None,
    *,
    started_at_s: float,
    duration_s: float,
    hosts: Sequence[str],
    attempt: int,
) -> TestResult:
    """Judge a test with missing records: an infrastructure error whatever the others report, unless memory ran out."""
    size = test.world.size if test.world else 0
    why = str(end) if end is not None else "their node went silent"
    message = f"{rank_names(missing)} of {size}{_where(test, missing, hosts)} left no record: {why}"
    if len(missing) == size:
        message = f"no rank left a record: {why}"
    # Named in a note only: a rank that lost its peers with the machine fails, too.
    red = sorted((r for r in present if is_red(r)), key=by_guilt)
    culprit = red[0] if red else None
    notes = (f"rank {culprit.rank} on {culprit.node}: {culprit.message}",) if culprit else ()
    greedy = end is not None and end.state is JobState.OUT_OF_MEMORY
    return TestResult(
        nodeid=test.nodeid,
        outcome=Outcome.FAILED if greedy else Outcome.ERROR,
        cause=Cause.TEST if greedy else Cause.INFRASTRUCTURE,
        attempt=attempt,
        started_at_s=started_at_s,
        duration_s=duration_s,
        message=message,
        details=culprit.details if culprit else "",
        culprit=culprit.rank if culprit and not is_symptom(culprit) else None,
        victims=tuple(r.rank for r in present if r is not culprit and (r.end is RankEnd.KILLED or is_red(r))),
        notes=notes,
        ranks=tuple(present),
    )


def _settle_hang(ranks: Sequence[RankRecord], timeout_s: float) -> list[RankRecord]:
    """Mark ranks as ended that noticed the end of their peers after the deadline.

    Nodes end their ranks within milliseconds of each other. A rank that notices the end of peers on another node is a
    victim of the hang, as they are, and not the culprit.
    """
    if not any(rank.hung for rank in ranks):
        return list(ranks)
    return [
        _as_ended(rank, hung=True) if is_symptom(rank) and (rank.failed_after_s or 0.0) >= timeout_s else rank
        for rank in ranks
    ]


def _settle_cancellation(ranks: Sequence[RankRecord]) -> list[RankRecord]:
    """Mark ranks as ended that noticed the end of their peers, which other nodes ended milliseconds earlier."""
    return [_as_ended(rank) if is_red(rank) and is_symptom(rank) else rank for rank in ranks]


def _as_ended(rank: RankRecord, *, hung: bool = False) -> RankRecord:
    """Return the record as if the rank had been ended before it noticed that its peers were gone."""
    return msgspec.structs.replace(
        rank, end=RankEnd.KILLED, outcome=None, failed_after_s=None, hung=hung or rank.hung
    )


def _name_nodes(result: TestResult) -> TestResult:
    """Append the nodes of the affected ranks to the message."""
    if not result.outcome.is_bad:
        return result
    by_host: dict[str, list[int]] = {}
    for record in result.ranks:
        by_host.setdefault(record.node, []).append(record.rank)
    if result.culprit is not None:
        where = f"rank {result.culprit} is on node {result.ranks[result.culprit].node}"
    else:
        hosts = list(by_host.items())[:_MOST_NODES_NAMED]
        where = "; ".join(f"node {host}: {rank_names(ranks)}" for host, ranks in hosts)
        where += "; …" if len(by_host) > len(hosts) else ""
    return msgspec.structs.replace(result, message=f"{result.message} [{where}]")


def _where(test: TestCase, ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Format `` on node n2``; empty if the names of the nodes are unknown."""
    if not hosts or test.world is None:
        return ""
    # Ranks are numbered node by node.
    names = sorted({hosts[rank // test.world.ranks_per_node] for rank in ranks})
    return f" on node {', '.join(names[:_MOST_NODES_NAMED])}{', …' if len(names) > _MOST_NODES_NAMED else ''}"
