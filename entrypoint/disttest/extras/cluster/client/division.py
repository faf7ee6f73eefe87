"""Makes jobs of the allocations of a run: a few leases for what fits one node, a few jobs for worlds that span nodes.

The scheduler queues, places and packs the jobs; the planner only decides which tests travel together. Pure.
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
"""With the scheduler at once, unless a number is asked for: each is a process and a thread of the client."""


def jobs_at_once(asked: int, capacity: Capacity) -> int:
    """How many jobs a client has with its scheduler; 0 asks for as many as keep the pool busy."""
    return asked or min(MOST_JOBS, max(FEWEST_JOBS, capacity.nodes))


class Division(Frozen):
    """How to divide."""

    jobs: int
    """Jobs of one shape at most; the pool runs no more at once."""
    gpus_per_node: int = 0
    """GPUs that a job holds on each node; 0: as many as it has ranks there, where they compute on GPUs."""
    limit_s: float = 0.0
    """Wall time of a job; 0: from its tests' own limits."""
    deadline_s: float = 0.0
    """Of the whole run; 0: none."""
    retries: int = 0
    """How often a test may be tried again."""
    failed: frozenset[str] = frozenset()
    """Tests that go first."""
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
    """The jobs of a run, widest first.

    Args:
        tests: all that the run owes.
        timings: what they are expected to take.
        capacity: the pool.
        division: how to divide.
        template: what all jobs have in common; its tests, kind, shape, id and limit are replaced.
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
    """Three times what the tests are expected to take, and one of them up to its own limit at each attempt.

    Never beyond the run's deadline, nor beyond what the scheduler lets any job have.
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
