"""Run on a cluster: collect here, divide into jobs, conduct them in parallel, fold into one result.

Tests of one node share a few leases; worlds that span nodes get a few jobs. The scheduler queues, places and packs the
jobs; the division only decides which tests share one.
"""

from __future__ import annotations

import math
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

import disttest
from disttest.errors import DisttestError, ExitCode, UsageError
from disttest.extras.cluster.allocations import Allocation, NodePool, allocate
from disttest.extras.cluster.client.conductor import Conductor, ExpectedNode, JobLimits, JobSetting, conduct
from disttest.extras.cluster.client.job_recorder import JobRecorder
from disttest.extras.cluster.client.leasing import LeaseConductor
from disttest.extras.cluster.client.spanning import SpanningConductor
from disttest.extras.cluster.limits import JOB_LEAST_S, JOB_START_S
from disttest.extras.cluster.protocol.fingerprint import digest_tests, versions_here
from disttest.extras.cluster.protocol.job import JobKind, JobShape, JobSpec, new_run_id
from disttest.extras.cluster.protocol.launcher import Capacity, JobOutcome, JobState, Launcher
from disttest.extras.cluster.schedulers.pipes import room_for
from disttest.host.event_loop import NotedSignals, wait_any
from disttest.host.process import Child, signal_name
from disttest.limits import DEADLINE_MARGIN_S, SUPERVISOR_CANCEL_S, TICK_S
from disttest.model import Frozen, Invocation, RunPart, TestCase
from disttest.options.run import RunOptions
from disttest.planning.targets import resolve_targets
from disttest.planning.timings import Timings
from disttest.reports.text import count
from disttest.results.conclusion import Conclusion, Facts, conclude, facts_of, join_exit_codes
from disttest.results.directory import ResultsDirectory
from disttest.results.events import CollectionFailed, RunFinished, RunStarted, TestCollected
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, Journal
from disttest.runtime.controller.devices import this_machine
from disttest.runtime.controller.orders import Shared
from disttest.runtime.controller.target_host import TargetHost, host_of_nodes
from disttest.runtime.supervisor.listing import Collection, collect_tests

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


class ClusterRequest(Frozen):
    """Options of a run on a cluster, in addition to those of every run."""

    targets: tuple[str, ...]
    flags: dict[str, str]
    """Options of the run as given, by field name."""
    pytest_arguments: tuple[str, ...] = ()
    live_output: bool = False
    """Whether the output of running ranks is shown."""
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    """Plugin name -> data for the plugin in the client; the nodes get a list of the selected tests."""
    invocation: Invocation = Invocation()
    part: RunPart = RunPart()
    nodes: int = 1
    """Nodes of each world that has no number of its own."""
    jobs: int = 0
    """Most jobs that are submitted at a time; 0 for as many as keep the nodes busy."""
    gpus_per_node: int = 0
    job_limit_s: float = 0.0
    limits: JobLimits = JobLimits()
    environment: tuple[str, ...] = ()
    image: str = ""
    directory: str = ""
    shared_dir: str = ""
    failed_first: bool = False
    ports: tuple[int, int] = (0, 0)


def run_on_cluster(
    request: ClusterRequest,
    options: RunOptions,
    launcher: Launcher,
    directory: ResultsDirectory,
    *,
    timings: Timings,
    signals: NotedSignals,
    tell: Callable[[str], None],
) -> RunResult:
    """Run to the end, or until a signal comes. Nothing of the run is left with the scheduler afterwards.

    Raises:
        SchedulerError: the scheduler is missing, or refuses the run.
        NotEnoughDevices: a world needs more nodes than there are.
        UsageError: a target or an option is invalid.
    """
    # First of all: the deadline also covers the query of the scheduler and the collection.
    stop = _Stop(options.deadline, signals)
    run_id = new_run_id()
    capacity = launcher.capacity()
    host = host_of_nodes(
        gpus=capacity.gpus_per_node,
        pool=capacity.nodes,
        nodes=request.nodes,
        options=options,
        scheduler=capacity.scheduler,
    )
    template = _template(request, options, run_id, host)
    # Once for the run: a refusal by `start` is an error of each test.
    launcher.check(template)
    journal = Journal(directory.path / FILE_NAME)
    recorder = stop.recorder = JobRecorder(journal, directory.home, tell)
    # Before this run asks for nodes, which jobs of dead clients may hold.
    for name in remove_leftovers(launcher):
        recorder.noted(f"{name}: cancelled, since its client is dead")
    collection = _collect_for(host, request, stop)
    root = Path(collection.root or Path.cwd())
    _begin(recorder, collection, request, run_id)
    tests = collection.tests
    division = Division(
        jobs=jobs_at_once(request.jobs, capacity),
        gpus_per_node=request.gpus_per_node,
        limit_s=request.job_limit_s,
        deadline_s=options.deadline,
        retries=options.retries,
        failed=timings.failed_among(tests) if request.failed_first else frozenset(),
        together=options.one_world,
    )
    jobs = divide(tests, timings, capacity=capacity, division=division, template=template) if tests else ()
    expected = {
        job.job_id: ExpectedNode(versions=versions_here(), digest=digest_tests(job.tests, root))
        for job in jobs
    }
    _conduct_all(jobs, expected, request, division.jobs, options, launcher, recorder, stop)
    # The user may have removed the results directory meanwhile; the open journal still has everything.
    if restored := directory.restore(journal):
        recorder.noted(restored)
    code, reason = _conclude(fold(journal.events()), stop, recorder)
    recorder.event(RunFinished(at_s=recorder.now(), exit_code=code, reason=reason))
    run = fold(journal.events())
    journal.close()
    return run


def remove_leftovers(launcher: Launcher) -> Sequence[str]:
    """End the jobs that dead clients of this machine have left. Return their names."""
    left = launcher.leftovers()
    if left:
        launcher.remove(left)
    return left


def _collect_for(host: TargetHost, request: ClusterRequest, stop: _Stop) -> Collection:
    """Collect the tests that the nodes will run, or some of them if the run must end.

    Raises:
        UsageError: pytest could not collect the tests.
    """
    with tempfile.TemporaryDirectory(prefix="disttest-collect-") as folder:
        # A separate folder: the results directory of the run already holds the client's journal.
        flags = {**request.flags, "results": folder}
        collection = collect_tests(
            resolve_targets(request.targets),
            flags,
            request.pytest_arguments,
            Path(folder),
            shared=Shared(host=host, data=request.data),
            wait=stop.wait_for,
        )
    fine = (ExitCode.PASSED, ExitCode.FAILED, ExitCode.INTERRUPTED, ExitCode.NOTHING_COLLECTED)
    # Exit code 1 with errors of files is fine: they become events, and the other files run.
    failed = collection.exit_code == ExitCode.FAILED and not collection.errors
    if (collection.exit_code not in fine or failed) and not stop():
        raise UsageError(f"the tests could not be collected:\n{collection.output}")
    return collection


def _template(request: ClusterRequest, options: RunOptions, run_id: str, host: TargetHost) -> JobSpec:
    # Masks travel, too: what a node writes to its own disk is masked there.
    flags = {name: text for name, text in request.flags.items() if name != "results"}
    if options.device == "auto":
        # A node would decide by its own GPUs, and could name other worlds than this collection.
        flags["device"] = host.device
    return JobSpec(
        job_id="",
        run_id=run_id,
        kind=JobKind.LEASE,
        shape=JobShape(nodes=1, ranks_per_node=1),
        tests=(),
        targets=request.targets,
        limit_s=0.0,
        flags=flags,
        pytest_arguments=request.pytest_arguments,
        live_output=request.live_output,
        environment=request.environment,
        image=request.image,
        directory=request.directory or str(Path.cwd()),
        shared_dir=request.shared_dir,
        collected_for=msgspec.json.encode(host).decode(),
        ports=request.ports,
    )


def _begin(recorder: JobRecorder, collection: Collection, request: ClusterRequest, run_id: str) -> None:
    recorder.event(
        RunStarted(
            at_s=recorder.now(),
            run_id=run_id,
            argv=tuple(sys.argv[1:]),
            root=collection.root or str(Path.cwd()),
            hardware=this_machine().hardware(),
            slots=0,
            disttest=disttest.__version__,
            plan_id=request.part.plan_id,
            shard=request.part.shard,
            invocation=msgspec.structs.replace(
                request.invocation, data={**request.invocation.data, **collection.data}
            ),
        )
    )
    for nodeid, message in collection.notes:
        recorder.noted(message, nodeid)
    for nodeid, message in collection.errors:
        recorder.event(CollectionFailed(at_s=recorder.now(), nodeid=nodeid, message=message))
    for test, result in collection.skipped:
        recorder.event(TestCollected(at_s=recorder.now(), test=test))
        recorder.test_finished(msgspec.structs.replace(result, started_at_s=recorder.now()))
    for test in collection.tests:
        recorder.event(TestCollected(at_s=recorder.now(), test=test))


def _conduct_all(
    jobs: Sequence[JobSpec],
    expected: dict[str, ExpectedNode],
    request: ClusterRequest,
    at_once: int,
    options: RunOptions,
    launcher: Launcher,
    recorder: JobRecorder,
    stop: _Stop,
) -> None:
    """Conduct each job in a thread. This process forks nothing but commands of the scheduler."""
    if not jobs:
        return
    for job in jobs:
        recorder.show_progress(f"{job.name}: {count(len(job.tests), 'test')} on {job.shape}")
    at_once = min(at_once, len(jobs))
    if (room := room_for(at_once)) < at_once:
        recorder.noted(
            f"{room} jobs at a time instead of {at_once}; raise the limit on open files (ulimit -n) for more"
        )
    with ThreadPoolExecutor(max_workers=room, thread_name_prefix="job") as pool:
        running = [
            pool.submit(
                _conduct_one,
                JobSetting(job, recorder, expected[job.job_id], request.limits, options),
                launcher,
                stop,
            )
            for job in jobs
        ]
        while any(not each.done() for each in running):
            stop.wait(TICK_S)
    for each in running:
        # Raises the error of a thread, which would be lost otherwise.
        each.result()


def _conduct_one(setting: JobSetting, launcher: Launcher, stop: _Stop) -> None:
    kind = SpanningConductor if setting.job.kind is JobKind.WORLD else LeaseConductor
    # The conductor counts the time in the queue from here on.
    conductor: Conductor = kind(setting)
    if why := stop():
        # A run has more jobs than threads. This one may have waited until the run must end.
        conductor.close(JobOutcome(state=JobState.CANCELLED, reason=why))
        return
    try:
        run = launcher.start(setting.job)
    except DisttestError as error:
        conductor.refuse(str(error))
        conductor.close(JobOutcome(state=JobState.REJECTED, reason=str(error)))
        return
    # A lost job is not submitted again: the queue may take hours, and --infra-retries pays for worlds, not for nodes.
    conduct(run, conductor, stop)


def _conclude(run: RunResult, stop: _Stop, recorder: JobRecorder) -> Conclusion:
    if recorder.lost and stop.signal is None:
        return Conclusion(ExitCode.INFRASTRUCTURE, recorder.lost)
    facts = _facts(run, stop)
    conclusion = conclude(facts)
    if facts.signal or facts.deadline:
        return conclusion  # and the nodes were cancelled
    # A node may have ended early without a bad result: on a test's request, or for a plugin that failed.
    ends = [conclusion, *recorder.ends]
    ran = conclusion.exit_code != ExitCode.NOTHING_COLLECTED
    code = join_exit_codes((end.exit_code for end in ends), something_ran=ran)
    return next((end for end in ends if end.exit_code == code), conclusion)


def _facts(run: RunResult, stop: _Stop) -> Facts:
    why = stop()  # notes a signal, too
    return msgspec.structs.replace(facts_of(run), deadline=why, signal=stop.signal or 0)


class _Stop:
    """Reason for which the run must end now: a signal, or the deadline, counted from the construction."""

    def __init__(self, deadline_s: float, signals: NotedSignals) -> None:
        self.signal: int | None = None
        self.recorder: JobRecorder | None = None
        self._signals = signals
        self._deadline_s = time.monotonic() + deadline_s if deadline_s else math.inf
        self._limit_s = deadline_s

    def __call__(self) -> str:
        if self.signal is None and (number := self._signals.first()) is not None:
            self.signal = number
        if self.signal is not None:
            return f"the run was cancelled by {signal_name(self.signal)}"
        if self.recorder is not None and self.recorder.lost:
            return "its results cannot be written any more"
        if time.monotonic() >= self._deadline_s:
            return f"the deadline of the run ({self._limit_s:g} s) passed"
        return ""

    def wait(self, limit_s: float) -> None:
        """Wait for a signal, at most this long."""
        # After the first signal the pipe is not read any more: a second one would make this loop spin.
        wait_any(None if self.signal else self._signals, timeout_s=limit_s)
        self()

    def wait_for(self, child: Child) -> None:
        """Wait for a pytest child; after a signal, or well after the deadline, ask it to end."""
        while child.poll() is None and not self._is_urgent():
            wait_any(child, self._signals, timeout_s=TICK_S)
        if child.poll() is None:
            child.signal(signal.SIGINT)
            child.wait(SUPERVISOR_CANCEL_S)

    def _is_urgent(self) -> bool:
        self()
        return self.signal is not None or time.monotonic() >= self._deadline_s + DEADLINE_MARGIN_S
