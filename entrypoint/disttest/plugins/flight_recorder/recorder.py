"""Reading of torch's flight recorder in the rank itself: gloo has no watchdog that would write it.

The recorder: https://docs.pytorch.org/tutorials/prototype/flight_recorder_tutorial.html.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from disttest.host.imports import replaced_entry
from disttest.model import Collective
from disttest.outgoing import outgoing
from disttest.results.hang_findings import HARNESS_PLACES, is_torchs

KEPT = 100
"""Number of a test's last collectives that are reported. The raw dump has all of them."""

_INTERNAL = (
    "/torch/csrc/",
    *HARNESS_PLACES,
    "/disttest/observe/",
    "/_pytest/",
    "/pluggy/",
    "/typing_extensions.py",
)
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
"""The recorder uses names of C++; reports use torch's names in Python."""


def recorded_calls(rank: int, since_s: float, folder: Path) -> tuple[Collective, ...] | None:
    """Write the dump for torch's own analyser (see :func:`dump_path`); return the parsed calls.

    Args:
        rank: number of this rank.
        since_s: start of the test, in seconds since the epoch.
        folder: folder with the logs of the test.
    """
    records = list(_dumps())
    if not records:
        return None
    record = merge_dumps(records)
    record["pg_config"] = {**record.get("pg_config", {}), **_groups()}
    record["pg_config"].pop("", None)
    # Names of groups and files are chosen by users and may contain values to mask.
    record = outgoing.tree(record) if outgoing.active else record
    whole = dump_path(folder, rank)
    whole.parent.mkdir(parents=True, exist_ok=True)
    pending = whole.with_name(f"{whole.name}.pending")
    pending.write_bytes(pickle.dumps(record, protocol=2))
    # The world may kill this rank in the middle of the write, and the analyser cannot read half a dump.
    pending.rename(whole)
    return tuple(read_dump(record, since_s=since_s))[-KEPT:]


def _groups() -> dict[str, dict[str, str]]:
    """Return every process group of this rank in the format of the dump, which contains only NCCL's groups."""
    # torch's own analyser stops without the names of all groups.
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return {}
    # torch has no public list of groups (torch 2.9 to 2.15).
    return {
        name: {
            "name": name,
            "desc": "default_pg" if group is c10d.GroupMember.WORLD else group.group_desc,
            "ranks": str(sorted(c10d._world.pg_group_ranks[group])),  # noqa: SLF001
        }
        # torch has no public list of groups
        for group, name in list(c10d._world.pg_names.items())  # noqa: SLF001
    }


def _without_inductor() -> AbstractContextManager[None]:
    """Keep torch's symbolizer from importing ``torch._inductor``, which takes seconds, only to check for it.

    It evaluates ``hasattr(torch, "_inductor")``, and the attribute is created by importing the module. (torch 2.13,
    ``combined_traceback.cpp``; frames of compiled code are found if the test has imported it.) At a deadline that
    had taken a second or two of every rank.
    """
    return replaced_entry(vars(sys.modules["torch"]), "_inductor", types.SimpleNamespace())


def dump_path(folder: Path, rank: int) -> Path:
    """Return the path of the dump, in a folder that has only the dumps of all ranks, as the analyser requires."""
    return folder / "flight" / f"rank_{rank}"


_RECORDERS = ("_dump_fr_trace", "_dump_nccl_trace")
"""torch has one recorder for gloo and similar backends and one for NCCL, each with its own dump function."""


def _dumps() -> Iterator[dict[str, Any]]:
    """Yield the dump of each recorder of this torch. A failing one does not hide the other."""
    module = sys.modules.get("torch._C._distributed_c10d")
    for name in _RECORDERS:
        with contextlib.suppress(AttributeError, RuntimeError), _without_inductor():
            yield pickle.loads(getattr(module, name)())  # noqa: S301  # made by this process


def merge_dumps(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge several dumps of one rank: all entries once, in the order of their calls, and the union of other data."""
    merged: dict[str, Any] = {}
    entries: dict[tuple[Any, ...], Any] = {}
    for record in records:
        for name, value in record.items():
            known = merged.get(name)
            merged[name] = {**known, **value} if isinstance(known, dict) else value
        for entry in record.get("entries", ()):
            # In a torch whose two recorders share their memory, both dumps have all calls.
            entries.setdefault(_identity(entry), entry)
    return {**merged, "entries": sorted(entries.values(), key=lambda entry: entry.get("time_created_ns", 0))}


def _identity(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key of a call. If torch's recorders share their memory, each entry is dumped twice."""
    names = ("time_created_ns", "process_group", "profiling_name", "collective_seq_id", "p2p_seq_id", "op_id")
    return tuple(str(entry.get(name)) for name in names)


def read_dump(dump: Mapping[str, Any], *, since_s: float) -> Iterator[Collective]:
    """Yield the entries of a dump since a moment (epoch seconds), oldest first."""
    # Entries that cannot be parsed are skipped.
    for entry in dump.get("entries", ()):
        with contextlib.suppress(KeyError, TypeError, IndexError, ValueError):
            if entry["time_created_ns"] / 1e9 >= since_s:
                yield _collective(entry, dump.get("pg_config", {}))


def _collective(entry: Mapping[str, Any], groups: Mapping[str, Mapping[str, str]]) -> Collective:
    group_name, description = entry["process_group"]
    where = next((frame for frame in entry.get("frames", ()) if _is_user(frame)), None)
    backend, _, op = entry["profiling_name"].rpartition(":")
    return Collective(
        group=_group(group_name, description),
        seq=entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"],
        op=op,
        backend=backend,
        inputs=_tensors(entry["input_sizes"], entry["input_dtypes"]),
        outputs=_tensors(entry["output_sizes"], entry["output_dtypes"]),
        done=bool(entry.get("retired")) or entry["state"] == "completed",
        at_s=entry["time_created_ns"] / 1e9,
        where=f"{Path(where['filename']).name}:{where['line']}" if where else "",
        p2p=entry["is_p2p"],
        ranks=tuple(json.loads(groups.get(group_name, {}).get("ranks", "[]"))),
    )


def _group(name: str, description: str) -> str:
    if description == "default_pg":
        return "default"
    return f"#{name}" if description in ("", "undefined") else description


def _is_user(frame: Mapping[str, Any]) -> bool:
    file = frame["filename"]
    return not is_torchs(file) and not any(part in file for part in _INTERNAL)


def _tensors(sizes: Any, dtypes: Any) -> str:
    return ", ".join(f"{_DTYPES.get(of, of)}{list(size)}" for size, of in zip(sizes, dtypes, strict=False))
