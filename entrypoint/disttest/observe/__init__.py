"""A layer that observes every collective of this process and notifies tools of it::

    class Count(Tool):
        def on_issue(self, call):
            print(call.op, call.group.name, call.seq, call.site)

    with observing(Count()):
        dist.all_reduce(tensor)

It observes each collective and point-to-point call of a process group (``Call``), from any caller: Python, DDP's
reducer, FSDP, DTensor, pipelines, compiled code, any thread. It also observes each wait (``Wait``) for a call, a
future, a store's key, a group under construction or a backward pass, and the creation and destruction of groups.
:func:`gaps` lists the calls that it cannot observe in this version of torch, :data:`BLIND_SPOTS` those in all versions.

Operations on tensors cost nothing while no tool requests them (:func:`watching_operations`); a collective costs
about 30 µs. Importing this package changes nothing in torch. :func:`uninstall`, and the end of :func:`observing`,
restore torch completely.
"""

# A plugin could be left out under the plugins that need it, so this is a library of the core.
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
