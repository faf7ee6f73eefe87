"""One layer that sees every collective of this process, and tells tools of it.

    class Count(Tool):
        def on_issue(self, call):
            print(call.op, call.group.name, call.seq, call.site)

    with observing(Count()):
        dist.all_reduce(tensor)

What it sees, whoever issues it (Python, DDP's reducer, FSDP, DTensor, pipelines, compiled code, any thread): each
collective and point-to-point call of a process group (``Call``), each wait for one, for a future, a store's key, a group
that is being made, a backward pass (``Wait``), and groups as they come and go. What it does not is said by :func:`gaps`
for this version of torch, and in :data:`BLIND_SPOTS` for all.

Operations on tensors cost nothing while no tool asks for them (:func:`watching_operations`), a collective some 30 µs.
Importing this changes nothing in torch; :func:`uninstall`, and the end of :func:`observing`, leave nothing of it there.
"""

from disttest.observe.hub import held_calls, unobserved
from disttest.observe.install import (
    BLIND_SPOTS,
    gaps,
    install,
    is_of_observer,
    is_watching,
    observing,
    prepare,
    store_calls,
    uninstall,
    watching_operations,
)
from disttest.observe.records import (
    ANY_SOURCE,
    Call,
    Group,
    Site,
    Spec,
    StoreCall,
    Wait,
    WaitKind,
    as_text,
    spec_of,
)
from disttest.observe.tool import Tool

__all__ = [
    "ANY_SOURCE",
    "BLIND_SPOTS",
    "Call",
    "Group",
    "Site",
    "Spec",
    "StoreCall",
    "Tool",
    "Wait",
    "WaitKind",
    "as_text",
    "gaps",
    "held_calls",
    "install",
    "is_of_observer",
    "is_watching",
    "observing",
    "prepare",
    "spec_of",
    "store_calls",
    "uninstall",
    "unobserved",
    "watching_operations",
]
