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
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from disttest.masking import masker
from disttest.model import Collective

KEPT = 100
"""The last so many collectives of a test are told; the raw dump has them all."""

ENVIRONMENT = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_CPP_STACK": "0"}

_encoder = msgspec.json.Encoder()
_INTERNAL = ("/torch/", "/disttest/running/", "/_pytest/", "/pluggy/")


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
            write_flight(Path(target), rank, since_s=_since_s)


_since_s = 0.0


def note_start() -> None:
    """A test starts: what was called before does not belong to it."""
    global _since_s  # one rank per process
    _since_s = time.time()  # noqa: TID251  # the recorder stamps with the wall clock


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
    """Write our reading of the record as ``target``, then again with the places of the calls, and the raw dump.

    Without places it takes no time; the first one with places takes about a second of work. The raw dump
    (``rank_<k>``, which torch's own analyser reads) comes last: once it is there, all is.
    """
    dump = _dump_function()
    if dump is None:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    _write_reading(target, dump(includeStackTraces=False), since_s)
    whole = dump()
    _write_reading(target, whole, since_s)
    _write_whole(raw_dump(target, rank), _masked(whole))


def raw_dump(target: Path, rank: int) -> Path:
    """Where the raw dump lies, beside our reading of it."""
    return target.parent / f"rank_{rank}"


def _write_reading(target: Path, dump: bytes, since_s: float) -> None:
    entries = pickle.loads(dump)  # noqa: S301  # made by this very process
    told = tuple(read_dump(masker.tree(entries), since_s=since_s))[-KEPT:]
    _write_whole(target, _encoder.encode(told))


def _masked(dump: bytes) -> bytes:
    """The dump without values that are to be hidden: names of groups and of files are the users' own."""
    if not masker.active:
        return dump
    return pickle.dumps(masker.tree(pickle.loads(dump)), protocol=2)  # noqa: S301  # made by this very process


def _write_whole(path: Path, data: bytes) -> None:
    pending = path.with_name(f"{path.name}.pending")
    pending.write_bytes(data)
    pending.rename(path)


def _dump_function() -> Callable[..., bytes] | None:
    return getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace", None)


def read_answer(target: Path) -> tuple[Collective, ...]:
    """The collectives in an answer."""
    return msgspec.json.decode(target.read_bytes(), type=tuple[Collective, ...])


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
        group="default"
        if description == "default_pg"
        else description
        if description not in ("", "undefined")
        else f"#{group_name}",
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
    return ", ".join(f"{dtype}{list(size)}" for size, dtype in zip(sizes, dtypes, strict=False))
