"""Record what breaks a process group for the next test: failed waits and aborts close its connections.

Calls that only some ranks make break nothing within one rank; a plugin that compares the ranks finds those.
"""

from __future__ import annotations

from disttest.observe import Group, Tool, Wait, WaitKind
from disttest.observe.groups import living_groups


class BrokenGroups(Tool):
    """The failed waits of the running test in this rank."""

    def __init__(self) -> None:
        """Start without any failed waits."""
        self.begin()

    def begin(self) -> None:
        """Forget the waits of the previous test."""
        # Number of the call or the wait -> name of the group (empty if unknown), and the text of the note.
        self._failed: dict[int, tuple[str, str]] = {}

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Record a failed wait; a later wait for the same call may succeed."""
        call = wait.call
        if error is None:
            if self._failed and call is not None:
                self._failed.pop(call.n, None)
        elif call is not None:
            self._failed[call.n] = (
                call.group.name,
                f"{call.op} at {call.site}, which failed in {_name(call.group)}",
            )
        elif wait.kind is WaitKind.WORK:
            self._failed[-wait.n] = "", f"the wait at {wait.site}, which failed"
        elif wait.kind is WaitKind.GROUP and wait.ranks:
            # torch numbers new groups; after this failure the ranks may have counted differently.
            self._failed[-wait.n] = "", f"the group at {wait.site}, which could not be made"

    def on_group(self, group: Group, *, made: bool) -> None:
        """Forget a destroyed group: the next test cannot use it."""
        if not made:
            self._failed = {n: each for n, each in self._failed.items() if each[0] != group.name}

    def on_abort(self, group: Group) -> None:
        """Record a group that has lost its connections."""
        self._failed[0] = group.name, f"{_name(group)}, which was aborted"

    def living(self) -> tuple[str, ...]:
        """List the notes on groups that still exist after the test."""
        alive = {*living_groups().values()} if self._failed else ()
        words = (words for name, words in self._failed.values() if not name or name in alive)
        return tuple(dict.fromkeys(words))


def _name(group: Group) -> str:
    return f"group {group.description or group.name}"
