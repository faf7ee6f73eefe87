"""Faults in collectives, messages, objects, groups and stores."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .faults import SINGLE_GATHER, SINGLE_SCATTER, DoneAlready, Fault, fault, replace

SUM, MAX, MIN, PRODUCT = dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT
REDUCE = "collectives/test_reductions.py"
GATHER = "collectives/test_gathering.py"
MESSAGES = "collectives/test_point_to_point.py"
OBJECTS = "collectives/test_objects.py"
GROUPS = "collectives/test_groups.py"
BARRIERS = "collectives/test_barriers.py"
STORES = "collectives/test_stores.py"
ASYNC = "collectives/test_async.py"


def _forgetting(call: Any) -> Any:
    """The reduction runs over zeros of this rank."""
    return lambda tensor, *a, **k: call(tensor.zero_() if not tensor.is_sparse else tensor, *a, **k)


def _not_copied_back(call: Any) -> Any:
    return lambda tensor, *a, **k: call(tensor.clone(), *a, **k)


def _with_op(call: Any, wanted: Any, instead: Any) -> Any:
    def changed(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        names = (
            ("op", "group", "async_op")
            if call.__name__ == "all_reduce"
            else ("dst", "op", "group", "async_op")
        )
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if given.get("op", SUM) == wanted:
            given["op"] = instead
        return call(tensor, **given)

    return changed


def _narrowed(call: Any) -> Any:
    def changed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.dtype == torch.float64:
            tensor.copy_(tensor.float())
        result = call(tensor, *args, **kwargs)
        if tensor.dtype == torch.float64 and result is None:
            tensor.copy_(tensor.float())
        return result

    return changed


def _all_but_last(call: Any) -> Any:
    def changed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.is_sparse or tensor.numel() < 2 or not tensor.is_contiguous():
            return call(tensor, *args, **kwargs)
        return call(tensor.view(-1)[:-1], *args, **kwargs)

    return changed


def _in_the_world(call: Any) -> Any:
    def changed(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("group", None)
        return call(*args, **kwargs)

    return changed


def _root_is_first(call: Any) -> Any:
    """Source or destination is the first rank of the group, whatever was asked for."""

    def changed(*args: Any, **kwargs: Any) -> Any:
        group = kwargs.get("group") or c10d._get_default_group()
        first = dist.get_process_group_ranks(group)[0]
        for name in ("src", "dst", "group_src", "group_dst"):
            if kwargs.get(name) is not None:
                kwargs[name] = first if not name.startswith("group") else 0
        return call(*args, **kwargs)

    return changed


def _rotated(values: list[Any]) -> list[Any]:
    return values[1:] + values[:1]


def _slots_rotated(call: Any) -> Any:
    """The received pieces are one place off."""

    def changed(slots: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(slots, *args, **kwargs)
        if slots and not kwargs.get("async_op"):
            rotated = _rotated([each.clone() if isinstance(each, torch.Tensor) else each for each in slots])
            for index, value in enumerate(rotated):
                if isinstance(value, torch.Tensor):
                    slots[index].copy_(value)
                else:
                    slots[index] = value
        return result

    return changed


def _rows_rotated(call: Any) -> Any:
    def changed(output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = call(output, *args, **kwargs)
        output.copy_(output.roll(1, 0))
        return result

    return changed


_REDUCTIONS = {
    "contribution-left-out": ("a rank's values are left out of the sum", _forgetting, True),
    "not-copied-back": ("the result stays in a copy", _not_copied_back, True),
    "max-for-sum": ("the largest value instead of the sum", lambda call: _with_op(call, SUM, MAX), False),
    "sum-for-max": ("the sum instead of the largest value", lambda call: _with_op(call, MAX, SUM), False),
    "sum-for-product": ("the sum instead of the product", lambda call: _with_op(call, PRODUCT, SUM), False),
    "max-for-min": ("the largest instead of the smallest", lambda call: _with_op(call, MIN, MAX), False),
    "last-element-skipped": ("the last element is not reduced", _all_but_last, False),
    "narrowed": ("doubles travel as single precision", _narrowed, False),
}


def _declare_reductions() -> None:
    for name, (says, change, both) in _REDUCTIONS.items():

        def plant(this: Fault, change: Any = change) -> None:
            replace("all_reduce", change, this)

        fault(f"all-reduce-{name}", f"all_reduce: {says}", suite=REDUCE, both=both)(plant)
    for name in ("not-copied-back", "max-for-sum", "max-for-min"):
        says, change, _ = _REDUCTIONS[name]

        def plant_reduce(this: Fault, change: Any = change) -> None:
            replace("reduce", change, this)

        fault(f"reduce-{name}", f"reduce: {says}", suite=REDUCE)(plant_reduce)


_declare_reductions()


@fault("reduce-contribution-left-out", "reduce: one rank's values are left out", suite=REDUCE, one_rank=True)
def _(this: Fault) -> None:
    replace("reduce", _forgetting, this)


@fault("all-reduce-wrong-group", "all_reduce runs over the world, whatever the group", suite=REDUCE)
def _(this: Fault) -> None:
    replace("all_reduce", _in_the_world, this)


@fault("broadcast-wrong-group", "broadcast runs over the world, whatever the group", suite=REDUCE)
def _(this: Fault) -> None:
    replace("broadcast", _in_the_world, this)


@fault(
    "async-done-too-early",
    "an asynchronous all_reduce claims to be done at once",
    suite=f"{ASYNC} {REDUCE}",
    both=True,
)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Any:
            work = call(*args, **kwargs)
            return DoneAlready(work) if work is not None else None

        return changed

    replace("all_reduce", make, this)


for _name, _suite in {"broadcast": REDUCE, "reduce": REDUCE, "scatter": GATHER, "gather": GATHER}.items():

    def _plant_root(this: Fault, name: str = _name) -> None:
        replace(name, _root_is_first, this)

    fault(
        f"{_name}-wrong-root",
        f"{_name}: the root is the group's first rank, whatever was asked for",
        suite=_suite,
    )(_plant_root)


@fault("broadcast-not-received", "broadcast: what arrives stays in a copy", suite=REDUCE, both=True)
def _(this: Fault) -> None:
    replace("broadcast", _not_copied_back, this)


@fault("broadcast-narrowed", "broadcast: doubles travel as single precision", suite=REDUCE)
def _(this: Fault) -> None:
    replace("broadcast", _narrowed, this)


for _name in ("all_gather", "all_to_all"):

    def _plant_slots(this: Fault, name: str = _name) -> None:
        replace(name, _slots_rotated, this)

    fault(f"{_name}-permuted", f"{_name}: the pieces are one place off", suite=GATHER, both=True)(
        _plant_slots
    )


@fault("all-gather-last-missing", "all_gather: the last slot is not filled", suite=GATHER)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda slots, *a, **k: call([*slots[:-1], slots[-1].clone()], *a, **k)

    replace("all_gather", make, this)


@fault("all-gather-real-part-only", "all_gather: complex numbers lose their imaginary part", suite=GATHER)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda slots, x, *a, **k: call(slots, x.real.to(x.dtype) if x.is_complex() else x, *a, **k)

    replace("all_gather", make, this)


@fault("gather-permuted", "gather: the pieces are one place off at the destination", suite=GATHER)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda x, slots=None, *a, **k: call(x, slots and _rotated(slots), *a, **k)

    replace("gather", make, this)


@fault("scatter-permuted", "scatter: the pieces go out one place off", suite=GATHER)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda out, pieces=None, *a, **k: call(out, pieces and _rotated(pieces), *a, **k)

    replace("scatter", make, this)


@fault("all-gather-single-permuted", "the one-tensor all_gather puts pieces one row off", suite=GATHER)
def _(this: Fault) -> None:
    replace(SINGLE_GATHER, _rows_rotated, this)


@fault("reduce-scatter-wrong-piece", "reduce_scatter sums the pieces of the next rank", suite=REDUCE)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda out, pieces, *a, **k: call(out, [p + 1 for p in pieces], *a, **k)

    replace("reduce_scatter", make, this)


@fault(
    "reduce-scatter-left-out", "reduce_scatter: one rank's values are left out", suite=REDUCE, one_rank=True
)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda out, pieces, *a, **k: call(out, [torch.zeros_like(p) for p in pieces], *a, **k)

    replace("reduce_scatter", make, this)


@fault("reduce-scatter-single-off-by-one", "the one-tensor reduce_scatter is one element off", suite=REDUCE)
def _(this: Fault) -> None:
    replace(SINGLE_SCATTER, _rows_rotated, this)


@fault(
    "all-to-all-off-by-one-split",
    "all_to_all_single: an uneven split is cut one row off",
    suite=GATHER,
    both=True,
)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(
            output: Any, source: Any, out_splits: Any = None, in_splits: Any = None, **kwargs: Any
        ) -> Any:
            out_splits = kwargs.pop("output_split_sizes", out_splits)
            in_splits = kwargs.pop("input_split_sizes", in_splits)
            if in_splits:
                source = source.roll(1, 0)
            return call(output, source, out_splits, in_splits, **kwargs)

        return changed

    replace("all_to_all_single", make, this)


@fault("all-to-all-single-permuted", "all_to_all_single: rows arrive one place off", suite=GATHER)
def _(this: Fault) -> None:
    replace("all_to_all_single", _rows_rotated, this)


@fault("coalescing-drops-second", "the coalescing manager forgets all but the first call", suite=REDUCE)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            return call([tensors[0], *(tensor.clone() for tensor in tensors[1:])], *args, **kwargs)

        return changed

    replace("all_reduce_coalesced", make, this)


@fault("objects-lose-a-key", "all_gather_object drops the last key of a dict", suite=OBJECTS)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda slots, thing, *a, **k: call(
            slots, dict(list(thing.items())[:-1]) if isinstance(thing, dict) else thing, *a, **k
        )

    replace("all_gather_object", make, this)


@fault(
    "all-gather-objects-permuted", "all_gather_object: objects are one place off", suite=OBJECTS, both=True
)
def _(this: Fault) -> None:
    replace("all_gather_object", _slots_rotated, this)


@fault(
    "gather-objects-own-only",
    "gather_object fills every slot with the destination's own object",
    suite=OBJECTS,
)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(thing: Any, slots: Any = None, *args: Any, **kwargs: Any) -> Any:
            call(thing, slots, *args, **kwargs)
            if slots is not None:
                slots[:] = [thing] * len(slots)

        return changed

    replace("gather_object", make, this)


@fault(
    "broadcast-objects-wrong-root", "broadcast_object_list always comes from the first rank", suite=OBJECTS
)
def _(this: Fault) -> None:
    replace("broadcast_object_list", _root_is_first, this)


@fault("broadcast-objects-first-only", "broadcast_object_list delivers the first object only", suite=OBJECTS)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(things: Any, *args: Any, **kwargs: Any) -> Any:
            copy = list(things)
            call(copy, *args, **kwargs)
            things[:1] = copy[:1]

        return changed

    replace("broadcast_object_list", make, this)


@fault(
    "scatter-objects-first-for-all", "scatter_object_list gives the first object to everybody", suite=OBJECTS
)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda out, give=None, *a, **k: call(out, give and [give[0]] * len(give), *a, **k)

    replace("scatter_object_list", make, this)


@fault("barrier-returns-at-once", "barrier does not wait", suite=BARRIERS, both=True)
def _(this: Fault) -> None:
    replace("barrier", lambda call: lambda *a, **k: DoneAlready(None) if k.get("async_op") else None, this)


@fault("monitored-barrier-always-passes", "monitored_barrier does not look who is there", suite=BARRIERS)
def _(this: Fault) -> None:
    replace("monitored_barrier", lambda call: lambda *a, **k: None, this)


@fault("monitored-barrier-stops-at-first", "monitored_barrier ignores wait_all_ranks", suite=BARRIERS)
def _(this: Fault) -> None:
    replace(
        "monitored_barrier", lambda call: lambda *a, **k: call(*a, **{**k, "wait_all_ranks": False}), this
    )


@fault("tag-ignored", "messages are matched by order, whatever their tag", suite=MESSAGES)
def _(this: Fault) -> None:
    for name in ("isend", "irecv", "send", "recv"):
        replace(name, lambda call: lambda *a, **k: call(*a, **{**k, "tag": 0}), this)


@fault("recv-wrong-sender", "recv reports another sender than the one it heard", suite=MESSAGES)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda *a, **k: (call(*a, **k) + 1) % dist.get_world_size()

    replace("recv", make, this)


@fault("recv-not-copied", "recv leaves what arrived in a copy", suite=MESSAGES, both=True)
def _(this: Fault) -> None:
    replace("recv", _not_copied_back, this)


@fault("irecv-done-too-early", "irecv claims to be done at once", suite=MESSAGES)
def _(this: Fault) -> None:
    replace("irecv", lambda call: lambda *a, **k: DoneAlready(call(*a, **k)), this)


@fault("send-off-by-one", "send goes out one element shifted", suite=MESSAGES)
def _(this: Fault) -> None:
    replace("send", lambda call: lambda x, *a, **k: call(x.roll(1), *a, **k), this)


@fault("messages-swapped", "the second of two messages overtakes the first", suite=MESSAGES, equivalent="")
def _(this: Fault) -> None:
    held: list[Any] = []

    def make(call: Any) -> Any:
        def changed(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if tensor.numel() != 1:
                return call(tensor, *args, **kwargs)
            if not held:
                held.append(tensor.clone())
                return None
            call(tensor, *args, **kwargs)
            return call(held.pop(), *args, **kwargs)

        return changed

    replace("send", make, this)


@fault("new-group-is-the-world", "new_group gives back the world", suite=GROUPS)
def _(this: Fault) -> None:
    replace("new_group", lambda call: lambda *a, **k: call(), this)


@fault("group-rank-is-global", "get_rank of a group gives the rank in the world", suite=GROUPS)
def _(this: Fault) -> None:
    replace("get_rank", lambda call: lambda group=None: call(), this)


@fault(
    "subgroups-first-for-all", "new_subgroups_by_enumeration gives everybody the first group", suite=GROUPS
)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Any:
            _, every = call(*args, **kwargs)
            return every[0], every

        return changed

    replace("new_subgroups_by_enumeration", make, this)


@fault("subgroup-overlap-allowed", "a rank may be in two enumerated groups", suite=GROUPS)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda lists, *a, **k: call([lists[0]], *a, **k)

    replace("new_subgroups_by_enumeration", make, this)


def _store_method(name: str, make: Any, this: Fault) -> None:
    for kind in (dist.TCPStore, dist.FileStore, dist.HashStore, dist.PrefixStore):
        replace(name, make, this, kind)


def _spares_the_runner(key: Any) -> bool:
    return str(key).startswith(("exchange", "barrier"))


@fault("store-forgets-a-key", "the store forgets keys that end in 0", suite=STORES)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        return lambda store, key, value: (
            None if str(key).endswith("/0") and not _spares_the_runner(key) else call(store, key, value)
        )

    _store_method("set", make, this)


@fault("store-counts-by-one", "add always adds one", suite=STORES)
def _(this: Fault) -> None:
    _store_method("add", lambda call: lambda store, key, amount: call(store, key, min(amount, 1)), this)


@fault("store-compare-set-always-sets", "compare_set does not compare", suite=STORES)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(store: Any, key: str, _expected: str, wanted: str) -> bytes:
            store.set(key, wanted)
            return wanted.encode()

        return changed

    _store_method("compare_set", make, this)


@fault("store-check-says-yes", "check finds every key", suite=STORES)
def _(this: Fault) -> None:
    _store_method("check", lambda call: lambda store, keys: True, this)


@fault("store-does-not-delete", "delete_key says yes and deletes nothing", suite=STORES)
def _(this: Fault) -> None:
    _store_method("delete_key", lambda call: lambda store, key: True, this)


@fault("store-does-not-wait", "wait returns at once", suite=STORES)
def _(this: Fault) -> None:
    def make(call: Any) -> Any:
        def changed(store: Any, keys: Any, *limit: Any) -> Any:
            return call(store, keys, *limit) if any(map(_spares_the_runner, keys)) else None

        return changed

    _store_method("wait", make, this)


@fault(
    "threads-result-of-another-rank",
    "among threads, all_gather fills slots with the next rank's values",
    suite="threaded",
)
def _(this: Fault) -> None:
    replace("all_gather", _slots_rotated, this)


@fault("threads-wrong-root", "among threads, a broadcast always comes from rank 0", suite="threaded")
def _(this: Fault) -> None:
    replace("broadcast", _root_is_first, this)


@fault(
    "threads-left-out",
    "among threads, the last rank's values are left out of the sum",
    suite="threaded",
    one_rank=True,
)
def _(this: Fault) -> None:
    replace("all_reduce", _forgetting, this)
