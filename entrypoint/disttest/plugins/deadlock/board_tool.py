"""The tool that writes a rank's waits and calls into its slot of the board: two or three stores per collective.

It records events and draws no conclusions. A full table sets the gap flag, so that nothing is concluded from the rest.
"""

from __future__ import annotations

import operator
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from disttest.boards import BoardWriter
from disttest.clock import monotonic
from disttest.observe import Call, Group, Site, Tool, Wait, WaitKind, gaps, spec_of
from disttest.plugins.deadlock import layout
from disttest.plugins.deadlock.layout import Direction, WaitState
from disttest.plugins.deadlock.snapshot import KINDS

_KIND = {kind: place for place, kind in enumerate(KINDS)}
_IN_ENGINE = _KIND[WaitKind.BACKWARD]
_FOR_EVER = float("inf")
_form = operator.attrgetter("dtype", "shape")
_MOST_QUEUED = 4
"""Number of groups whose last call in the queue of a GPU gets a row."""
_NO_CALL = (0, 0, 0, layout.NO_RANK, layout.NO_RANK, 0, 0)

# Bound once, for they run with each collective, of which the whole board costs 3 to 4 µs.
_pack_wait, _pack_last = layout.WAIT.pack_into, layout.LAST.pack_into
_pack_signature, _pack_counts = layout.SIGNATURE.pack_into, layout.COUNTS.pack_into


class _WaitingThread:
    """A thread with a row, and its waits, outermost first."""

    __slots__ = ("more", "row", "stack")

    def __init__(self, row: int) -> None:
        self.row = row
        self.more: list[int] = []
        """Additional rows, if it waits for a GPU with calls of several groups."""
        self.stack: list[Wait] = []


class _Channel:
    __slots__ = ("done", "issued", "row")

    def __init__(self, row: int) -> None:
        self.row, self.issued, self.done = row, 0, 0


class BoardTool(BoardWriter, Tool):
    """The tool of one rank."""

    def __init__(self, board: Path, place: int) -> None:
        """Open the board.

        Args:
            board: its path, as its world reported.
            place: index of this rank's slot.

        Raises:
            OSError: the world has ended.
        """
        super().__init__(board)
        self._base = place * layout.SLOT
        self._began_s = 0.0
        self.begin(has_gap=False)

    def begin(self, *, has_gap: bool) -> None:
        """Reset the slot for a new test.

        Args:
            has_gap: whether this process has calls that cannot be observed.
        """
        self._began_s = monotonic()
        self._texts: dict[object, int] = {}
        self._codes: list[object] = []
        """Code objects that are keys of the texts. Keeping them ensures that a new one cannot get the same address."""
        self._end = layout.TEXTS
        self._groups: dict[str, int] = {}
        self._channels: dict[tuple[str, str, int, int], _Channel] = {}
        self._threads: dict[int, _WaitingThread] = {}
        self._first_call = 0
        self._makings: Counter[tuple[int, ...]] = Counter()
        """Number of groups whose creation has begun, by members."""
        self._free = list(layout.WAITS.places())
        self._free_groups = list(layout.GROUPS.places())
        self._free_channels = list(layout.CHANNELS.places())
        # The flags are written after this line, because the slot that is cleared contains them.
        self._clear(0, layout.SLOT)
        self._memory[self._base + layout.GAP_AT] = has_gap
        # Last: the world reads at any time, and ignores a slot without this byte.
        self._memory[self._base + layout.OBSERVED_AT] = 1

    def expect(self, pattern: str | None) -> None:
        """Expect a deadlock whose finding matches a regular expression from now on; None ends the expectation.

        Raises:
            ValueError: the expression does not fit into the slot.
        """
        place = self._text(pattern) if pattern else 0
        # `_text` cuts silently, and a cut expression is another expression.
        if pattern and (not place or len(pattern.encode()) > layout.LONGEST_TEXT):
            raise ValueError(f"no more than {layout.LONGEST_TEXT} bytes fit: {pattern!r}")
        # The pattern comes before the flag. With the flag alone, an empty pattern would match every
        # finding.
        layout.LENGTH.pack_into(self._memory, self._base + layout.EXPECTATION_AT, place)
        self._memory[self._base + layout.EXPECTED_AT] = pattern is not None

    def peers(self) -> Iterator[bytes]:
        """Return the current slots of the other ranks on this board."""
        own = self._base // layout.SLOT
        return (slot for place, slot in self.slots().items() if place != own)

    def slots(self) -> dict[int, bytes]:
        """Return the current slots of all ranks by index."""
        bases = enumerate(range(0, len(self._memory), layout.SLOT))
        return {place: bytes(self._memory[base : base + layout.SLOT]) for place, base in bases}

    # --- events

    def on_issue(self, call: Call) -> None:
        """Count a call. For a thread of C++, only its stack shows when it is back in Python."""
        self._first_call = self._first_call or call.n
        if call.group.is_foreign:
            self._note_gap()  # a process without a slot may be a member
        if call.peer is not None:
            self._count(call)
        else:
            self._note(call)
        thread = self._threads.get(call.thread)
        if call.by_cpp:
            self._write_cpp(call, thread)
        # A call from Python shows that the thread has left C++, so its row of a call by C++ is over.
        elif thread is not None and not thread.stack:
            self._release(call.thread, thread)

    def on_wait(self, wait: Wait) -> None:
        """Record that a thread begins to wait."""
        # Asked again at each wait: a call that a newer torch has renamed is a gap only once a test makes it.
        if gaps():
            self._note_gap()
        if wait.ranks:
            self._note_making(wait)
        # A thread that waits already has a row. Waits are nested, and the row shows the innermost one.
        thread = self._threads.get(wait.thread) or self._take_row(wait.thread)
        if thread is not None:
            thread.stack.append(wait)
            self._write(thread, wait)

    def _note_making(self, wait: Wait) -> None:
        place = layout.MAKINGS.places()[self._makings.total() % layout.MAKINGS.rows]
        self._makings[wait.ranks] += 1
        name, ranks = self._text(wait.group_name), self._keys(wait)
        if wait.group_name and not name:
            self._note_gap()  # it would count as a different group than the one of the same name elsewhere
        layout.MAKING.pack_into(self._memory, self._base + place, name, ranks, self._place(wait.site))

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Record that a thread has stopped waiting. It may still be inside an outer wait."""
        # A message whose wait failed may have arrived or not. `done` must never count too much.
        if wait.call is not None and wait.call.peer is not None and error is None:
            self._note_done(wait.call)
        self.end_wait(wait)

    def end_wait(self, wait: Wait) -> None:
        """Remove a wait, which may have ended without its call."""
        thread = self._threads.get(wait.thread)
        if thread is None or not thread.stack or thread.stack.pop() is not wait:
            return  # it began before the test
        self._release_more(thread)
        if thread.stack:
            self._write(thread, thread.stack[-1])
        else:
            self._release(wait.thread, thread)

    def on_group(self, group: Group, *, made: bool) -> None:
        """Reset the numbers of a group whose name is used again."""
        # Made under a used name, or destroyed: the next calls under this name count from 1.
        del made
        place = self._groups.get(group.name)
        if place is not None:
            self._clear(place, layout.GROUPS.size)
            self._forget(group.name, place)

    def _clear(self, place: int, size: int) -> None:
        self._memory[self._base + place : self._base + place + size] = bytes(size)

    # --- collectives

    def _note(self, call: Call) -> None:
        # The header comes before all tables, so no row has position 0, which means that there is none.
        place = self._groups.get(call.group.name) or self._add_group(call.group)
        if not place:
            return
        root = layout.NO_RANK if call.root is None else call.root
        at = self._base + layout.ring_place(place, call.seq)
        op = self._texts.get(call.op) or self._text(call.op)
        group, seq = call.behind or ("", 0)
        behind = self._groups.get(group, 0)
        # The number comes last. In the other order, the world could read the signature of an older call
        # under it.
        _pack_signature(self._memory, at, op, self._tensors(call), self._place(call.site), behind, root, seq)
        _pack_last(self._memory, self._base + place + layout.LAST_AT, call.seq)

    def _add_group(self, group: Group) -> int:
        if not self._free_groups:
            self._note_gap()
            return 0
        # Asked with each group, since a test may destroy the default group and make another one.
        self._write_rank()
        place = self._groups[group.name] = self._free_groups.pop(0)
        name, ranks = self._text(group.name), self._text(layout.write_ranks(group.ranks))
        # Without its name or members, the group would count as another one than that of the other ranks.
        if not (name and ranks):
            self._note_gap()
        description = self._text(group.description)
        layout.GROUP.pack_into(self._memory, self._base + place, name, description, ranks, 0)
        return place

    def _forget(self, name: str, place: int) -> None:
        del self._groups[name]
        self._free_groups.append(place)
        for key, channel in list(self._channels.items()):
            if key[0] == name:
                del self._channels[key]
                self._clear(channel.row, layout.CHANNELS.size)
                self._free_channels.append(channel.row)

    def _write_rank(self) -> None:
        dist = sys.modules.get("torch.distributed")
        has_group = dist is not None and dist.is_initialized()
        rank = dist.get_rank() + 1 if dist is not None and has_group else 0
        if dist is not None and has_group and dist.get_world_size() != len(self._memory) // layout.SLOT:
            self._note_gap()  # other processes may be members of the default group
        layout.RANK.pack_into(self._memory, self._base + layout.RANK_AT, rank)

    # --- point-to-point calls

    def _count(self, call: Call) -> None:
        channel = self._channel(call)
        if channel is not None:
            channel.issued = call.seq
            last = self._place(call.site), self._tensors(call)
            layout.LAST_CALL.pack_into(self._memory, self._base + channel.row + layout.LAST_CALL_AT, *last)
            _pack_counts(self._memory, self._base + channel.row + layout.COUNTS_AT, call.seq, channel.done)

    def _note_done(self, call: Call) -> None:
        channel = self._channel(call)
        if channel is not None:
            channel.done += 1
            _pack_counts(
                self._memory, self._base + channel.row + layout.COUNTS_AT, channel.issued, channel.done
            )

    def _channel(self, call: Call) -> _Channel | None:
        key = (call.group.name, call.op, call.peer, call.tag)
        return self._channels.get(key) or self._add_channel(key, call)  # type: ignore[arg-type]

    def _add_channel(self, key: tuple[str, str, int, int], call: Call) -> _Channel | None:
        group = self._groups.get(call.group.name) or self._add_group(call.group)
        if not group or not self._free_channels:
            self._note_gap()
            return None
        channel = self._channels[key] = _Channel(self._free_channels.pop())
        direction = Direction.SEND if call.op == "send" else Direction.RECEIVE
        at = self._base + channel.row
        layout.CHANNEL.pack_into(self._memory, at, group, direction, call.peer, call.tag, 0, 0, 0, 0)
        return channel

    # --- threads

    def _take_row(self, ident: int) -> _WaitingThread | None:
        if not self._free:
            self._note_gap()
            return None
        thread = self._threads[ident] = _WaitingThread(self._free.pop(0))
        return thread

    def _release_more(self, thread: _WaitingThread) -> None:
        for row in thread.more:
            self._memory[self._base + row] = WaitState.FREE
        self._free += thread.more
        thread.more = []

    def _release(self, ident: int, thread: _WaitingThread) -> None:
        self._memory[self._base + thread.row] = WaitState.FREE
        del self._threads[ident]
        self._free.append(thread.row)

    def _write_cpp(self, call: Call, thread: _WaitingThread | None) -> None:
        if thread is not None and thread.stack and thread.stack[-1].kind is not WaitKind.BACKWARD:
            return  # it is known to wait for another event
        thread = thread or self._take_row(call.thread)
        if thread is not None:
            now_s = monotonic()
            until_s = now_s + (_FOR_EVER if call.timeout_s is None else call.timeout_s)
            where = self._place(call.site)
            facts = self._facts(call)
            self._write_row(
                thread.row, WaitState.IN_CPP, _IN_ENGINE, where, 0, facts, call.thread, now_s, until_s
            )

    def _write(self, thread: _WaitingThread, wait: Wait) -> None:
        if wait.kind is WaitKind.DEVICE:
            self._write_device(thread, wait)
            return
        call, now_s = wait.call, monotonic()
        limit_s = wait.timeout_s if wait.timeout_s is not None or call is None else call.timeout_s
        # The time limit of a handle runs since its call, whose time is no longer known.
        from_s = self._began_s if call is not None and call.is_async else now_s
        # A wait that another process may end looks as if its limit had passed, so no proof can rest on it.
        until_s = now_s if wait.is_public else from_s + (_FOR_EVER if limit_s is None else limit_s)
        facts = self._making_facts(wait) if call is None else self._facts(call)
        where, kind = self._place(wait.site), _KIND[wait.kind]
        self._write_row(
            thread.row, WaitState.WAITING, kind, where, self._keys(wait), facts, wait.thread, now_s, until_s
        )

    def _making_facts(self, wait: Wait) -> tuple[int, ...]:
        return (0, 0, self._text(wait.group_name), *_NO_CALL[3:-1], self._makings[wait.ranks])

    def _write_device(self, thread: _WaitingThread, wait: Wait) -> None:
        """Write a row for each call. Calls of an earlier test are over."""
        calls = [call for call in wait.calls if call.n >= self._first_call > 0][-_MOST_QUEUED:]
        rows = [thread.row, *thread.more]
        while self._free and len(rows) < len(calls):
            rows.append(self._free.pop(0))
        thread.more = rows[1:]
        limits = [call.timeout_s for call in wait.calls if call.timeout_s is not None]
        until_s = self._began_s + min(limits, default=_FOR_EVER)
        where, kind, now_s = self._place(wait.site), _KIND[wait.kind], monotonic()
        # There may be a row for the newest call only.
        for row, call in zip(rows, calls[::-1] or (None,), strict=False):
            facts = _NO_CALL if call is None else self._facts(call)
            called = 0 if call is None else self._place(call.site)
            self._write_row(row, WaitState.WAITING, kind, where, called, facts, wait.thread, now_s, until_s)

    def _keys(self, wait: Wait) -> int:
        if wait.ranks:
            return self._text(layout.write_ranks(wait.ranks))
        return self._text(", ".join(wait.keys)) if wait.keys else 0

    def _facts(self, call: Call) -> tuple[int, ...]:
        peer, root = call.peer, call.root
        return (
            self._texts.get(call.op) or self._text(call.op),
            self._groups.get(call.group.name, 0),
            0,
            layout.NO_RANK if peer is None else peer,
            layout.NO_RANK if root is None else root,
            call.tag,
            call.seq,
        )

    def _write_row(
        self,
        row: int,
        state: int,
        kind: int,
        where: int,
        keys: int,
        facts: tuple[int, ...],
        ident: int,
        since_s: float,
        until_s: float,
    ) -> None:
        at = self._base + row
        _pack_wait(self._memory, at, state, kind, where, keys, *facts, ident, since_s, until_s)

    # --- texts

    def _place(self, site: Site) -> int:
        key = (id(site.code), site.line)  # hashing a code object takes longer than everything else here
        place = self._texts.get(key)
        if place is None:
            self._codes.append(site.code)
            place = self._texts[key] = self._text(str(site))
        return place

    def _tensors(self, call: Call) -> int:
        # A receive has no inputs.
        tensors = call.outputs if call.is_p2p and not call.inputs else call.inputs
        # By form, not by tensor: a loop passes new tensors in each step, and their text is made once.
        key = tuple(map(_form, tensors))
        place = self._texts.get(key)
        if place is None:
            text = ", ".join(str(spec_of(tensor)) for tensor in tensors)
            place = self._texts[key] = self._text(text, end=layout.LAST_TENSORS)
        return place

    def _text(self, text: str, *, end: int = layout.SLOT) -> int:
        """Store a text and return its position; 0 for the empty text, and if no space is left before the end."""
        place = self._texts.get(text)
        if place is None:
            data = text.encode("utf-8", "replace")[: layout.LONGEST_TEXT]
            after = self._end + layout.LENGTH.size + len(data)
            # A text without space is remembered as 0, so that a full slot costs one attempt for each text.
            place = self._texts[text] = self._end if data and after <= end else 0
            if place:
                at = self._base + place
                layout.LENGTH.pack_into(self._memory, at, len(data))
                self._memory[at + layout.LENGTH.size : self._base + after] = data
                self._end = after
        return place

    def _note_gap(self) -> None:
        self._memory[self._base + layout.GAP_AT] = 1
