"""The pods of one job: created together, polled together, released together.

Kubernetes places each pod separately. Two jobs of two pods each could hold one node each and wait for the other
forever. Therefore only one of a client's jobs over several nodes is placed at a time, and a job that holds only some of
its nodes for too long releases them and asks again later. A queue that admits whole gangs (Kueue) does this better,
where there is one: https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from disttest.extras.cluster.protocol.job import JobSpec
from disttest.extras.cluster.protocol.launcher import JobOutcome, JobState
from disttest.extras.kubernetes import words
from disttest.extras.kubernetes.kubectl import Kubectl, KubectlRefusal, PodBoard
from disttest.extras.kubernetes.limits import (
    GANG_HOLD_S,
    KUBERNETES_FINAL_S,
    KUBERNETES_FIRST_POLL_S,
    KUBERNETES_LONGEST_POLL_S,
    KUBERNETES_RETRY_S,
)
from disttest.extras.kubernetes.objects import Node, Owned, Pod
from disttest.extras.kubernetes.pods import JOB, Manifest, owned, owner_manifest, pod_manifests
from disttest.limits import TICK_S

_PATIENT_AFTER = 20
"""Polls of pods that do not run yet, after which the interval grows."""


class Turn:
    """The turn of placing pods, among the jobs over several nodes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = ""

    def acquire(self, job: JobSpec) -> bool:
        """Take the turn for a job. Return whether it may be placed now."""
        with self._lock:
            if job.shape.nodes > 1 and self._holder in ("", job.name):
                self._holder = job.name
            return job.shape.nodes == 1 or self._holder == job.name

    def release(self, job: JobSpec) -> None:
        """Release the turn: the pods of the job are placed or gone."""
        with self._lock:
            if self._holder == job.name:
                self._holder = ""


class PodGang:
    """The pods of one job."""

    def __init__(
        self,
        job: JobSpec,
        pod: Manifest,
        *,
        objects: Sequence[Manifest] = (),
        client: str,
        kubectl: Kubectl,
        board: PodBoard,
        turn: Turn,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._job = job
        self._pod = pod
        self._missing = list(objects)
        """Further objects of the job that are not created yet."""
        self._client = client
        self._kubectl = kubectl
        self._board = board
        self._turn = turn
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self.pods: dict[int, Pod] = {}
        """Number of the node -> its pod at the last poll."""
        self.gone: set[int] = set()
        """Nodes whose pod no longer exists."""
        self.refused: JobOutcome | None = None
        """Reason why there will be no pods."""
        self.waits = ""
        """Reason why the pods do not run yet."""
        self.owner_uid = ""
        self._names: Sequence[str] = ()
        self._tries = 0
        self._created_s = 0.0
        self._looks = 0
        self._next_s = self._clock()
        self._partly_s: float | None = None

    def step(self) -> None:
        """Do the work that is due."""
        if self.refused is not None or self._clock() < self._next_s:
            return
        if self._names:
            self.poll()
        elif self._turn.acquire(self._job):
            self._create()

    @property
    def has_asked(self) -> bool:
        """Whether the pods have been created and not released."""
        return bool(self._names)

    def running(self) -> list[int]:
        """Return the nodes whose container runs."""
        return [node for node, pod in self.pods.items() if pod.state_of(words.CONTAINER).running]

    def over(self) -> list[int]:
        """Return the nodes whose pod has ended or is gone."""
        ended = [node for node, pod in self.pods.items() if pod.status.phase in ("Failed", "Succeeded")]
        return sorted({*ended, *self.gone})

    # --- creating

    def _create(self) -> None:
        self._tries += 1
        # A deleted pod keeps its name until its kubelet has ended it, which takes up to its grace period.
        suffix = f"-try{self._tries}" if self._tries > 1 else ""
        names = [f"{self._job.name}-n{node}{suffix}" for node in range(self._job.shape.nodes)]
        try:
            self.owner_uid = self.owner_uid or self._create_owner()
            self._create_objects()
            # kubectl creates the items one after another. After a refusal, `_release` removes the first ones.
            pods = pod_manifests(self._pod, names, self._job.name, self.owner_uid)
            self._kubectl.call("create", "--filename=-", "--output=name", text=json.dumps(pods))
        except KubectlRefusal as refusal:
            self._on_refusal(refusal.complaint)
            return
        self._names = names
        self._created_s = self._clock()
        self._looks = 0
        self._next_s = self._created_s + KUBERNETES_FIRST_POLL_S

    def _create_owner(self) -> str:
        output = self._create_once(owner_manifest(self._job, self._client), "--output=json")
        # Created by a request whose answer was lost. Dependents need its uid.
        output = output or self._kubectl.call("get", f"configmap/{self._job.name}", "--output=json")
        return msgspec.json.decode(output, type=Owned).metadata.uid

    def _create_objects(self) -> None:
        """Create the user's objects before the pods, which may refer to them. They outlive a release of the pods."""
        while self._missing:
            self._create_once(owned(self._missing[0], self._job.name, self.owner_uid), "--output=name")
            # One by one, so that the next try goes on behind those that exist.
            del self._missing[0]

    def _create_once(self, manifest: Manifest, output: str) -> str:
        """Create an object; empty if a request whose answer was lost has created it."""
        try:
            return self._kubectl.call("create", "--filename=-", output, text=json.dumps(manifest))
        except KubectlRefusal as refusal:
            if "(AlreadyExists)" not in refusal.complaint:
                raise
            return ""

    def _on_refusal(self, complaint: str) -> None:
        self.waits = words.waits_for_quota(complaint) or words.waits_for_server(complaint)
        if not self.waits:
            self._turn.release(self._job)
            self.refused = words.refusal(complaint)
            return
        self._release(KUBERNETES_RETRY_S)

    def _release(self, pause_s: float) -> None:
        """Release the pods: other jobs may need their nodes to finish."""
        self._kubectl.delete(f"--selector={JOB}={self._job.name}", kinds="pods")
        self._turn.release(self._job)
        self.pods.clear()
        self.gone.clear()
        self._names, self._partly_s = (), None
        # The jitter keeps clients that wait for each other from asking again at the same moment.
        self._next_s = self._clock() + pause_s * (0.5 + self._jitter())

    # --- looking

    def poll(self, *, fresh: bool = False) -> bool:
        """Poll the pods. Return whether the API server answered."""
        now_s = self._clock()
        interval_s = self._interval_s()
        self._looks += 1
        # An answer from before the creation would report all pods as gone.
        since_s = now_s if fresh else max(self._created_s, now_s - interval_s / 2)
        found = self._board.pods(self._job.name, since_s=since_s)
        self._next_s = self._clock() + interval_s
        if found is None:
            return False
        for node, name in enumerate(self._names):
            if name in found:
                self.pods[node] = found[name]
            else:
                # Its last state stays in `pods`: it is all that is known about a deleted pod.
                self.gone.add(node)
        if not fresh:
            self._note_waiting()
        return True

    def _interval_s(self) -> float:
        if self._names and len(self.running()) == len(self._names):
            return KUBERNETES_LONGEST_POLL_S
        slower = 1.25 ** max(0, self._looks - _PATIENT_AFTER)
        return min(KUBERNETES_LONGEST_POLL_S, KUBERNETES_FIRST_POLL_S * slower)

    def _note_waiting(self) -> None:
        pods = list(self.pods.values())
        self.waits = next(filter(None, map(words.waits_for, pods)), "")
        hopeless = next((pod for pod in pods if words.stuck(pod)), None)
        if hopeless is not None:
            # The event has the registry's own words; the pod only says that it waits before the next try.
            self.refused = words.stuck(hopeless, self._kubectl.events(hopeless))
        placed = [pod for pod in pods if pod.spec.node_name]
        if len(placed) == len(self._names):
            # All have nodes now, so another job cannot take one of them.
            self._turn.release(self._job)
        # A pod that is placed and pulls its image holds its node in vain only if another one finds none.
        partly = bool(placed) and any(map(words.is_held, pods))
        self._partly_s = (self._partly_s or self._clock()) if partly else None
        if self._partly_s is not None and self._clock() - self._partly_s > GANG_HOLD_S:
            self._release(GANG_HOLD_S)

    # --- the end

    def end(self, *, asked: bool) -> JobOutcome:
        """Return how the pods ended.

        Args:
            asked: whether the agents were asked to end. Then the pods are not waited for, and nodes of running pods are
                not queried. Otherwise the kubelets get time to report, and a pod that still runs has lost its
                connection.
        """
        deadline = self._clock() + (0.0 if asked else KUBERNETES_FINAL_S)
        while (
            not (answered := self.poll(fresh=True))
            or len(self.over()) < len(self._names)
            or any(map(words.may_be_out_of_memory, self.pods.values()))
        ):
            if self._clock() >= deadline:
                break
            self._sleep(TICK_S)
        ends = [self._end_of(node, asked=asked) for node in self.pods]
        if not answered and not self.over():
            return JobOutcome(state=JobState.UNREACHABLE, reason="the API server does not answer")
        return words.end_of_job(ends)

    def _end_of(self, node: int, *, asked: bool) -> JobOutcome:
        pod = self.pods[node]
        gone = node in self.gone
        if not gone and not pod.metadata.deletion_timestamp and (asked or node in self.over()):
            return words.end_of_pod(pod) or JobOutcome(state=JobState.COMPLETED)
        end = words.end_of_pod(pod, self._kubectl.events(pod), self._node_of(pod), gone=gone)
        return end or words.connection_lost(pod)

    def _node_of(self, pod: Pod) -> Node | None:
        return self._kubectl.node(pod.spec.node_name)

    def remove(self) -> bool:
        """Delete all objects of the job. Return whether the API server confirmed it."""
        self._turn.release(self._job)
        return not self.owner_uid or self._kubectl.delete(f"--selector={JOB}={self._job.name}")
