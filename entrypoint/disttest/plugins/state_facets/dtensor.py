"""DTensor, and the DeviceMeshes that torch remembers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
import torch.distributed as dist

from disttest.host.imports import loaded
from disttest.observe import groups
from disttest.runtime.rank.facet import MISSING, Facet, Values

_IMPLICIT, _LOSS = "implicit replication", "loss_parallel"


def _count_groups() -> Values:
    """Count groups that were made, destroyed and left; without a default group: whether torch keeps meshes."""
    if not dist.is_available() or not dist.is_initialized():
        return {"groups": _keeps_meshes()}
    # Private (torch 2.9 to 2.15). It numbers the groups whose names are no hashes of their ranks.
    return {
        "groups": (dist.distributed_c10d._world.group_count, groups.destroyed, len(groups.living_groups()))
    }


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
    meshes = getattr(loaded("torch.distributed.device_mesh"), "_mesh_resources", None)
    if getattr(meshes, "child_to_root_mapping", None):
        return True
    if (api := _api()) is None:
        return False
    try:
        in_python = api.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_info().misses
    except AttributeError:  # a test has put something else in its place
        return True
    in_cpp = getattr(torch._C, "_get_DTensor_sharding_propagator_cache_stats", lambda: (0, 0))()
    return bool(in_python or any(in_cpp))


def _api() -> Any:
    return loaded("torch.distributed.tensor._api")


def _loss() -> Any:
    return loaded("torch.distributed.tensor.parallel.loss")


def _settings() -> Values:
    """The settings that are on. Private (torch 2.9 to 2.15), and off by default."""
    if _api() is None:
        return {}
    dispatcher = _api().DTensor._op_dispatcher
    is_on = {
        _IMPLICIT: dispatcher._allow_implicit_replication,
        _LOSS: _loss() is not None
        and _loss().customized_loss_ops.keys() <= dispatcher._custom_op_handlers.keys(),
    }
    return {name: True for name, on in is_on.items() if on}


def _restore(name: str, then: Any) -> bool:
    if name == _IMPLICIT:
        _api().DTensor._op_dispatcher._allow_implicit_replication = then is not MISSING
    elif then is MISSING:
        _loss()._disable_custom_loss_ops()
    else:
        _loss()._enable_custom_loss_ops()
    return True


def _context_parallel() -> Any:
    return getattr(loaded("torch.distributed.tensor.experimental._attention"), "_cp_options", None)


def _changed_options() -> Values:
    """The options of context parallelism that do not have their defaults. Private (torch 2.9 to 2.15)."""
    options = _context_parallel()
    if options is None:
        return {}
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in values.items() if value != getattr(type(options), name, MISSING)}


def _restore_option(name: str, then: Any) -> bool:
    options = _context_parallel()
    setattr(options, name, getattr(type(options), name) if then is MISSING else then)
    return True


FACETS = (
    Facet(
        "groups of DeviceMeshes", _count_groups, _no_cache_knows_them, _describe_nothing, made_for_tests=True
    ),
    Facet("DTensor", _settings, _restore),
    Facet("context parallelism", _changed_options, _restore_option),
)
