"""Kubernetes objects: the few fields of pods, nodes and events that are read. Other fields are ignored."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from disttest.model import Frozen


class _Object(Frozen, rename="camel"):
    """Base class of objects, with the field names of the API."""


class Metadata(_Object):
    """Metadata of an object."""

    name: str = ""
    uid: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    deletion_timestamp: str = ""
    """Time of the deletion request; empty if there is none."""


class Condition(_Object):
    """A condition of a pod or node."""

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
    """Termination log; the end of the output if the container failed without one."""


class RunningContainer(_Object):
    """A container that runs."""


class ContainerState(_Object):
    """State of a container; one of the three fields is set."""

    waiting: WaitingContainer | None = None
    running: RunningContainer | None = None
    terminated: TerminatedContainer | None = None


class ContainerStatus(_Object):
    """Status of a container of a pod."""

    name: str
    state: ContainerState = ContainerState()


class PodStatus(_Object):
    """Status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class PodSpec(_Object):
    """Specification of a pod."""

    node_name: str = ""


class Pod(_Object):
    """A pod."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def is_true(self, condition: str) -> Condition | None:
        """Return a condition if it holds."""
        return next((c for c in self.status.conditions if c.type == condition and c.status == "True"), None)

    def state_of(self, container: str) -> ContainerState:
        """Return the state of a container; an empty state if it is not known yet."""
        return next(
            (c.state for c in self.status.container_statuses if c.name == container), ContainerState()
        )


class Taint(_Object):
    """A taint, which keeps pods off a node."""

    key: str
    value: str = ""
    effect: str = ""


class Toleration(_Object):
    """A toleration, which permits a pod on a tainted node."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeSpec(_Object):
    """Specification of a node: whether it takes pods."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(_Object):
    """Status of a node."""

    allocatable: dict[str, str] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class Node(_Object):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> Condition:
        """The condition Ready, which the kubelet reports."""
        # A node that has just joined has no conditions yet.
        unknown = Condition(type="Ready", status="Unknown", reason="NeverSeen")
        return next((c for c in self.status.conditions if c.type == "Ready"), unknown)


class ClusterEvent(_Object):
    """An event of an object."""

    reason: str = ""
    message: str = ""


class WantedSpec(_Object):
    """Constraints on the nodes for pods of a template."""

    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()


class WantedPod(_Object):
    """The part of a planned pod that decides its node."""

    spec: WantedSpec = WantedSpec()


class Owned(_Object):
    """An object of which only the metadata matters."""

    metadata: Metadata


_T = TypeVar("_T")


class ListOf(_Object, Generic[_T]):
    """List that ``kubectl get`` returns."""

    items: tuple[_T, ...] = ()
