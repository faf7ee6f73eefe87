"""Fast spawn: processes that an ordinary test starts by ``spawn`` are forks of a clean process that has imported torch.

The clean process is Python's own fork server, one per process, started with its first spawn. Its forks unpickle and
run as a spawned interpreter does, and contain no state of the user's program. Attributes that a new interpreter
would inherit and such a fork does not (environment, output, umask) are sent along. Contexts of kind ``forkserver``
have torch imported, too.

The children must be descendants of the process that runs the tests; otherwise they would be neither found nor ended
with it. It is opt-in, because ``os.getppid()`` differs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping
from multiprocessing import (
    forkserver,
    popen_fork,
    popen_forkserver,
    popen_spawn_posix,
    reduction,
    spawn,
    util,
)
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from typing import Any, NamedTuple

import disttest
from disttest.descriptors import is_open
from disttest.host.process import umask_now
from disttest.runtime.rank.child import join_stacks, stacks_path


def role_file(stacks: Path, pid: int) -> Path:
    """Return the file in which a process records its role, next to its file of stacks."""
    return stacks.with_name(f"{stacks.stem}.{pid}.role")


_PRELOADED = ("numpy", "torch", "torch.distributed", "torch.multiprocessing")
"""Modules that children would import: preloaded if this process has imported them."""
# A child with different ones needs another server.
_READ_AT_IMPORT = ("KMP_", "LD_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH_")
"""Prefixes of variables that libraries or the interpreter read once."""


def use_fast_spawn() -> None:
    """Make the processes that this one spawns forks of a server from now on."""
    _Popen.server = _Server()
    # `spawn` contexts look this class up in its module; multiprocessing has no setting for it (Python 3.11 to 3.13).
    popen_spawn_posix.Popen = _Popen  # type: ignore[misc,assignment]
    multiprocessing.set_forkserver_preload([*_wanted()])


class _Server(forkserver.ForkServer):
    """A fork server that is replaced whenever a new interpreter would differ from it."""

    _forkserver_address: str | None
    _forkserver_alive_fd: int | None
    _forkserver_pid: int | None

    def __init__(self) -> None:
        super().__init__()
        self._kind: object = None
        self._owner = os.getpid()

    def ensure_running(self) -> None:
        """Start a server that matches this process. A fork of the process that started one needs its own."""
        if (kind := _kind_of_interpreter()) != self._kind or self._owner != os.getpid():
            # In a fork, only its own copies of the descriptors are closed; the parent's server goes on.
            self._retire()
            self._kind, self._owner = kind, os.getpid()
            # This module too: the first object that a child unpickles is `_Inherited`.
            self.set_forkserver_preload([__name__, *_wanted()])
        with _findable():
            super().ensure_running()

    def _retire(self) -> None:
        """Release the server, which ends with the last of its children."""
        if self._forkserver_alive_fd is not None:
            os.close(self._forkserver_alive_fd)
        self._forkserver_address = self._forkserver_alive_fd = self._forkserver_pid = None


class _Popen(popen_forkserver.Popen):
    """A spawned process, with the interface of :class:`multiprocessing.popen_spawn_posix.Popen`."""

    method = "spawn"
    server: _Server
    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        data = io.BytesIO()
        set_spawning_popen(self)
        try:
            # The same steps (Python 3.11 to 3.13) as https://github.com/python/cpython/blob/main/Lib/multiprocessing/popen_spawn_posix.py
            preparation = spawn.get_preparation_data(process_obj._name)  # noqa: SLF001
            reduction.dump(_Inherited(self, preparation, _role_of(process_obj)), data)
            reduction.dump(process_obj, data)
        finally:
            set_spawning_popen(None)
        self.sentinel, parent_w = self.server.connect_to_new_process(self._fds)
        # The other end of this pipe shows the child when its parent has ended.
        self.finalizer = util.Finalize(self, _close, (os.dup(parent_w), self.sentinel))
        # Closes this end, of which the finalizer keeps a copy. The child reads until both objects are
        # complete.
        with open(parent_w, "wb") as pipe:  # noqa: PTH123
            pipe.write(data.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class _Inherited:
    """The first object that a child unpickles."""

    # Unpickling restores the attributes that a new interpreter would inherit.

    def __init__(self, popen: popen_fork.Popen, preparation: dict[str, Any], role: str) -> None:
        outputs = [(fd, popen.duplicate_for_child(fd)) for fd in (1, 2) if is_open(fd)]
        answers = Answers(stacks_path(), role)
        self._state = (dict(os.environ), outputs, umask_now(), answers, preparation)  # noqa: TID251

    def __reduce__(self) -> tuple[Any, ...]:
        return (_inherit, self._state)


def _inherit(
    environ: Mapping[str, str],
    outputs: list[tuple[int, int]],
    umask: int,
    answers: Answers,
    preparation: dict[str, Any],
) -> dict[str, Any]:
    """Adopt the parent's attributes in the child.

    Args:
        environ: all variables.
        outputs: descriptors, each with its index among the inherited ones.
        umask: umask for new files.
        answers: how to answer the supervisor.
        preparation: multiprocessing's own data, passed on.
    """
    for name in os.environ.keys() - environ.keys():  # noqa: TID251
        # A new interpreter has the variables of its parent. The server has those of the time when it started.
        del os.environ[name]  # noqa: TID251
    os.environ.update(environ)  # noqa: TID251
    came_along = forkserver.get_inherited_fds() or []
    for fd, place in outputs:
        os.dup2(came_along[place], fd)
        os.close(came_along[place])
    os.umask(umask)
    faulthandler.enable(2)  # a crash writes its stacks into the log of the test
    answers.prepare()
    if "numpy" in sys.modules:  # random reseeds itself after a fork, numpy only when it is imported
        sys.modules["numpy"].random.seed()
    return preparation


def _role_of(process_obj: Any) -> str:
    """Return ``rank 1 of mp.spawn``, or the name given by multiprocessing."""
    target: Any = getattr(process_obj, "_target", None)
    args: Any = getattr(process_obj, "_args", ())
    is_torchs = getattr(target, "__module__", "") == "torch.multiprocessing.spawn"
    return f"rank {args[1]} of mp.spawn" if is_torchs else str(process_obj.name)


class Answers(NamedTuple):
    """How a spawned process answers the supervisor of its test: with its stacks and its role."""

    stacks: Path | None
    role: str

    def prepare(self) -> None:
        """Enable the answers in the process itself."""
        if self.stacks is None:
            return
        with contextlib.suppress(OSError):  # the test has ended
            join_stacks(self.stacks)
            role_file(self.stacks, os.getpid()).write_text(self.role)


def _wanted() -> Iterator[str]:
    return (name for name in _PRELOADED if name in sys.modules)


def _kind_of_interpreter() -> object:
    read = {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_IMPORT)}  # noqa: TID251
    # multiprocessing starts interpreters with these flags, for which it has no public name (Python 3.11 to 3.13).
    return spawn.get_executable(), util._args_from_interpreter_flags(), read, [*_wanted()]  # type: ignore[attr-defined]  # noqa: SLF001


@contextlib.contextmanager
def _findable() -> Iterator[None]:
    """Let the server find this module, which it imports before it receives the module path."""
    before = os.environ.get("PYTHONPATH")  # noqa: TID251
    ours = str(Path(disttest.__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, ours]))  # noqa: TID251
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]  # noqa: TID251
        else:
            os.environ["PYTHONPATH"] = before  # noqa: TID251


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
