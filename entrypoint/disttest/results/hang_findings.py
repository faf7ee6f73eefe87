"""Explain why a world hangs, from the calls and the stacks of each rank. Pure.

Ranks agree as long as they have made the same call at the same sequence number of a group. The first call where they
differ is the finding; if the recorder knows nothing, the stacks decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import islice
from typing import NamedTuple

import msgspec

from disttest.model import (
    Collective,
    Outcome,
    RankEnd,
    RankRecord,
    process_name,
    rank_names,
    short_place,
)
from disttest.planning.backends import backend_named

HARNESS_PLACES = (
    "/disttest/runtime/",
    "/disttest/extras/",
    "/disttest/plugins/",
    "/disttest/plugin_manager.py",
)
"""Parts of the paths of files whose stack frames belong to the harness around a test."""
HARNESS = "|".join(map(re.escape, HARNESS_PLACES))
"""The same as a regular expression."""


# faulthandler: '  File "/repo/test_x.py", line 12 in test_sum', without the comma that a traceback has before
# "in".
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d{1,9}) in (?P<function>\S+)')
_LIBRARY = re.compile(
    r"/(_pytest|pluggy|(site|dist)-packages|lib/python3\.\d+|disttest/observe)/"
    rf"|{HARNESS}|^<"
)
_MOST_BELOW = 4
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})


class Finding(NamedTuple):
    """A one-line finding, and the rank to blame if there is exactly one."""

    message: str
    culprit: int | None = None


class Frame(NamedTuple):
    """A line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return short_place(self.file, self.line)


def explain(ranks: Sequence[RankRecord]) -> Finding | None:
    """Return the finding for a world that hangs; None if nothing else is known.

    Args:
        ranks: one record for each rank; those that were ended have their stacks and collectives.
    """
    hung = [rank for rank in ranks if rank.hung]
    waiting = {rank.rank: pending for rank in hung if (pending := _waits_in(rank)) is not None}
    # From the most to the least specific: a mismatch also makes ranks miss a collective.
    for judge in (_mismatch, _between_groups, _missing, _incomplete):
        finding = judge(ranks, waiting)
        if finding is not None:
            return finding
    return _point_to_point(hung) or _tear_down(ranks, hung) or _slow(ranks, hung)


def pending_collective(rank: RankRecord) -> Collective | None:
    """Return the collective in which a rank waits: the last one it called, if it is not complete.

    Backends such as NCCL queue collectives on the device while the rank continues, so there the first incomplete one
    blocks the others.
    """
    # `_point_to_point` explains sends and receives by the stacks.
    collectives = [c for c in rank.collectives if not c.p2p]
    queued = next((c for c in collectives if backend_named(c.backend).queues and not c.done), None)
    return queued or (collectives[-1] if collectives and not collectives[-1].done else None)


def _waits_in(rank: RankRecord) -> Collective | None:
    """Return the pending collective, with the place from the stack if the recorder has none."""
    pending = pending_collective(rank)
    frame = _user_frame(list(main_thread(rank.stacks)))
    if pending is None or pending.where or frame is None:
        return pending
    return msgspec.structs.replace(pending, where=str(frame))


def _mismatch(ranks: Sequence[RankRecord], waiting: dict[int, Collective]) -> Finding | None:
    """Ranks made different calls at the same number of a group, or the same call with different tensors."""
    for rank, pending in waiting.items():
        for other in ranks:
            theirs = _at(other, pending)
            if theirs is None or other.rank == rank:
                continue
            # The entry in `waiting` has the line from the stack, which the record of the call may lack.
            theirs = waiting.get(other.rank, theirs) if theirs == pending_collective(other) else theirs
            if theirs.op != pending.op:
                return Finding(_differ(pending, rank, _call(pending), other.rank, _call(theirs)))
            if not _same_tensors(pending, theirs):
                return Finding(
                    _differ(
                        pending,
                        rank,
                        f"{pending.op} of {pending.inputs}{_place(pending)}",
                        other.rank,
                        f"{theirs.op} of {theirs.inputs}{_place(theirs)}",
                    )
                )
    return None


def _differ(at: Collective, rank: int, call: str, other: int, other_call: str) -> str:
    first, second = sorted([(rank, call), (other, other_call)])
    return (
        f"ranks disagree at collective #{at.seq} of group {at.group}: "
        f"rank {first[0]} called {first[1]}, rank {second[0]} called {second[1]}"
    )


def _call(collective: Collective) -> str:
    return f"{collective.op}{_place(collective)}"


def _place(collective: Collective) -> str:
    return f" at {collective.where}" if collective.where else ""


# Each rank may bring tensors of another size to these calls, which backends name differently.
_UNEVEN = frozenset({"all_to_all", "alltoall", "alltoall_base", "all_to_all_single", "gather", "scatter"})


def _same_tensors(mine: Collective, theirs: Collective) -> bool:
    """Whether the tensors of two ranks fit; collectives that allow different sizes always fit."""
    return mine.op in _UNEVEN or not mine.inputs or not theirs.inputs or mine.inputs == theirs.inputs


def _at(rank: RankRecord, where: Collective) -> Collective | None:
    """Return a rank's call at the same number of the same group."""
    # A rank outside of the group may have made a call at that number of another group with the same description.
    for collective in rank.collectives if not where.ranks or rank.rank in where.ranks else ():
        is_same = (collective.group, collective.seq, collective.p2p) == (where.group, where.seq, where.p2p)
        # The ranks are unknown once the group is destroyed.
        if is_same and (collective.ranks == where.ranks or not (collective.ranks and where.ranks)):
            return collective
    return None


def _between_groups(ranks: Sequence[RankRecord], waiting: dict[int, Collective]) -> Finding | None:
    """Ranks wait in different groups: for each other, or for a rank that waits in none."""
    if len({(pending.group, pending.ranks) for pending in waiting.values()}) < 2:
        return None
    parts = ", ".join(f"rank {rank} waits in {c.name}{_place(c)}" for rank, c in sorted(waiting.items()))
    awaited = {rank.rank for pending in waiting.values() for rank in _absent(ranks, pending)}
    if free := [rank for rank in ranks if rank.rank in awaited - waiting.keys()]:
        names = rank_names([rank.rank for rank in free])
        # A rank that waits for a message may wait for a rank that waits here.
        waits = any(call.p2p and not call.done for rank in free for call in rank.collectives)
        text = f"{names} joined no group: {_all_whereabouts(free)}, while {parts}"
        return Finding(text, None if waits else _only(free))
    return Finding(f"groups wait for each other: {parts}")


def _absent(ranks: Sequence[RankRecord], pending: Collective) -> list[RankRecord]:
    """The members of a call's group that have not made it, and perhaps never will."""
    members = [rank for rank in ranks if not pending.ranks or rank.rank in pending.ranks]
    return [rank for rank in members if _at(rank, pending) is None and (rank.hung or _has_finished(rank))]


def _missing(ranks: Sequence[RankRecord], waiting: dict[int, Collective]) -> Finding | None:
    """Some ranks wait in a collective that others never called."""
    if not waiting:
        return None
    # The rank that is furthest ahead shows what the others have not reached.
    # All ranks wait in one group here: `_between_groups` has handled the other cases.
    pending = max(waiting.values(), key=lambda c: c.seq)
    here = sorted(rank for rank, c in waiting.items() if c.seq == pending.seq)
    absent = _absent(ranks, pending)
    if not absent:
        return None
    names = rank_names([rank.rank for rank in absent])
    verb = "wait" if len(here) > 1 else "waits"
    message = f"{names} never joined {pending.name}: {rank_names(here)} {verb}{_place(pending)}"
    message += "".join(f", {whereabouts(rank)}" for rank in absent[:4])
    return Finding(message, absent[0].rank if len(absent) == 1 else None)


def _incomplete(_ranks: Sequence[RankRecord], waiting: dict[int, Collective]) -> Finding | None:
    """All ranks are in the same collective, and it does not complete."""
    if not waiting:
        return None
    pending = next(iter(waiting.values()))
    return Finding(
        f"{pending.name} does not complete, although {rank_names(waiting)} called it{_place(pending)}"
    )


def _point_to_point(hung: Sequence[RankRecord]) -> Finding | None:
    """Ranks wait in sends and receives that do not match."""
    calls = {rank.rank: call for rank in hung if (call := _point_to_point_call(rank)) is not None}
    # If one rank is elsewhere, the exchange may be correct: that rank has not reached its part yet.
    if not calls or len(calls) < len(hung):
        return None
    parts = [f"rank {rank} waits in {call} at {place}" for rank, (call, place) in sorted(calls.items())]
    return Finding(f"point-to-point calls that do not match: {', '.join(parts)}")


def _point_to_point_call(rank: RankRecord) -> tuple[str, Frame] | None:
    frames = list(main_thread(rank.stacks))
    user = _user_frame(frames)
    call = next((f.function for f in frames if f.function in _POINT_TO_POINT and is_torchs(f.file)), None)
    return (call, user) if call is not None and user is not None else None


def _tear_down(ranks: Sequence[RankRecord], hung: Sequence[RankRecord]) -> Finding | None:
    """The test itself has finished in all ranks."""
    if not hung or any(rank.phase != "teardown" for rank in hung):
        return None
    done = [rank for rank in ranks if not rank.hung]
    rest = f"; {rank_names([rank.rank for rank in done])} had finished" if done else ""
    return Finding(f"the test finished, its tear-down hangs: {_all_whereabouts(hung)}{rest}", _only(hung))


def _slow(ranks: Sequence[RankRecord], hung: Sequence[RankRecord]) -> Finding | None:
    """No rank is known to wait for another one.

    A rank is busy or asleep in Python, or waits in torch for an unknown event.
    """
    if not any(_user_frame(list(main_thread(r.stacks))) or r.process_state for r in hung):
        return None
    done = [rank for rank in ranks if _has_finished(rank)]
    rest = f"; {rank_names([rank.rank for rank in done])} had finished" if done else ""
    if any(last_call(rank) for rank in hung):
        return Finding(f"{_all_calls(hung)}{rest}", None if done else _awaited(hung))
    # Processes that a test has started come first: the test itself only waits for them.
    below = [*islice((words for rank in hung for words in _started_processes(rank)), _MOST_BELOW)]
    waits = "" if below else ", not waiting for another rank"
    return Finding(f"{'; '.join([*below, _all_whereabouts(hung)])}{waits}{rest}", _only(hung))


def _awaited(hung: Sequence[RankRecord]) -> int | None:
    """The only rank outside of a collective in which all others wait at one line.

    The stacks have to do where the recorder's answer is lost: a test may remove the folder in which it is written.
    """
    calls = {rank.rank: last_call(rank) for rank in hung}
    outside = [rank for rank, call in calls.items() if not call]
    places = {call for call in calls.values() if call}
    is_collective = not any(call.partition(" ")[0] in _POINT_TO_POINT for call in places)
    return outside[0] if len(outside) == 1 and len(places) == 1 and is_collective else None


def _all_calls(ranks: Sequence[RankRecord]) -> str:
    """Describe ranks of which some wait in calls of torch that the recorder does not know: groups, stores."""
    calls = ((rank, last_call(rank)) for rank in ranks[:4])
    parts = (
        f"{process_name(rank.rank)} waits in {call}" if call else whereabouts(rank) for rank, call in calls
    )
    return ", ".join(parts) + (", …" if len(ranks) > 4 else "")


def _all_whereabouts(ranks: Sequence[RankRecord]) -> str:
    return ", ".join(whereabouts(rank) for rank in ranks[:4]) + (", …" if len(ranks) > 4 else "")


def whereabouts(rank: RankRecord) -> str:
    """``rank 2 is in worker at test_step.py:39``, or that it had finished."""
    who = process_name(rank.rank)
    if _has_finished(rank):
        if rank.outcome is Outcome.SKIPPED:
            return f"{who} had skipped the test ({rank.message})"
        return f"{who} had finished the test"
    frames = list(main_thread(rank.stacks))
    frame = _user_frame(frames)
    if rank.process_state:
        return f"{who} is {rank.process_state}, in {rank.phase}"
    waits_for_gpu = bool(frames) and _is_wait_for_gpu(frames[0])
    if frame is None and waits_for_gpu:
        return f"{who} waits for its GPU to finish what the test has started there"
    if frame is None:
        return f"{who} is still in {rank.phase}"
    where = "waits for its GPU" if waits_for_gpu else "is"
    return f"{who} {where} in {frame.function} at {frame}"


def last_call(rank: RankRecord) -> str:
    """``all_reduce at test_step.py:39`` from the stack of a rank inside a torch call; empty if it was in none."""
    frames = list(main_thread(rank.stacks))
    user = _user_frame(frames)
    above = frames[: frames.index(user)] if user else []
    # The outermost frame of torch is the function that the user called; the inner ones are its helpers.
    call = next((frame.function for frame in reversed(above) if "distributed_c10d" in frame.file), "")
    return f"{call} at {user}" if call else ""


def _is_wait_for_gpu(frame: Frame) -> bool:
    """Whether it is ``torch.cuda.synchronize``, which also ends a test on a GPU, or that of a stream or an event."""
    return frame.function == "synchronize" and is_torchs(frame.file)


def _has_finished(rank: RankRecord) -> bool:
    return rank.end is RankEnd.REPORTED


def main_thread(stacks: str) -> Iterator[Frame]:
    """Yield the frames of the main thread from faulthandler's output, innermost first; it is written last."""
    for match in _FRAME.finditer(stacks.split("\n\n")[-1]):
        yield Frame(match["file"], int(match["line"]), match["function"])


def crash_place(stacks: str) -> str:
    """Return the user's line in which a process crashed, as ``work at test_step.py:39``; empty if there is none.

    Args:
        stacks: faulthandler's output; the thread that crashed comes first.
    """
    crashed, *_ = stacks.split("\n\n")
    frame = _user_frame([*main_thread(crashed)])
    return f"{frame.function} at {frame}" if frame else ""


def _started_processes(rank: RankRecord) -> Iterator[str]:
    """``rank 1 of mp.spawn (process 12) is in work at test_step.py:39`` for each process inside user code."""
    for process in rank.started:
        if (frame := _user_frame(list(main_thread(process.stacks)))) is not None:
            who = f"{process.role} (process {process.pid})" if process.role else f"process {process.pid}"
            yield f"{who} is in {frame.function} at {frame}"


def _user_frame(frames: Sequence[Frame]) -> Frame | None:
    return next((frame for frame in frames if not is_library(frame.file)), None)


def is_library(file: str) -> bool:
    """Whether a file belongs to a library rather than to the user."""
    return is_torchs(file) or _LIBRARY.search(file) is not None


def is_torchs(file: str) -> bool:
    """Whether a file belongs to torch, which may be a checkout. The user's own folders may be called torch, too."""
    return file.startswith(_torchs_folder()) or "-packages/torch/" in file


@cache
def _torchs_folder() -> str:
    try:
        spec = find_spec("torch")
    except ValueError:  # a test has put something else in its place
        spec = None
    return f"{spec.origin.rpartition('/')[0]}/" if spec is not None and spec.origin else "<"


def _only(ranks: Sequence[RankRecord]) -> int | None:
    return ranks[0].rank if len(ranks) == 1 else None
