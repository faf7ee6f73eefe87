"""Process groups."""

from __future__ import annotations

import re
import resource
import sys
import threading
import weakref
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from disttest.host.imports import loaded
from disttest.observe import store_calls, unobserved
from disttest.observe.groups import living_groups, timeout_s
from disttest.plugins.state_facets.interpreter import never, threads
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
    is_of_mesh: bool
    """Whether it belongs to a DeviceMesh, which has no function that destroys its groups."""


def _groups() -> dict[str, Any]:
    return {
        "default" if group is dist.group.WORLD else name: group for group, name in living_groups().items()
    }


def read_groups() -> Values:
    """The living groups by name; the default group is called ``default``."""
    return {
        name: _Living(
            id(group),
            timeout_s(group),
            _store_limit_s() if name == "default" else None,
            str(getattr(group, "group_desc", "")).startswith("mesh_"),
        )
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
    if now is not MISSING and then is MISSING and getattr(now, "is_of_mesh", False):
        return ""
    if now is MISSING or then is MISSING or now.id != then.id:
        return presence(what, now, then)
    store = "" if now.limit_s != then.limit_s else " store"
    return f"time limit of {what}{store}: {then[1 + bool(store)]:g} s became {now[1 + bool(store)]:g} s"


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
    if not dist.is_available() or not dist.is_initialized() or (threading.active_count() > 1 and threads()):
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


def _handlers() -> dict[str, Any]:
    """The functions of ``init_method`` by scheme, as in ``env://``."""
    handlers: dict[str, Any] = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    return handlers


def _restore_handler(scheme: str, then: Any) -> bool:
    _handlers().pop(scheme, None)
    if then is not MISSING:
        _handlers()[scheme] = then
    return True


def _has_agent() -> bool:
    rpc = loaded("torch.distributed.rpc.api")
    return rpc is not None and rpc._is_current_rpc_agent_set()


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
    Facet("process group", read_groups, _restore, _describe_group, made_for_tests=True),
    Facet("rendezvous handler", lambda: dict(_handlers()), _restore_handler, presence),
    settings(
        "torch.distributed",
        Setting("debug level", _dist.get_debug_level, _dist.set_debug_level),
        Setting("time limit of new groups", *attribute(_c10d(), "default_pg_timeout")),
        # torch's coalescing manager stays open after an exception. Collectives of the group then only wait for its end.
        Setting("open coalescing", lambda: bool(_c10d()._world.pg_coalesce_state)),
        Setting("agent of RPC", _has_agent),
    ),
)
