"""Note what breaks a process group for the next test: a wait that fails closes connections, and so does an abort.

Calls that only some ranks issue break nothing in one rank: a plugin that compares the ranks finds them.
"""

from __future__ import annotations

from disttest.observe import Group, Tool, Wait, WaitKind


class BrokenGroups(Tool):
    """The waits of the running test that failed in this rank."""

    def __init__(self) -> None:
        """A tool of one rank."""
        self.begin()

    def begin(self) -> None:
        """A test begins."""
        # Number of the call or the wait -> name of the group (empty: unknown), and the words of the note.
        self._failed: dict[int, tuple[str, str]] = {}

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Note a wait that failed; a later wait for the same call may succeed."""
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
            # The ranks may have counted different numbers of groups, from which torch makes the names of new ones.
            self._failed[-wait.n] = "", f"the group at {wait.site}, which could not be made"

    def on_group(self, group: Group, *, made: bool) -> None:
        """Forget a group that is destroyed: the next test cannot meet it."""
        if not made:
            self._failed = {n: each for n, each in self._failed.items() if each[0] != group.name}

    def on_abort(self, group: Group) -> None:
        """Note a group that has lost its connections."""
        self._failed[0] = group.name, f"{_name(group)}, which was aborted"

    def among(self, alive: frozenset[str]) -> tuple[str, ...]:
        """The words of the notes on groups that are alive after the test.

        Args:
            alive: names of those groups, as torch has them.
        """
        words = (words for name, words in self._failed.values() if not name or name in alive)
        return tuple(dict.fromkeys(words))


def _name(group: Group) -> str:
    return f"group {group.description or group.name}"
