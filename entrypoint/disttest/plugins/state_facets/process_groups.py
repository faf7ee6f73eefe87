"""Process groups."""

from __future__ import annotations

import re
import resource
import sys
import threading
import weakref
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from disttest.observe import store_calls, unobserved
from disttest.observe.groups import living_groups, timeout_s
from disttest.plugins.state_facets.interpreter import never
from disttest.runtime.rank.facet import (
    MISSING,
    Facet,
    Setting,
    Values,
    attribute,
    is_same,
    presence,
    settings,
)

_dist: Any = dist
# Keys that torch's own groups use to find each other, and keys of the bundled suites, which are never reused.
_HARMLESS = re.compile(r"//|^(store_based_barrier_key|default_pg|nccl|worker_count|rpc|disttest/)|^\d+$")
# Prefix of the keys of a world's default group, and of a group created by ``env://``.
_PREFIX = re.compile(r"disttest/\d+/(\d+//)?|/worker/attempt_\d+/")


class _Living(NamedTuple):
    """A living process group."""

    id: int
    limit_s: float | None
    """Time limit of its calls in seconds; None if torch does not report it."""
    store_limit_s: float | None
    """Time limit of the default group's store in seconds."""


def _groups() -> dict[str, Any]:
    return {
        "default" if group is dist.group.WORLD else name: group for group, name in living_groups().items()
    }


def read_groups() -> Values:
    """The living groups by name; the default group is called ``default``."""
    return {
        name: _Living(id(group), timeout_s(group), _store_limit_s() if name == "default" else None)
        for name, group in _groups().items()
    }


def _store_limit_s() -> float:
    return float(_c10d()._get_default_store().timeout.total_seconds())


def _restore(name: str, then: Any) -> bool:
    """Destroy a group that the test left, or restore its limits; a replaced default group cannot be restored."""
    group = _groups().get(name)
    if then is MISSING and name != "default":
        if group is not None:
            dist.destroy_process_group(group)
        return True
    # A group of the same name with another identity was made by the test, and its peers may be gone.
    if group is None or then is MISSING or then.id != id(group):
        return False
    if then.limit_s is not None:
        # No public name as of torch 2.13.
        _c10d()._set_pg_timeout(timedelta(seconds=then.limit_s), group)
    if then.store_limit_s is not None:
        _c10d()._get_default_store().set_timeout(timedelta(seconds=then.store_limit_s))
    return is_same(read_groups().get(name), then)


def _describe_group(what: str, now: Any, then: Any) -> str:
    if now is MISSING or then is MISSING or now.id != then.id:
        return presence(what, now, then)
    store = "" if now.limit_s != then.limit_s else " store"
    return f"time limit of {what}{store}: {then[1 + bool(store)]:g} s became {now[1 + bool(store)]:g} s"


def _count_groups() -> Values:
    """Count the groups that were made and those that are left; without a default group: whether torch keeps meshes."""
    if not dist.is_available() or not dist.is_initialized():
        return {"groups": _keeps_meshes()}
    # Private (torch 2.9 to 2.15). It numbers the groups whose names are no hashes of their ranks.
    return {"groups": (_c10d()._world.group_count, len(living_groups()))}


# DTensor's caches take a DeviceMesh for an equal one of an earlier test, whose groups are gone: an operation then fails,
# or uses another group of that name. Not all of these caches can be cleared.
def _no_cache_knows_them(_name: str, _then: Any) -> bool:
    return not _keeps_meshes()


def _describe_nothing(_what: str, _now: Any, _then: Any) -> str:
    # The test has done nothing wrong. Groups that it left are named one by one.
    return ""


def _keeps_meshes() -> bool:
    """Whether torch keeps meshes in its caches: DTensor of its operations, torch 2.9 of parts of meshes."""
    # Private (torch 2.9 to 2.15): torch/distributed/device_mesh.py, torch/distributed/tensor/_sharding_prop.py and
    # torch/distributed/tensor/debug/__init__.py.
    meshes = getattr(sys.modules.get("torch.distributed.device_mesh"), "_mesh_resources", None)
    if getattr(meshes, "child_to_root_mapping", None):
        return True
    api = sys.modules.get("torch.distributed.tensor._api")
    if api is None:
        return False
    try:
        in_python = api.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_info().misses
    except AttributeError:  # a test has put something else in its place
        return True
    in_cpp = getattr(torch._C, "_get_DTensor_sharding_propagator_cache_stats", lambda: (0, 0))()
    return bool(in_python or any(in_cpp))


def _c10d() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]


class _Listed(NamedTuple):
    """The latest list of store keys, and the conditions under which it stays valid."""

    values: Values
    group: weakref.ref[Any]
    store_calls: int | None
    children: Any
    """Resource usage of ended children, which may have called the store too."""


_listed: _Listed | None = None


def list_keys_anew() -> None:
    """Discard the list: another rank may have set keys."""
    global _listed
    _listed = None


def _store_keys() -> Values:
    """List the keys of tests in the world's store, which the next test would find.

    Listing costs a seventh of a small test, so it is repeated only if this process may have called the store since.
    """
    global _listed  # one default group per process
    if not dist.is_available() or not dist.is_initialized() or threading.active_count() > 1:
        # A thread that waits for a key holds the store's lock.
        return {}
    group, calls, children = dist.group.WORLD, store_calls(), resource.getrusage(resource.RUSAGE_CHILDREN)
    if (
        _listed is None
        or _listed.group() is not group
        or calls is None
        # Children that were waited for change this usage, and they may have called the store.
        or (_listed.store_calls, _listed.children) != (calls, children)
    ):
        # Weak: the list must not keep a group alive that a test destroys.
        _listed = _Listed(_keys_of_tests(), weakref.ref(group), calls, children)
    return _listed.values


def _keys_of_tests() -> Values:
    from torch.distributed import distributed_c10d as c10d

    store = c10d._get_default_store()
    # The keys are read below all prefixes, because a test may have added prefixes to its stores.
    while isinstance(store, _dist.PrefixStore):
        store = store.underlying_store
    # The request comes from disttest, not from the test.
    with unobserved():
        # torch 2.9 cannot list keys: https://github.com/pytorch/pytorch/pull/167883
        keys = store.list_keys() if hasattr(store, "list_keys") else ()
    return {key: True for key in keys if not _HARMLESS.search(_PREFIX.sub("", key, count=1))}


def _describe_key(what: str, now: Any, then: Any) -> str:
    return presence(_PREFIX.sub("", what), now, then)


FACETS = (
    Facet(
        "store key",
        _store_keys,
        never,
        _describe_key,
        made_for_tests=True,
        by_world=True,
        forget=list_keys_anew,
    ),
    Facet("DTensor", _count_groups, _no_cache_knows_them, _describe_nothing, made_for_tests=True),
    Facet("process group", read_groups, _restore, _describe_group, made_for_tests=True),
    settings(
        "torch.distributed",
        Setting("debug level", _dist.get_debug_level, _dist.set_debug_level),
        Setting("time limit of new groups", *attribute(_c10d(), "default_pg_timeout")),
    ),
)
