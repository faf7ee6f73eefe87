"""Make jobs of the allocations of a run: a few leases for tests of one node, a few jobs for worlds that span nodes.

The scheduler queues, places and packs the jobs; the planner only decides which tests share one. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from disttest.extras.cluster.allocations import Allocation, NodePool, allocate
from disttest.extras.cluster.limits import JOB_LEAST_S, JOB_START_S
from disttest.extras.cluster.protocol.job import JobKind, JobShape, JobSpec
from disttest.extras.cluster.protocol.launcher import Capacity
from disttest.model import Frozen, TestCase
from disttest.planning.timings import Timings

FEWEST_JOBS, MOST_JOBS = 16, 128
"""Jobs submitted at a time by default; each is a process and a thread of the client."""


def jobs_at_once(asked: int, capacity: Capacity) -> int:
    """Return how many jobs a client has with its scheduler; 0 asks for as many as keep the pool busy."""
    return asked or min(MOST_JOBS, max(FEWEST_JOBS, capacity.nodes))


class Division(Frozen):
    """Options of the division."""

    jobs: int
    """Most jobs of one shape; the pool runs no more at a time."""
    gpus_per_node: int = 0
    """GPUs of a job on each node; 0 for as many as it has ranks on GPUs there."""
    limit_s: float = 0.0
    """Wall time of a job; 0 to derive it from the tests' own limits."""
    deadline_s: float = 0.0
    """Deadline of the whole run; 0 for none."""
    retries: int = 0
    """Retries of a test."""
    failed: frozenset[str] = frozenset()
    """Tests to run first."""
    together: bool = False
    """Whether tests of one shape share one world."""


def divide(
    tests: Sequence[TestCase],
    timings: Timings,
    *,
    capacity: Capacity,
    division: Division,
    template: JobSpec,
) -> tuple[JobSpec, ...]:
    """Return the jobs of a run, widest first.

    Args:
        tests: all tests of the run.
        timings: expected durations.
        capacity: the pool.
        division: options of the division.
        template: common part of all jobs; its tests, kind, shape, id and limit are replaced.
    """
    pool = NodePool(
        nodes=capacity.nodes, gpus_per_node=capacity.gpus_per_node, cpus_per_node=capacity.cpus_per_node
    )
    allocated = allocate(
        tests, timings, pool, at_once=division.jobs, failed=division.failed, together=division.together
    )
    return tuple(
        msgspec.structs.replace(
            template,
            job_id=f"j{number}",
            kind=JobKind.WORLD if made.nodes > 1 else JobKind.LEASE,
            shape=JobShape(
                nodes=made.nodes,
                ranks_per_node=made.ranks_per_node,
                gpus_per_node=_gpus(division, made),
            ),
            tests=made.tests,
            worlds=made.worlds,
            limit_s=_limit_s(made.tests, timings, capacity, division),
            expected_s=tuple(map(timings.expect, made.tests)) if timings.known else (),
            failed=tuple(n for n, test in enumerate(made.tests) if test.nodeid in division.failed),
        )
        for number, made in enumerate(allocated, 1)
    )


def _gpus(division: Division, made: Allocation) -> int:
    return division.gpus_per_node or (made.ranks_per_node if made.device != "cpu" else 0)


def _limit_s(tests: Sequence[TestCase], timings: Timings, capacity: Capacity, division: Division) -> float:
    """Return three times the expected durations, with the full limit for each attempt of the test with the longest one.

    The limit is at most the run's deadline and the scheduler's longest job.
    """
    if division.limit_s:
        return division.limit_s
    expected_s = sum(min(test.timeout_s, 3 * max(0.5, timings.expect(test))) for test in tests)
    longest_s = max(test.timeout_s for test in tests) * (1 + division.retries)
    limit_s = max(JOB_LEAST_S, JOB_START_S + expected_s + longest_s)
    limits = [limit_s]
    limits += [division.deadline_s + JOB_START_S] if division.deadline_s else []
    limits += [capacity.longest_job_s] if capacity.longest_job_s else []
    return min(limits)
