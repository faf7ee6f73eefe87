"""What collectives this rank has called: torch's flight recorder, read in the rank itself.

Gloo has no watchdog that would write it out, and the main thread may wait in C++ for ever; so a thread
waits (without the GIL) on a named pipe, and writes the record when the world asks for it.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import pickle
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import CLOCK_REALTIME, clock_gettime
from typing import Any

import msgspec

from disttest.host.loaded import stand_in
from disttest.masking import masker
from disttest.model import UNREADABLE, Collective
from disttest.own_frames import HARNESS_PLACES
from disttest.runtime.messages.protocol import Raised, clean_text
from disttest.runtime.rank.in_flight import find_in_flight

KEPT = 100
"""The last so many collectives of a test are told; the raw dump has them all."""

ENVIRONMENT = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_CPP_STACK": "0"}

_encoder = msgspec.json.Encoder()
_INTERNAL = (
    "/torch/",
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
"""The recorder has the names of C++; whoever reads a report knows them from torch."""


def answer_questions(questions: Path, rank: int) -> None:
    """Start the thread; whoever writes a path into the named pipe gets the record there.

    A bare thread, so that tests which count the threads of Python do not see it.
    """
    os.mkfifo(questions)
    _thread.start_new_thread(_answer, (questions, rank))


def _answer(questions: Path, rank: int) -> None:
    while True:
        with questions.open("rb") as pipe:
            target = pipe.read().decode()
        with contextlib.suppress(Exception):  # evidence is welcome, never a new fault
            _write_in_flight(questions)
        with contextlib.suppress(Exception):
            write_flight(Path(target), rank, since_s=_since_s)


_since_s = 0.0


def note_start() -> None:
    """A test starts: what was called before does not belong to it."""
    global _since_s  # one rank per process
    # The recorder stamps with the wall clock; a test that replaces ``time.time`` does not move it.
    _since_s = clock_gettime(CLOCK_REALTIME)


def in_flight_path(questions: Path) -> Path:
    """Where a rank that is asked for its collectives writes the exception that it is handling, before those."""
    return questions.with_suffix(".raised")


def _write_in_flight(questions: Path) -> None:
    raised = find_in_flight()
    if raised is None:
        return
    hidden = msgspec.structs.replace(
        raised,
        message=clean_text(raised.message)[:2000],
        place=clean_text(raised.place),
        details=clean_text(raised.details),
    )
    _write_whole(in_flight_path(questions), _encoder.encode(hidden))


def ask(questions: Path, target: Path) -> bool:
    """Ask a rank for its record at ``target``; False when it does not listen (any more)."""
    try:
        fd = os.open(questions, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, str(target).encode())
    except BrokenPipeError:
        return False
    finally:
        os.close(fd)
    return True


def write_flight(target: Path, rank: int, *, since_s: float) -> None:
    """Write the dump for torch's own analyser (see :func:`dump_path`), then our reading of it as ``target``.

    Once the reading is there, all is.
    """
    records = list(_dumps())
    if not records:
        return
    record = merge_dumps(records)
    record["pg_config"] = {**record.get("pg_config", {}), **_groups()}
    record["pg_config"].pop("", None)
    # Names of groups and of files are the users' own: values that are to be hidden may stand in them.
    record = masker.tree(record) if masker.active else record
    whole = dump_path(target, rank)
    whole.parent.mkdir(parents=True, exist_ok=True)
    _write_whole(whole, pickle.dumps(record, protocol=2))
    _write_whole(target, _encoder.encode(tuple(read_dump(record, since_s=since_s))[-KEPT:]))


def _groups() -> dict[str, dict[str, str]]:
    """Every process group of this rank, as the dump names them: only NCCL's are in it by themselves."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return {}
    return {
        name: {
            "name": name,
            "desc": "default_pg" if group is c10d.GroupMember.WORLD else group.group_desc,
            "ranks": str(sorted(c10d._world.pg_group_ranks[group])),  # noqa: SLF001
        }
        for group, name in list(c10d._world.pg_names.items())  # noqa: SLF001  # no public list of groups exists
    }


def _without_inductor() -> AbstractContextManager[None]:
    """Keep torch's symbolizer from importing ``torch._inductor``, which takes seconds, only to see if it is there.

    It asks ``hasattr(torch, "_inductor")``, and that attribute is made by importing it. (torch 2.13,
    ``combined_traceback.cpp``; frames of compiled code are found where the test has imported it.)
    """
    return stand_in(vars(sys.modules["torch"]), "_inductor", types.SimpleNamespace())


def dump_path(target: Path, rank: int) -> Path:
    """Where the dump lies: in a folder with those of the other ranks and nothing else, as the analyser wants it."""
    return target.parent / "flight" / f"rank_{rank}"


def _write_whole(path: Path, data: bytes) -> None:
    pending = path.with_name(f"{path.name}.pending")
    pending.write_bytes(data)
    pending.rename(path)


_RECORDERS = ("_dump_fr_trace", "_dump_nccl_trace")
"""torch keeps one recorder for gloo and the like, and one for NCCL; each is dumped by a function of its own."""


def _dumps() -> Iterator[dict[str, Any]]:
    """What each recorder of this torch has; one that fails does not hide the other."""
    module = sys.modules.get("torch._C._distributed_c10d")
    for name in _RECORDERS:
        with contextlib.suppress(AttributeError, RuntimeError), _without_inductor():
            yield pickle.loads(getattr(module, name)())  # noqa: S301  # made by this very process


def merge_dumps(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several dumps of one rank as one: all entries, each once, in the order of their calls; what else they tell, united."""
    merged: dict[str, Any] = {}
    entries: dict[tuple[Any, ...], Any] = {}
    for record in records:
        for name, value in record.items():
            known = merged.get(name)
            merged[name] = {**known, **value} if isinstance(known, dict) else value
        for entry in record.get("entries", ()):
            entries.setdefault(_identity(entry), entry)
    return {**merged, "entries": sorted(entries.values(), key=lambda entry: entry.get("time_created_ns", 0))}


def _identity(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells two calls apart: a torch whose recorders share their memory dumps each entry twice."""
    names = ("time_created_ns", "process_group", "profiling_name", "collective_seq_id", "p2p_seq_id", "op_id")
    return tuple(str(entry.get(name)) for name in names)


def read_answer(target: Path) -> tuple[Collective, ...]:
    """The collectives in an answer."""
    return msgspec.json.decode(target.read_bytes(), type=tuple[Collective, ...])


def read_in_flight(questions: Path) -> Raised | None:
    """The exception that the rank was handling, if it has written one."""
    try:
        return msgspec.json.decode(in_flight_path(questions).read_bytes(), type=Raised)
    except (OSError, *UNREADABLE):
        return None


def read_dump(dump: Mapping[str, Any], *, since_s: float) -> Iterator[Collective]:
    """The entries of a dump since a moment (epoch seconds), oldest first; what is not understood is left out."""
    for entry in dump.get("entries", ()):
        with contextlib.suppress(KeyError, TypeError, IndexError):
            if entry["time_created_ns"] / 1e9 >= since_s:
                yield _collective(entry)


def _collective(entry: Mapping[str, Any]) -> Collective:
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
    )


def _group(name: str, description: str) -> str:
    if description == "default_pg":
        return "default"
    return f"#{name}" if description in ("", "undefined") else description


def _is_user(frame: Mapping[str, Any]) -> bool:
    return not any(part in frame["filename"] for part in _INTERNAL)


def _tensors(sizes: Any, dtypes: Any) -> str:
    return ", ".join(f"{_DTYPES.get(of, of)}{list(size)}" for size, of in zip(sizes, dtypes, strict=False))
