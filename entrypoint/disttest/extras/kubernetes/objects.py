"""What is read of Kubernetes' objects: a few fields of pods, nodes and events, whatever else a version puts beside them."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from disttest.model import Frozen


class _Object(Frozen, rename="camel"):
    """Fields as in the API, in its own spelling."""


class Metadata(_Object):
    """Of any object."""

    name: str = ""
    uid: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    deletion_timestamp: str = ""
    """When it was asked to go; empty while nobody has."""


class Condition(_Object):
    """One of the things that a pod or a node is, or is not."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class WaitingContainer(_Object):
    """A container that does not run yet."""

    reason: str = ""
    message: str = ""


class TerminatedContainer(_Object):
    """A container that has ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    """What it wrote to its termination log; the end of its output if it failed without a word."""


class RunningContainer(_Object):
    """A container that runs."""


class ContainerState(_Object):
    """One of three."""

    waiting: WaitingContainer | None = None
    running: RunningContainer | None = None
    terminated: TerminatedContainer | None = None


class ContainerStatus(_Object):
    """A container of a pod."""

    name: str
    state: ContainerState = ContainerState()


class PodStatus(_Object):
    """What became of a pod so far."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class PodSpec(_Object):
    """What was asked for."""

    node_name: str = ""


class Pod(_Object):
    """A pod."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def is_true(self, condition: str) -> Condition | None:
        """A condition, if it holds."""
        return next((c for c in self.status.conditions if c.type == condition and c.status == "True"), None)

    def state_of(self, container: str) -> ContainerState:
        """What a container does; of one that is not known yet, nothing."""
        return next(
            (c.state for c in self.status.container_statuses if c.name == container), ContainerState()
        )


class Taint(_Object):
    """What keeps pods off a node."""

    key: str
    value: str = ""
    effect: str = ""


class Toleration(_Object):
    """What lets a pod on a node all the same."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeSpec(_Object):
    """Whether it takes pods."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(_Object):
    """What it has, and how it is."""

    allocatable: dict[str, str] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class Node(_Object):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> Condition:
        """Whether its kubelet says that it is well."""
        unknown = Condition(type="Ready", status="Unknown", reason="NeverSeen")
        return next((c for c in self.status.conditions if c.type == "Ready"), unknown)


class ClusterEvent(_Object):
    """What some part of the cluster noted about an object."""

    reason: str = ""
    message: str = ""


class WantedSpec(_Object):
    """Where the pods of a template may go."""

    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()


class WantedPod(_Object):
    """A pod that is to be made, as far as it decides where it may go."""

    spec: WantedSpec = WantedSpec()


class Owned(_Object):
    """An object of which only the name matters."""

    metadata: Metadata


_T = TypeVar("_T")


class ListOf(_Object, Generic[_T]):
    """What ``kubectl get`` answers."""

    items: tuple[_T, ...] = ()
