"""A clean process from which worlds are forked if the controller cannot be forked.

It has imported torch and pytest and no user code; it has one thread and has not touched CUDA. Worlds and ranks are
forked from it, so that one import serves all of them, and each rank collects the files that it needs. Requests travel
over a :mod:`line <disttest.runtime.controller.fork_line>`. The controller starts one for a run once it knows that
forking is unsafe. Files that do not cause the hazard are collected once, by a fork of it
(:mod:`disttest.runtime.controller.fork_sources`).

Whole worlds are forked, not single ranks: ranks stay children of their world, which waits for them and adopts their
leftovers. A new interpreter for each rank would cost an import of torch each.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from disttest import observe
from disttest.host.cuda_touch import is_checked_by_nvml
from disttest.host.fork_memory import importing_for_forks
from disttest.host.process import Child, die_with_parent, end_all, fork_child, leave, spawn_child
from disttest.limits import KILL_S, WORLD_START_S
from disttest.outgoing import outgoing
from disttest.plugin_manager import plugin_manager
from disttest.runtime.controller.fork_line import Collect, ForkLine, ForkOrder, Recipe, serve_line
from disttest.runtime.controller.orders import FLAG, ForkSourceOrder, RankOrder, write_order
from disttest.runtime.messages.protocol import Channel
from disttest.runtime.rank import state_snapshot
from disttest.runtime.rank.child import inherit_stay_off_cuda, send_output_to, stay_off_cuda, use_cuda_freely
from disttest.runtime.rank.rank_spec import RankSpec

# Modules that ranks would import (:mod:`disttest.runtime.controller.preload`), imported here if the controller has
# them.
_PRELOADED = ("torch.distributed", "torch.fx.experimental.symbolic_shapes", "torch._dynamo")


# For files whose import starts threads or initialises CUDA: this process has imported torch and no code of the user.
# docs/decisions/0010-fork-server-for-unsafe-files.md
class ForkServer(ForkLine):
    """The controller's handle of the fork server."""

    def __init__(self, log: Path, recipe: Recipe, folder: Path) -> None:
        """Start the process; it imports while the controller continues.

        Args:
            log: file for its output, quoted if it fails.
            recipe: how its descendants collect.
            folder: where pytest was started: a conftest may have changed the directory, to which arguments are relative.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours, log, limit_s=WORLD_START_S)
        wanted = [name for name in _PRELOADED if name in sys.modules]
        ledger = [outgoing.shared] if outgoing.shared >= 0 else []
        nvml = "nvml" if is_checked_by_nvml() else ""
        path = log.with_suffix(".recipe.json")
        path.write_bytes(msgspec.json.encode(recipe, enc_hook=str))
        # As in a command line: plugins are loaded without these.
        left_out = [f"-pno:{name}" for name in plugin_manager().blocked]
        arguments = [os.getpid(), theirs.fileno(), ",".join(map(str, ledger)), nvml, path, *left_out, *wanted]
        with theirs, log.open("wb") as output:
            self._child = spawn_child(
                [sys.executable, "-m", "disttest.runtime.controller.fork_server", *map(str, arguments)],
                pass_fds=[theirs.fileno(), *ledger],
                stdout=output.fileno(),
                new_session=True,
                folder=folder,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def close(self) -> None:
        """Close the line and wait for the process to end."""
        # The process leaves at the end of its line. It is killed only if it does not.
        self.line.close()
        self._child.wait(KILL_S)
        end_all([self._child])
        self._child.close()


# --- in the fork server


def main(arguments: Sequence[str]) -> NoReturn:
    """Import modules, then handle requests until the controller closes the line."""
    parent, line_fd, ledger, nvml, recipe_file, *modules = arguments
    die_with_parent(int(parent))
    # Before torch is imported below, so that its questions to CUDA are watched as soon as they exist.
    (inherit_stay_off_cuda if nvml else stay_off_cuda)()
    with importing_for_forks():
        for name in ("pytest", *(name for name in modules if not name.startswith("-"))):
            importlib.import_module(name)
        observe.prepare()
        state_snapshot.prepare()
        plugin_manager()  # installs the filter of outgoing texts
    # Only now: the filter that takes the descriptor over belongs to a plugin.
    if ledger:
        outgoing.share(int(ledger))
    recipe = msgspec.json.decode(Path(recipe_file).read_bytes(), type=Recipe)
    # Worlds are forked from here, and only their ranks read pytest's settings.
    for name in recipe.removed_plugins:
        plugin_manager().remove(name)

    def collect(question: Collect, own_line: int) -> None:
        files = msgspec.json.decode(Path(question.modules).read_bytes(), type=tuple[str, ...])
        names = Path(question.modules)
        answer = names.with_suffix(".answer.json")
        order = ForkSourceOrder(shared=recipe.shared, modules=files, line_fd=own_line, answer=str(answer))
        leave(_be_pytest(recipe, order))

    serve_line(
        socket.socket(fileno=int(line_fd)), lambda order: CollectingStarter(recipe, order), collect=collect
    )


class CollectingStarter:
    """Starts a rank as a fork of the clean process, in which pytest then collects the files of the world."""

    def __init__(self, recipe: Recipe, order: ForkOrder) -> None:
        self._recipe = recipe
        self._order = order

    def __call__(self, spec: RankSpec, channel: Channel, close: Sequence[int]) -> Child:
        """Fork; the child closes descriptors that belong to others, and becomes pytest."""

        def rank() -> None:
            for fd in close:
                os.close(fd)
            # PR_SET_PDEATHSIG is not inherited by a fork.
            die_with_parent(spec.world_pid)
            # The world blocks SIGTERM, because it reads the signal from a descriptor.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            signal.signal(signal.SIGINT, signal.default_int_handler)
            send_output_to(spec.log)
            use_cuda_freely()
            # Variables that only ranks have are set after the collection, as in a fork of the controller. With ranks
            # that collect, they are set before, as torchrun does.
            is_launched = spec.settings.ranks_collect
            variables = spec.environment() if is_launched else spec.machine_environment()
            os.environ.update(variables)  # noqa: TID251
            leave(self._collect(spec, channel))

        return fork_child(rank, new_group=True)

    def _collect(self, spec: RankSpec, channel: Channel) -> int:
        shared, line = self._recipe.shared, os.dup(channel.fileno())
        order = RankOrder(shared=shared, spec=spec, channel_fd=line, modules=self._order.modules)
        return _be_pytest(self._recipe, order)


def _be_pytest(recipe: Recipe, order: ForkSourceOrder | RankOrder) -> int:
    """Act as ``python -m pytest``; return only if the collection fails."""
    import pytest

    ledger = os.dup(outgoing.shared) if outgoing.shared >= 0 else -1
    arguments = [*recipe.arguments, f"{FLAG}={write_order(order, ledger)}"]
    # Tests and plugins may read it, as under `python -m pytest`.
    sys.argv = ["pytest", *arguments]
    return int(pytest.main(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
