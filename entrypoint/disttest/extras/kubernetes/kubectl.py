"""Kubernetes through kubectl: short calls, and one query for all pods of a client. Each call is a list of arguments."""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from disttest.errors import SchedulerError
from disttest.extras.cluster.protocol.launcher import LauncherOptions
from disttest.extras.cluster.schedulers.agent_command import call
from disttest.extras.kubernetes.limits import KUBERNETES_ANSWER_S
from disttest.extras.kubernetes.objects import ClusterEvent, ListOf, Node, Pod
from disttest.extras.kubernetes.pods import CLIENT, JOB
from disttest.model import UNREADABLE

# kubectl knows all logins of a kubeconfig, merges templates as the cluster does, and matches the cluster's version.
# The Python client would be a large dependency for six verbs, and each of its streams needs a thread.
# docs/decisions/0032-kubectl-not-a-client-library.md

_T = TypeVar("_T")


class KubectlRefusal(SchedulerError):
    """kubectl refused a call; ``complaint`` has Kubernetes' own words."""

    def __init__(self, complaint: str, argv: tuple[str, ...]) -> None:
        super().__init__(f"Kubernetes says: {complaint} (kubectl {shlex.join(argv)})")
        self.complaint = complaint


class Kubectl:
    """kubectl with a context, a namespace and an environment."""

    def __init__(self, environ: Mapping[str, str], options: LauncherOptions) -> None:
        # From the right: a context may have slashes in its name (arn:aws:eks:…:cluster/NAME).
        context, _, namespace = options.partition.rpartition("/")
        self.environ = environ
        self._base = (
            "kubectl",
            *((f"--context={context}",) if context else ()),
            *((f"--namespace={namespace}",) if namespace else ()),
            *options.extra,
        )

    def command(self, *words: str) -> list[str]:
        """Return the command line of a call without a time limit."""
        return [*self._base, *words]

    def call(self, *words: str, text: str = "") -> str:
        """Call kubectl with a text as its input, and return its output.

        Raises:
            KubectlRefusal: it failed, or did not answer in time.
            SchedulerError: kubectl is not installed.
        """
        try:
            # The option limits each request. The limit below also covers several requests and login plugins.
            argv = self.command(f"--request-timeout={KUBERNETES_ANSWER_S:g}s", *words)
            ended = call(argv, self.environ, limit_s=2 * KUBERNETES_ANSWER_S, text=text)
        except OSError as error:
            raise SchedulerError(
                f"cannot run kubectl ({error.strerror}); --launcher kubernetes needs it on this machine, with a configuration "
                "or a service account for the cluster"
            ) from error
        except subprocess.TimeoutExpired:
            complaint = f"the API server does not answer within {2 * KUBERNETES_ANSWER_S:g} s"
            raise KubectlRefusal(complaint, words) from None
        if ended.returncode:
            raise KubectlRefusal(clean(ended.stderr) or f"exit code {ended.returncode}", words)
        return ended.stdout

    def read(self, kind: type[_T], *words: str) -> _T | None:
        """Read an object or a list; None if it does not exist or there is no answer."""
        try:
            return msgspec.json.decode(self.call("get", *words, "--output=json"), type=kind)
        except (KubectlRefusal, *UNREADABLE):
            return None

    def node(self, name: str) -> Node | None:
        """Read a node, if its name is known and access is allowed."""
        return self.read(Node, f"node/{name}") if name else None

    def events(self, pod: Pod) -> tuple[ClusterEvent, ...]:
        """Read the events of a pod; empty if access is denied."""
        about = f"--field-selector=involvedObject.kind=Pod,involvedObject.name={pod.metadata.name}"
        found = self.read(ListOf[ClusterEvent], "events", about)
        return found.items if found is not None else ()

    def delete(self, *which: str, kinds: str = "configmaps,pods") -> bool:
        """Delete owners and pods without waiting. Return whether the API server confirmed it."""
        try:
            self.call("delete", kinds, *which, "--wait=false", "--ignore-not-found")
        except KubectlRefusal as refusal:
            # Two clients may remove the same leftovers.
            return "NotFound" in refusal.complaint
        return True


class PodBoard:
    """Pods of a client, shared by the threads of all its jobs: many polls are answered by one query."""

    def __init__(self, kubectl: Kubectl, client: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._kubectl = kubectl
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_s = float("-inf")
        self._pods: tuple[Pod, ...] | None = None

    def pods(self, job: str, *, since_s: float) -> dict[str, Pod] | None:
        """Return a job's pods by name, in their state at that time or later; None if there is no answer."""
        with self._lock:
            if self._asked_s < since_s:
                # Before the query: an answer may be older than its arrival.
                asked_s = self._clock()
                found = self._kubectl.read(ListOf[Pod], "pods", f"--selector={CLIENT}={self._client}")
                self._pods = None if found is None else found.items
                self._asked_s = asked_s
            if self._pods is None:
                return None
            return {pod.metadata.name: pod for pod in self._pods if pod.metadata.labels.get(JOB) == job}


def clean(stderr: str) -> str:
    """Remove kubectl's own log lines and repetitions from its complaints."""
    lines = [line.strip() for line in stderr.splitlines()]
    # E1123 10:15:00.123456   4711 memcache.go:265] couldn't get current server API group list
    kept = [line for line in lines if line and not re.match(r"[EWI]\d{4} ", line)]
    return "; ".join(dict.fromkeys(kept))
