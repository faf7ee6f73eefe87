"""Resident parent: import torch, pytest and the plugin, then fork a command for each connection.

A fork reads the request, compares itself with a new process, and becomes the command, which forks the pytest process of
its run. A run that has begun therefore continues, whatever happens to the parent. Runs list the modules that they have
imported on a shared board, and the parent imports these for the next run.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import io
import mmap
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import msgspec

import disttest
from disttest.descriptors import high_copy, new_streams, take_descriptors
from disttest.extras.resident.endpoint import ParentEndpoint
from disttest.extras.resident.fitness import (
    Loaded,
    differing,
    foreign_modules,
    is_foreign,
    variables_that_matter,
)
from disttest.extras.resident.limits import RESIDENT_REQUEST_S
from disttest.extras.resident.messages import (
    Ask,
    ForkEnded,
    ForkRefused,
    ForkRequest,
    ForkTerms,
    Started,
    Status,
    receive_request,
    send_answer,
)
from disttest.extras.resident.standby import become, stand_by
from disttest.host.cuda_touch import check_by_nvml, unwatch_cuda, watch_cuda
from disttest.host.event_loop import wait_any
from disttest.host.fork_hazard import fork_hazard
from disttest.host.fork_memory import importing_for_forks
from disttest.host.process import Child, Exit, fork_here, leave
from disttest.options.environment import HASH_SEED, environment, hash_seed
from disttest.plugin_manager import plugin_manager
from disttest.reports.write import load_reporters
from disttest.runtime.controller.preload import LAZY_PARTS, load_torch

_SIZE = 1 << 16
"""Bytes for names; names that do not fit are dropped."""


class PartsBoard:
    """Names of modules, one a line, in memory that a process shares with all its forks.

    Two runs that end at the same time may overwrite each other's lines. A garbled line names no module, and later runs
    note theirs again.
    """

    def __init__(self) -> None:
        """Create an empty board."""
        self._noted = mmap.mmap(-1, _SIZE)
        self.imported: tuple[str, ...] = ()
        """Names imported by :meth:`import_missing` in this process."""
        self._refused: set[str] = set()

    def note(self, names: Iterable[str]) -> None:
        """Note those of the modules that this process has imported; the other processes see them immediately."""
        known = self.noted()
        new = (name for name in names if name in sys.modules and name not in known)
        lines = "".join(f"{name}\n" for name in new).encode()
        end = self._end()
        # A zero byte must be left, which marks the end.
        if end + len(lines) < _SIZE:
            self._noted[end : end + len(lines)] = lines

    def noted(self) -> tuple[str, ...]:
        """Return all names, in the order in which they were noted."""
        return tuple(self._noted[: self._end()].decode(errors="replace").splitlines())

    def missing(self) -> tuple[str, ...]:
        """Return the noted names that this process has not imported."""
        return tuple(name for name in self.noted() if name not in sys.modules and name not in self._refused)

    def import_missing(self) -> None:
        """Import the missing modules; one that cannot be imported is not tried again."""
        for name in self.missing():
            try:
                importlib.import_module(name)
                self.imported += (name,)
            except Exception:  # noqa: BLE001 - a run that needs it reports the error
                self._refused.add(name)

    def _end(self) -> int:
        return self._noted.find(b"\0")


# A process that has only imported, not a pytest process that stays: state of an earlier run (modules, plugins, caches
# of fixtures) cannot reach a later one.
# docs/decisions/0036-resident-fork-server.md
_PRELOADED = (
    *(
        "torch",
        "torch.distributed",
        "pytest",
        "disttest.plugin",
        "disttest.runtime.controller.controller",
    ),
    *("disttest.cli.main", "disttest.extras.resident.fork", "disttest.cli.finish"),
)
_IMPORTED_LATE = ("numpy.random", "rich._emoji_codes")
"""Modules that others import at the first random number or the first output."""
_NO_RUN = 75
"""Exit code of a fork that has run nothing (EX_TEMPFAIL of sysexits.h)."""


class Parent:
    """The parent process, and the status that its forks report."""

    def __init__(
        self, endpoint: ParentEndpoint, listener: socket.socket, *, idle_s: float, folder: Path
    ) -> None:
        self._endpoint = endpoint
        self._listener = listener
        self._idle_s = idle_s
        self._children: list[Child] = []
        self._runs = 0
        self._started_s = time.monotonic()
        self.folder = folder
        self.variables = variables_that_matter(environment())
        self.parts = PartsBoard()
        self._import(_import_all)

    def _import(self, do: Callable[[], None]) -> None:
        """Import the modules, and check whether the process may still be forked."""
        # An import that asks torch for GPUs would initialise CUDA otherwise, and CUDA does not work in forks.
        undo = check_by_nvml()
        watch_cuda({})
        with importing_for_forks():
            do()
            hazard = fork_hazard(on_gpus=True)
        unwatch_cuda()
        undo()
        self.unfit = _unfit(hazard, self.folder, self.kept())
        # Again after each import, since there are new files to compare.
        self.loaded = Loaded()

    def serve(self) -> socket.socket | None:
        """Fork for each connection, and return it in the fork. Return None when it is time to end."""
        while True:
            ready = wait_any(self._listener, *self._children, timeout_s=self._idle_s)
            self._reap()
            if self.parts.missing():
                # Before the next fork, which finds them imported.
                self._import(self.parts.import_missing)
            if self._listener in ready:
                # The fork reads the request, so a slow client never blocks the parent.
                connection, _ = self._listener.accept()
                child = fork_here()
                if child is None:
                    # Otherwise the fork would keep the socket open after the end of the parent, and clients
                    # would wait for an answer.
                    self._listener.close()
                    return connection
                connection.close()
                self._children.append(child)
                self._runs += 1
            elif not ready and not self._children and self._retires():
                return None

    def _reap(self) -> None:
        ended = [child for child in self._children if child.poll() is not None]
        self._children = [child for child in self._children if child not in ended]
        for child in ended:
            # A fork that refused its run does not count.
            self._runs -= child.poll() == Exit(code=_NO_RUN)
            child.close()

    def _retires(self) -> bool:
        """Remove the endpoint, unless a client has connected meanwhile."""
        with self._endpoint.locked():
            # Under the lock: a client that connects afterwards finds no endpoint, and starts a new parent.
            if wait_any(self._listener, timeout_s=0):
                return False
            self._endpoint.remove()
            return True

    def status(self) -> Status:
        """Return the status for a fork to report."""
        return Status(
            folder=str(self.folder),
            imports=self.kept(),
            runs=self._runs,
            age_s=time.monotonic() - self._started_s,
            idle_s=self._idle_s,
        )

    def kept(self) -> tuple[str, ...]:
        """Return the modules imported because runs asked for them by name."""
        return tuple(name for name in self.parts.imported if name not in LAZY_PARTS)

    def unfit_for(self, run: ForkRequest) -> str:
        """Explain why this run needs a new parent; empty if it does not."""
        if self.unfit:
            return self.unfit
        if run.executable != sys.executable:
            return f"the interpreter is {run.executable}, not {sys.executable}"
        # The seed is an option. Until the options are read, the hash seed of this process counts as right.
        known_later = (
            {HASH_SEED: self.variables[HASH_SEED]}
            if run.terms is None
            else hash_seed(run.terms.seed, run.environ)
        )
        if names := differing(self.variables, variables_that_matter(run.environ) | known_later):
            return f"{', '.join(names)} in the environment changed"
        if reason := plugin_manager().why_others(run.argv):
            return reason
        changed = self.loaded.changed()
        return f"{changed} changed" if changed else ""

    def against(self, terms: ForkTerms, environ: Mapping[str, str]) -> str:
        """Explain which requirement of a run this process fails; empty if it meets all."""
        # Another hash seed gives sets another order.
        if hash_seed(terms.seed, environ)[HASH_SEED] != self.variables[HASH_SEED]:
            return f"{HASH_SEED} in the environment changed"
        gone = [name for name in self.kept() if name not in terms.imports]
        return f"resident-imports no longer names {', '.join(gone)}" if gone else ""


def _import_all() -> None:
    for name in _PRELOADED:
        importlib.import_module(name)
    for name in (*_IMPORTED_LATE, *_builtin_plugins()):
        with contextlib.suppress(ImportError):  # without numpy, or with another pytest or rich
            importlib.import_module(name)
    # Without torch._dynamo and sympy, which cost memory and two seconds. They follow once a run needs them.
    load_torch()
    load_reporters()


def _builtin_plugins() -> list[str]:
    """List the plugins that pytest imports in each run before it reads its options."""
    return [f"_pytest.{name}" for name in getattr(sys.modules["_pytest.config"], "default_plugins", ())]


def _unfit(hazard: str | None, folder: Path, kept: Sequence[str]) -> str:
    """Explain why the process must not be forked after these imports; empty if it may be."""
    if hazard:
        what = f"torch, pytest and {', '.join(kept)} (resident-imports)" if kept else "torch and pytest"
        return f"a process that has imported {what} cannot be forked: {hazard}"
    foreign = foreign_modules(folder, _own())
    return f"it would keep modules of {folder}: {', '.join(foreign)}" if foreign else ""


def _own() -> list[Path]:
    """List the folders whose modules do not belong to the tests, even below the tests' folder."""
    return [Path(disttest.__file__).parent, *map(Path, {sys.prefix, sys.base_prefix})]


# --- in a fork


def _listen(parent: Parent, connection: socket.socket) -> tuple[ForkRequest, ForkTerms, list[int]] | None:
    """Answer the request. Return the run if this fork has to become its command."""
    connection.settimeout(RESIDENT_REQUEST_S)
    with contextlib.suppress(OSError):  # the client has gone or is silent
        try:
            asked = receive_request(connection) if _peer(connection) == os.getuid() else None
        except msgspec.DecodeError:
            send_answer(connection, ForkRefused(reason="the request is from another version of disttest"))
            return None
        match asked:
            case (ForkRequest() as run, descriptors):
                terms = None if (reason := parent.unfit_for(run)) else _terms(run)
                if terms and not (reason := parent.against(terms, run.environ)):
                    return run, terms, descriptors
                send_answer(connection, ForkRefused(reason=reason or "the options do not ask for a fork"))
            case (Ask(), _):
                send_answer(connection, parent.status())
    return None


def _terms(run: ForkRequest) -> ForkTerms | None:
    """Return the requirements of a run, read from its command line if necessary; None if it must not be a fork."""
    if run.terms is not None:
        return run.terms
    # Options also come from variables, and from the project's file in this folder.
    become(run.environ, run.folder)
    # The command prints errors: it reads the same options after a refusal.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        terms: ForkTerms | None = sys.modules["disttest.extras.resident.fork"].terms_of_fork(run.argv)
    return terms


# Other packages are kept only if resident-imports names them. A run imports them after its conftest, which may set
# variables, paths or backends that they read at import; a parent has none of that.
def _worth_keeping(names: Sequence[str], folder: Path) -> list[str]:
    """Select modules that another run would import unchanged: not the tests', not rewritten by this pytest."""
    own = _own()
    rewriting = sys.modules["_pytest.assertion.rewrite"].AssertionRewritingHook

    def is_same(module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        is_of_tests = isinstance(file, str) and is_foreign(Path(file), folder, own)
        return not is_of_tests and not isinstance(getattr(module, "__loader__", None), rewriting)

    return [name for name in names if name in sys.modules and is_same(sys.modules[name])]


def _peer(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    # https://man7.org/linux/man-pages/man7/unix.7.html (SO_PEERCRED)
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", told)[1])


# The fork becomes the command, not only its pytest process: that one is then a child of the command as without a
# parent, and is supervised in the same way. A parent that is killed takes no run along.
def _be_command(
    connection: socket.socket, run: ForkRequest, descriptors: Sequence[int], at_end: Callable[[], None]
) -> NoReturn:
    """Become the command: take its descriptors, environment and arguments, run it, and report its end."""
    # Out of the way of the descriptors that get the numbers of the command, such as 3.
    line = high_copy(connection.fileno())
    numbers = [*run.descriptors, line]
    connection.close()
    take_descriptors([*descriptors, line], numbers)
    connection = socket.socket(fileno=line)
    connection.set_inheritable(False)
    new_streams()
    become(run.environ, run.folder)
    # Here, before the command has any state that the pytest process would inherit.
    stand_by(connection, at_end)
    _end_with(connection)
    send_answer(connection, Started(), [os.pidfd_open(os.getpid())])
    code = _run_command(run.argv)
    with contextlib.suppress(OSError):
        send_answer(connection, ForkEnded(code=code))
    leave(0)


def _end_with(connection: socket.socket) -> None:
    """Have the kernel send SIGHUP when the process at the other end is gone, as for a closed terminal."""
    # A command under nohup may have started the parent.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # https://man7.org/linux/man-pages/man2/fcntl.2.html (F_SETOWN, F_SETSIG)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    # The default, SIGIO, would end the process without its reports.
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGHUP)
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)


def _run_command(argv: Sequence[str]) -> int:
    sys.argv = ["disttest", *argv]
    try:
        sys.modules["disttest.cli.main"].main(argv)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does for an uncaught error
        traceback.print_exc()
        return 1
    return 0


def main(arguments: Sequence[str]) -> None:
    """Run the parent at an endpoint, for a folder; return at its end."""
    folder_of_sockets, name, listener_fd, idle_s, folder = arguments
    endpoint = ParentEndpoint(folder=Path(folder_of_sockets), name=name)
    parent = Parent(
        endpoint, socket.socket(fileno=int(listener_fd)), idle_s=float(idle_s), folder=Path(folder)
    )
    connection = parent.serve()
    if connection is None:
        return
    asked = _listen(parent, connection)
    if asked is None:
        # Not by `return`: the interpreter would first take torch apart.
        leave(_NO_RUN)
    run, terms, descriptors = asked

    def note_parts() -> None:
        parent.parts.note([*LAZY_PARTS, *_worth_keeping(terms.imports, parent.folder)])

    _be_command(connection, run, descriptors, note_parts)


if __name__ == "__main__":
    main(sys.argv[1:])
