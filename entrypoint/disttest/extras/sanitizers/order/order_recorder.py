"""Recorder of the sanitizer ``order`` in a rank: note each call, in about two microseconds, without keeping tensors."""

from __future__ import annotations

import dis
import sys
import threading
from enum import Enum, auto
from types import CodeType, FrameType
from typing import Any

import msgspec

from disttest.extras.sanitizers.order.stream import (
    MOST_CALLS,
    CallSignature,
    GroupMaking,
    Stream,
    StreamGroup,
)
from disttest.extras.sanitizers.sanitizer import SanitizerRecorder
from disttest.observe import Call, Wait, as_text, spec_of
from disttest.results.hang_findings import is_torchs

# https://docs.python.org/3/library/dis.html#opcode-STORE_FAST
_STORES = frozenset({"STORE_FAST"})


_known: dict[tuple[int, int], tuple[CodeType, bool]] = {}
"""Keyed by address, which is stable since the code is kept. The hash of a code object reads all of it each time."""


def is_thrown_away(code: CodeType, at: int) -> bool:
    """Return whether the result of the call at this offset (``f_lasti``) is never used, by the caller's bytecode.

    Code anywhere may wait for a handle that is kept. A handle that is popped, or stored in a local variable that is never
    read, is certainly never waited for.
    """
    known = _known.get((id(code), at))
    if known is None:
        known = _known[id(code), at] = code, _has_no_use(code, at)
    return known[1]


def _has_no_use(code: CodeType, at: int) -> bool:
    # f_lasti is the offset of the call. dis hides the CACHE entries behind it (Python 3.11 and later).
    following = next((each for each in dis.get_instructions(code) if each.offset > at), None)
    if following is None:
        return False
    if following.opname == "POP_TOP":
        return True
    # `work = dist.all_reduce(…)` in a function without a later use of `work`.
    return following.opname in _STORES and not _is_read(code, following.argval)


def _is_read(code: CodeType, name: str) -> bool:
    """Whether a local variable is read anywhere; cell variables of inner functions use other instructions."""
    # Python 3.13 combines two loads into one instruction, whose argval is a tuple:
    # https://docs.python.org/3/library/dis.html
    reads = (each.argval for each in dis.get_instructions(code) if _is_read_of_locals(each))
    return any(name in (read if isinstance(read, tuple) else (read,)) for read in reads)


def _is_read_of_locals(instruction: dis.Instruction) -> bool:
    return "LOAD_FAST" in instruction.opname or instruction.opname == "DELETE_FAST"


_KEEPING = frozenset({"_coalescing_manager", "monitored_barrier", "recv", "send"})
"""Functions of torch that wait for the handle, or pass it on by another way than returning it."""
_BATCH = "batch_isend_irecv"


class _Way(Enum):
    """Use of a handle in a function between the kernel and the user's line."""

    RETURNS = auto()
    KEEPS = auto()
    """Keeps it, waits for it, or needs none: functions of torch that issue calls for themselves (join, FSDP)."""
    BATCHES = auto()


_ways: dict[int, tuple[CodeType, _Way]] = {}
"""Keyed by the address of the code, which is stable since the code is kept."""


def _way_of(code: CodeType) -> _Way:
    known = _ways.get(id(code))
    if known is None:
        known = _ways[id(code)] = code, _find_way(code)
    return known[1]


def _find_way(code: CodeType) -> _Way:
    name, file = code.co_name, code.co_filename
    if name == _BATCH:
        return _Way.BATCHES
    if file.endswith("/distributed_c10d.py"):
        return _Way.KEEPS if name in _KEEPING else _Way.RETURNS
    passes_on = not is_torchs(file) or file.endswith("/c10d_logger.py")
    return _Way.RETURNS if passes_on else _Way.KEEPS


class OrderRecorder(SanitizerRecorder):
    """Recorder of the calls of one test after another.

    Args:
        rank: number of this rank in its world.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        """Threads may use one group each, and call at the same time."""
        self.begin()

    def begin(self) -> None:
        """Begin a test."""
        self._calls: list[int] = []
        self._known: dict[tuple[Any, ...], int] = {}
        self._signatures: list[CallSignature] = []
        self._codes: list[CodeType | None] = []
        """Keeps alive the code objects that keys name by address."""
        self._threads: dict[int, int] = {}
        self._makings: list[GroupMaking] = []
        self._dropped: dict[int, int] = {}
        """Number of a call whose bytecode discards the handle -> its index among the calls."""
        self._waited: dict[int, int] = {}
        """Signature of such a call -> the same signature for a call that was waited for."""
        self._beyond = 0
        self._doubtful = False

    def report(self) -> Stream:
        """Return the calls since the test began."""
        return Stream(
            signatures=tuple(self._signatures),
            calls=tuple(self._calls),
            makings=tuple(self._makings),
            beyond=self._beyond,
            doubtful=self._doubtful,
        )

    # Ranks only note calls, and the world compares them after the test. Asking the other ranks before each call, as
    # TORCH_DISTRIBUTED_DEBUG=DETAIL does, costs a round trip each and hangs where it should report:
    # https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug
    def on_issue(self, call: Call) -> None:
        """Note a call."""
        # The report of a test is one message to the world, so its calls have a limit.
        if len(self._calls) >= MOST_CALLS:
            self._beyond += 1
            return
        code = call.site.code
        handling = _handling(call) if call.is_async and not call.by_cpp else (False, False)
        # A signature is made once for each key, which has only values that the call carries already.
        key = (
            call.op,
            call.group.name,
            call.peer,
            call.tag,
            call.root,
            call.reduce_op,
            call.thread,
            # An address, since the hash of a code object reads all its constants. _codes keeps the object
            # alive.
            id(code),
            call.site.line,
            handling,
            call.splits,
            *[(tensor.dtype, tensor.shape) for tensor in call.inputs],
            # A mark between inputs and outputs: the same tensors may be on either side.
            None,
            *[(tensor.dtype, tensor.shape) for tensor in call.outputs],
        )
        with self._lock:
            number = self._known.get(key)
            if number is None:
                number = self._known[key] = len(self._signatures)
                self._signatures.append(self._signature(call, *handling))
                self._codes.append(code)
            # By its number, so that a wait for the call can be seen later.
            if handling[1]:
                self._dropped[call.n] = len(self._calls)
            self._calls.append(number)

    def on_error(self, call: Call, error: BaseException) -> None:
        """Note that a call was refused: the test may expect that, so nothing follows from its order."""
        del call, error
        self._doubtful = True

    def on_wait(self, wait: Wait) -> None:
        """Note a group that all ranks have to make. A group that only its members make has no number."""
        if wait.call is not None and (place := self._dropped.pop(wait.call.n, None)) is not None:
            with self._lock:
                self._calls[place] = self._waited_for(self._calls[place])
        # torch counts these groups in each process. A group of its members alone has a hash of its ranks as
        # its name.
        if wait.group_name.isdecimal() and len(self._makings) < MOST_CALLS:
            name = wait.group_description
            self._makings.append(
                GroupMaking(
                    number=wait.group_name,
                    ranks=wait.ranks,
                    # torch describes the groups of a DeviceMesh as mesh_NAME. Groups of two dimensions may
                    # have the same ranks, and then only this name differs.
                    dimension=as_text(name) if name.startswith("mesh_") else "",
                    file=as_text(wait.site.file),
                    line=wait.site.line,
                )
            )

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Note that a wait raised."""
        del wait
        if error is not None:
            self._doubtful = True

    def _waited_for(self, number: int) -> int:
        """Return the signature of a call that was waited for after all: ``exec`` kept a handle that bytecode drops."""
        known = self._waited.get(number)
        if known is None:
            known = self._waited[number] = len(self._signatures)
            self._signatures.append(msgspec.structs.replace(self._signatures[number], dropped=False))
            self._codes.append(self._codes[number])
        return known

    def _signature(self, call: Call, batched: bool, dropped: bool) -> CallSignature:
        # A test may destroy the default group and make another one, in which this rank has another number.
        self._doubtful |= sys.modules["torch.distributed"].get_rank() != self._rank
        return sign(
            call,
            thread=self._threads.setdefault(call.thread, len(self._threads)),
            batched=batched,
            dropped=dropped,
        )


def sign(call: Call, *, thread: int = 0, batched: bool = False, dropped: bool = False) -> CallSignature:
    """Make the signature of a call, without its tensors."""
    group = call.group
    return CallSignature(
        op=call.op,
        group=StreamGroup(
            name=as_text(group.name), description=as_text(group.description), ranks=group.ranks
        ),
        peer=call.peer,
        tag=call.tag,
        root=call.root,
        reduce_op=call.reduce_op,
        inputs=tuple(map(spec_of, call.inputs)),
        outputs=tuple(map(spec_of, call.outputs)),
        splits=call.splits,
        file=as_text(call.site.file),
        line=call.site.line,
        thread=thread,
        batched=batched,
        dropped=dropped,
    )


def _handling(call: Call) -> tuple[bool, bool]:
    """Whether a call is part of a batch, and whether its caller discards the handle.

    The functions of torch between the kernel and the user's line decide that: ``send`` is an ``isend`` with a wait.
    """
    # inspect.currentframe has no depth, and inspect.stack reads source files (Python 3.11 to 3.13).
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    batched, direct = False, True
    # From the kernel outwards, until the user's line.
    while frame is not None and frame.f_code is not call.site.code:
        way = _way_of(frame.f_code)
        if way is _Way.BATCHES:
            batched, direct = True, True  # the batch returns a list of its handles
        else:
            direct = direct and way is _Way.RETURNS
        frame = frame.f_back
    return batched, direct and frame is not None and is_thrown_away(frame.f_code, frame.f_lasti)
