"""Kubernetes as a launcher: a pod for each node of a job, and ``kubectl attach`` to each, with pipes like srun's.

The agent is the main process of its pod and ends with its stream, so a killed client leaves no GPU in use. A broken
stream is not resumed: an agent could not distinguish that from the end of its client. Nothing is read from ``kubectl
logs``, which stops when a log rotates (https://github.com/kubernetes/kubernetes/issues/59902). No verdict depends on a
pod's phase or exit code.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from disttest.errors import SchedulerError
from disttest.extras.cluster.limits import CLIENT_ALIVE_S, JOB_CANCEL_S
from disttest.extras.cluster.protocol.job import JobSpec, dead_names, new_run_id
from disttest.extras.cluster.protocol.launcher import (
    Capacity,
    Changed,
    Idle,
    JobEnded,
    JobOutcome,
    JobState,
    LauncherOptions,
    NodeEnded,
    NodeVariables,
    Output,
    RunDescription,
    RunEvent,
)
from disttest.extras.cluster.protocol.wire import CancelJob, SetVariables, StillHere, encode_order, is_ours
from disttest.extras.cluster.schedulers.agent_command import NOT_INSIDE, travelling
from disttest.extras.cluster.schedulers.pipes import OutputLine, PipedProcesses, Program
from disttest.extras.kubernetes import pods as manifests
from disttest.extras.kubernetes import words
from disttest.extras.kubernetes.gang import PodGang, Turn
from disttest.extras.kubernetes.kubectl import Kubectl, KubectlRefusal, PodBoard, clean
from disttest.extras.kubernetes.limits import KUBERNETES_KILL_S, KUBERNETES_RETRY_S
from disttest.extras.kubernetes.objects import ListOf, Node, Owned, WantedPod
from disttest.extras.kubernetes.words import CONTAINER, stream_refusal
from disttest.limits import TICK_S

NODE_VARIABLES = NodeVariables(
    scheduler="kubernetes",
    node=("DISTTEST_POD",),
    nodes=("DISTTEST_PODS",),
    host=("DISTTEST_POD_HOST",),
    address=("DISTTEST_POD_ADDRESS",),
    # NVIDIA's device plugin names the granted GPUs in the second variable only.
    gpus=("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    gpu_count=("DISTTEST_POD_GPUS",),
    last_word=("DISTTEST_POD_LAST_WORD",),
)
_COMPLAINTS_KEPT = 20


def make_launcher(environ: Mapping[str, str], options: LauncherOptions) -> KubernetesLauncher:
    """Make the launcher for a namespace of a cluster."""
    return KubernetesLauncher(environ, options)


class KubernetesRun:
    """A job whose pods have been requested."""

    def __init__(self, job: JobSpec, gang: PodGang, kubectl: Kubectl, variables: Mapping[str, str]) -> None:
        self._job = job
        self._gang = gang
        self._kubectl = kubectl
        self._first = encode_order(SetVariables(variables=dict(variables)))
        self._streams = PipedProcesses()
        self._attached: dict[int, int] = {}
        """Node -> number of its stream."""
        self._held = bytearray()
        """Orders that wait until all nodes are attached."""
        self._said_s = time.monotonic()
        self._complaints: list[str] = []
        self._seen = RunDescription(scheduler="kubernetes", job_id="", name=job.name, state=JobState.QUEUED)
        self._cancelled = ""
        self._cancelled_s = 0.0
        self._end: JobOutcome | None = None
        """End of the pods, if this client ended them."""

    def events(self) -> Iterator[RunEvent]:
        """Yield the events of the job."""
        try:
            yield from self._until_over()
            end = self._ended()
        finally:  # also if the iteration is abandoned
            self._remove()
        yield JobEnded(end=end)

    def _until_over(self) -> Iterator[RunEvent]:
        yield Changed(description=self._seen)
        while not self._is_over():
            before = self._seen
            for line in self._streams.round(TICK_S):
                yield from self._handle_line(line)
            self._step()
            yield from self._ended_nodes()
            if self._seen != before:
                yield Changed(description=self._seen)
        # kubectl attach does not notice that a node is gone, and never ends.
        self._streams.signal(signal.SIGKILL)
        for line in self._streams.lines(TICK_S):  # the rest of the pipes
            yield from self._handle_line(line)

    def _ended_nodes(self) -> Iterator[RunEvent]:
        """Report each node whose pod has ended: the stream of a lost node stays open."""
        for node in self._gang.over():
            pod = self._gang.pods.get(node)
            # Without events and node, which would cost a query each time. `end` asks for them.
            end = words.end_of_pod(pod, gone=node in self._gang.gone) if pod is not None else None
            yield NodeEnded(node=node, how=str(end or "its pod is gone"))

    def send(self, line: bytes) -> None:
        """Send a line to all agents, once all are attached."""
        if self._all_attached():
            self._streams.send(line)
        else:
            self._held += line

    def cancel(self, reason: str) -> None:
        """Cancel the agents that are attached; pods that do not run yet are removed."""
        if not self._cancelled:
            self._cancelled, self._cancelled_s = reason, time.monotonic()
            self._streams.send(encode_order(CancelJob(reason=reason)))

    def describe(self) -> RunDescription:
        """Return the last known state of the job."""
        return self._seen

    # --- what happens

    def _handle_line(self, line: OutputLine | None) -> Iterator[RunEvent]:
        if line is None:
            yield Idle()
        elif line.error:
            self._complaints = [*self._complaints, line.text.decode("utf-8", "replace")][-_COMPLAINTS_KEPT:]
        else:
            if is_ours(line.text):
                self._seen = msgspec.structs.replace(self._seen, state=JobState.RUNNING, reason="")
            yield Output(line=line.text)

    def _step(self) -> None:
        if self._cancelled:
            self._keep_limits()
            return
        self._gang.step()
        # The gang has released its pods, and the streams to them lead nowhere.
        if self._attached and not self._gang.has_asked:
            self._start_over()
        for node in self._gang.running():
            if node not in self._attached:
                self._attach(node)
        if not self._all_attached() and time.monotonic() - self._said_s >= CLIENT_ALIVE_S:
            self._said_s = time.monotonic()
            # An agent that hears nothing assumes that its client is dead, and ends. The other nodes may take
            # long to start.
            self._streams.send(encode_order(StillHere()))
        self._describe()

    def _attach(self, node: int) -> None:
        pod = self._gang.pods[node].metadata.name
        # --quiet leaves out the hint about a command prompt, which would be a complaint here.
        argv = self._kubectl.command("attach", pod, f"--container={CONTAINER}", "--stdin", "--quiet")
        self._attached[node] = self._streams.start(Program(argv, self._kubectl.environ))
        # Variables first, and through the stream: in the manifest, every user who may read pods could read
        # them.
        self._streams.send_to(self._attached[node], self._first)
        if self._all_attached():
            self._streams.send(bytes(self._held))
            self._held.clear()

    def _start_over(self) -> None:
        """Start over with new pods: messages of the released ones are void."""
        self._streams.kill()
        self._streams = PipedProcesses()
        self._attached.clear()
        self._complaints.clear()
        self._seen = msgspec.structs.replace(self._seen, state=JobState.QUEUED)

    def _all_attached(self) -> bool:
        return len(self._attached) == self._job.shape.nodes

    def _describe(self) -> None:
        waits = self._gang.waits if self._seen.state is JobState.QUEUED else ""
        names = (pod.spec.node_name for _, pod in sorted(self._gang.pods.items()))
        self._seen = msgspec.structs.replace(
            self._seen, job_id=self._gang.owner_uid, reason=waits, nodes=tuple(filter(None, names))
        )

    # --- the end

    def _is_over(self) -> bool:
        if self._gang.refused is not None:
            return True
        if self._all_attached() or self._cancelled:
            return self._streams.all_ended()
        # A pod ended before it could be attached: the other nodes would wait for it in vain.
        return any(node not in self._attached for node in self._gang.over())

    def _keep_limits(self) -> None:
        waited_s = time.monotonic() - self._cancelled_s
        if waited_s > JOB_CANCEL_S and self._end is None:
            # First: the removal of the pods takes their status along.
            self._end = self._gang.end(asked=True)
            self._gang.remove()
        if waited_s > KUBERNETES_KILL_S:
            self._streams.signal(signal.SIGKILL)

    def _ended(self) -> JobOutcome:
        complaints = clean("\n".join(self._complaints))
        # Once an agent has been heard, standard error may contain any text of the tests.
        unheard = self._seen.state is JobState.QUEUED
        end = (
            self._gang.refused
            or self._end
            or (stream_refusal(complaints) if unheard else None)
            or self._gang.end(asked=bool(self._cancelled))
        )
        if self._cancelled and end.state in (JobState.COMPLETED, JobState.UNREACHABLE):
            return JobOutcome(state=JobState.CANCELLED, reason=self._cancelled, exit_code=end.exit_code)
        if end.state is JobState.COMPLETED and not end.reason:
            return msgspec.structs.replace(end, reason=complaints)
        return end

    def _remove(self) -> None:
        """Remove all objects; retry while the API server is away, unless the job was cancelled."""
        self._streams.kill()
        deadline = time.monotonic() + (0.0 if self._cancelled else KUBERNETES_KILL_S)
        # A pod that is left keeps its GPUs.
        while not self._gang.remove() and time.monotonic() < deadline:
            time.sleep(KUBERNETES_RETRY_S)


class KubernetesLauncher:
    """A namespace of a cluster, through kubectl on this machine."""

    name = "kubernetes"

    def __init__(self, environ: Mapping[str, str], options: LauncherOptions | None = None) -> None:
        self._environ = environ
        self._options = options or LauncherOptions()
        self._kubectl = Kubectl(environ, self._options)
        # A label of all pods of this run, so that one query finds them and no others.
        self._client = new_run_id()
        self._board = PodBoard(self._kubectl, self._client)
        self._turn = Turn()

    def capacity(self) -> Capacity:
        """Return the capacity of the nodes that its pods may use.

        Raises:
            SchedulerError: kubectl is missing, the cluster is out of reach, or access to nodes is denied.
        """
        try:
            version = json.loads(self._kubectl.call("version", "--output=json"))
        except KubectlRefusal as refusal:
            raise SchedulerError(f"{refusal}. {words.refusal(refusal.complaint).advice}") from None
        scheduler = f"Kubernetes {version['serverVersion']['gitVersion']}"
        if self._options.pod_nodes:
            return manifests.declared_capacity(self._options.pod_nodes, scheduler)
        nodes = msgspec.json.decode(self._kubectl.call("get", "nodes", "--output=json"), type=ListOf[Node])
        # The node selector and tolerations of the template decide which nodes count.
        wanted = msgspec.convert(self._merged({}), type=WantedPod)
        resource = self._options.gpu_resource or manifests.GPU_RESOURCE
        return manifests.capacity_of(nodes.items, wanted, resource, scheduler)

    def check(self, job: JobSpec) -> None:
        """Check the image and the files of the user.

        Raises:
            SchedulerError: no image is named, there are mounts, or a file is invalid.
        """
        if self._options.mounts:
            raise SchedulerError("--mount works with Slurm only; put volumes of pods into --pod-template")
        self._pod(job)
        self._objects(job)

    def start(self, job: JobSpec) -> KubernetesRun:
        """Request the pods of a job; the request is made when its events are read.

        Raises:
            SchedulerError: kubectl is missing, or a file of the user is invalid.
        """
        gang = PodGang(
            job,
            self._pod(job),
            objects=self._objects(job),
            client=self._client,
            kubectl=self._kubectl,
            board=self._board,
            turn=self._turn,
        )
        passed = travelling(job, self._environ)
        return KubernetesRun(
            job, gang, self._kubectl, {name: text for name, text in passed.items() if name not in NOT_INSIDE}
        )

    def _pod(self, job: JobSpec) -> manifests.Manifest:
        patch = manifests.pod_patch(job, self._options, self._client)
        return manifests.named_for(job, manifests.complete_pod(self._merged(patch), job))

    def _merged(self, patch: manifests.Manifest) -> manifests.Manifest:
        """Merge disttest's fields over the user's template, by Kubernetes' rules."""
        if not self._options.pod_template:
            return patch
        merged: manifests.Manifest = json.loads(
            self._patched(self._options.pod_template, patch, "--type=strategic")
        )
        if merged.get("kind") != "Pod":
            raise SchedulerError(
                f"--pod-template {self._options.pod_template} contains a {merged.get('kind')}; give a Pod"
            )
        return merged

    def _objects(self, job: JobSpec) -> Sequence[manifests.Manifest]:
        """Read the further objects of a job, labelled with its name."""
        if not self._options.job_objects:
            return ()
        labels = {"metadata": {"labels": {manifests.JOB: job.name}}}
        # A strategic merge works for Kubernetes' own kinds only, and these may be custom resources:
        # https://github.com/kubernetes/kubernetes/pull/53558
        return manifests.objects_of(self._patched(self._options.job_objects, labels, "--type=merge"), job)

    def _patched(self, file: str, patch: manifests.Manifest, how: str) -> str:
        """Merge fields over those of a file, which kubectl reads."""
        words = (f"--filename={file}", how, f"--patch={json.dumps(patch)}")
        return self._kubectl.call("patch", "--local", *words, "--output=json")

    def every_name(self) -> Sequence[str]:
        """Return the names of all jobs of disttest in the namespace."""
        label = ",".join(f"{key}={value}" for key, value in manifests.MANAGED_BY.items())
        found = self._kubectl.read(ListOf[Owned], "configmaps", f"--selector={label}")
        return [each.metadata.name for each in found.items] if found is not None else []

    def leftovers(self) -> Sequence[str]:
        """Return the names of jobs whose client ran on this machine and is dead."""
        return dead_names(self.every_name())

    def remove(self, names: Sequence[str]) -> None:
        """End jobs by name."""
        for name in names:
            self._kubectl.delete(f"--selector={manifests.JOB}={name}")
