"""Worlds with more ranks than GPUs: the environment of their ranks, and their MPS daemon.

NVIDIA MPS is a daemon that lets the kernels of several processes run on one GPU at the same time. Without it the driver
gives each process the whole GPU for a time slice. A collective of two ranks on one GPU then takes milliseconds, since
each rank spins through its slice while its peer waits for the next one. See
https://docs.nvidia.com/deploy/mps/index.html.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from disttest.clock import monotonic, sleep
from disttest.host.descendants import children_of
from disttest.host.proc import is_alive
from disttest.host.process import Child, end_all, kill_overdue, spawn_child
from disttest.model import Batch, Slot
from disttest.options.environment import environment
from disttest.planning.backends import CPU, backend_named
from disttest.plugins.gpus.limits import MPS_ANSWER_S, MPS_POLL_S, MPS_START_S

CONTROL = "nvidia-cuda-mps-control"
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
_USUAL_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - MPS's default
_LONGEST_PIPE = 90
"""Length of a folder's path in bytes. MPS creates Unix sockets there, whose paths have 107 bytes at most."""

# Thread blocks of a collective's kernel on one GPU, over all ranks.
#
# Such a kernel spins until those of its peers run as well. If the blocks of all ranks do not fit on the GPU at the same
# time, none of them ends: with NCCL's default of up to 32 per rank, four ranks hung on an H200 (132 multiprocessors).
# https://github.com/NVIDIA/nccl/issues/32
_BLOCKS = 8


class SharedGpus:
    """The shared GPUs of one run. No daemon starts before a world shares a GPU."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            folder: folder for the pipes and logs of MPS daemons.
            note: receives a sentence for the reports.
        """
        self._folder = folder
        self._note = note
        self._daemon: MpsDaemon | None = None
        self._started = 0
        self._tests = 0
        # Whether a client of the daemon may have been killed in a kernel.
        self._spoiled = False
        self._without = False

    def variables(self, batch: Batch, slots: tuple[Slot, ...]) -> dict[str, str]:
        """Return the environment of a world's ranks on these slots; empty if they share no GPU."""
        if not shares_gpus(batch, slots):
            return {}
        backend = backend_named(batch.shape.backend)
        variables = dict(backend.sharing_variables)
        if (mps := self._mps()) is not None:
            variables |= mps
            # Without MPS only one process runs at a time, and fewer blocks just make it slower: 1 MiB took 36 ms
            # instead of 5 with two ranks on an H200.
            if backend.blocks_variable:
                ranks = math.ceil(batch.shape.size / len(slots))
                variables[backend.blocks_variable] = str(max(1, _BLOCKS // ranks))
        return variables

    def world_ended(self, batch: Batch, slots: tuple[Slot, ...], *, well: bool) -> None:
        """Handle the end of a world.

        A client that is killed in a kernel leaves its MPS server unable to serve others for seconds
        (``cudaErrorDevicesUnavailable``), so the next world gets a new daemon.
        """
        if shares_gpus(batch, slots) and (self._spoiled or not well):
            self.close()

    def judged(self, batch: Batch, slots: tuple[Slot, ...], *, good: bool) -> None:
        """Handle the result of a test."""
        if shares_gpus(batch, slots):
            self._tests += 1
            self._spoiled |= not good

    def finish(self) -> None:
        """End the daemon, and note the limits of tests on shared GPUs."""
        self.close()
        if self._tests:
            self._note(
                f"{self._tests} test{'s' * (self._tests > 1)} ran with several ranks on one GPU: peer-to-peer copies, "
                "NVLink and real bandwidth were not tested"
            )

    def close(self) -> None:
        """End the daemon."""
        self._spoiled = False
        if self._daemon is not None:
            self._daemon.end()
            self._daemon = None

    def _mps(self) -> dict[str, str] | None:
        """Return the variables of an MPS client; None if MPS cannot be used."""
        if self._without:
            return None
        # One daemon serves all worlds of a run until a client is killed.
        if self._daemon is not None and self._daemon.lives:
            return self._daemon.environment
        if self._daemon is None and usable_daemon(dict(environment())):
            # Without the variable the daemon has the default folder, where clients look without it, too.
            own = environment().get(PIPE_VARIABLE)
            return {PIPE_VARIABLE: own} if own else {}
        self.close()
        self._started += 1
        daemon = MpsDaemon(self._folder / f"mps{self._started}")
        if reason := daemon.start():
            # Once for the run: a daemon that does not answer costs ten seconds.
            self._without = True
            self._note(
                f"ranks that share a GPU take turns on it, since MPS cannot be used: {reason}. "
                "A small collective takes milliseconds then, instead of 0.1 ms"
            )
            return None
        self._daemon = daemon
        return daemon.environment


def shares_gpus(batch: Batch, slots: tuple[Slot, ...]) -> bool:
    """Whether several ranks of a world on these slots share a GPU."""
    ranks = batch.shape.size if batch.shape.device != CPU and not batch.shares else 0
    return bool(slots) and ranks > len(slots)


class MpsDaemon:
    """The MPS control daemon of one run, with separate directories.

    It is a child of this process, and its server a child of the daemon. They end with the run even if the run is
    killed, because disttest ends all descendants of a run.
    """

    def __init__(self, folder: Path, *, binary: str | None = None) -> None:
        """Prepare the daemon without starting it.

        Args:
            folder: an empty or missing folder for the daemon's pipes and logs.
            binary: path of ``nvidia-cuda-mps-control``; found on ``PATH`` unless given.
        """
        self._folder = folder
        self._binary = shutil.which(CONTROL) if binary is None else binary
        self._child: Child | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a process a client of this daemon."""
        return {PIPE_VARIABLE: str(self._folder / "pipe"), LOG_VARIABLE: str(self._folder / "log")}

    @property
    def lives(self) -> bool:
        """Whether the daemon was started and has not ended."""
        return self._child is not None and not self._child.has_ended()

    def start(self) -> str:
        """Start the daemon and wait until it answers.

        Returns:
            The reason why it does not run; empty if it answers.
        """
        if not self._binary:
            return f"{CONTROL} is not on PATH"
        pipe, log = (Path(path) for path in self.environment.values())
        if len(os.fsencode(pipe)) > _LONGEST_PIPE:
            return f"the path {pipe} is too long for the sockets of MPS: set TMPDIR to a shorter folder"
        for folder in (pipe, log):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (log / "daemon.log").open("ab") as output:
            # `-f` keeps it in the foreground. Otherwise it would leave the tree of this run, whose end ends
            # it.
            self._child = spawn_child(
                [self._binary, "-f"], extra_env=self.environment, stdout=output.fileno(), new_session=True
            )
        deadline_s = monotonic() + MPS_START_S
        while self.lives and monotonic() < deadline_s:
            if answers(self._binary, self.environment):
                return ""
            sleep(MPS_POLL_S)
        how = "ended at once" if not self.lives else f"gave no answer within {MPS_START_S:g} s"
        self.end()
        return f"{CONTROL} {how}: {_last_line(log / 'daemon.log') or 'it printed nothing'}"

    def end(self) -> None:
        """Ask the daemon to quit, kill it if it does not, and wait until its server has left the GPU."""
        # A server that is still ending keeps new clients off the GPU, including those of another daemon
        # (``cudaErrorDevicesUnavailable``, seen on an H200).
        if self._child is None:
            return
        # Read while the daemon lives. After its end a server is a child of another process.
        servers = children_of(self._child.pid)
        if self.lives and self._binary:
            _send_command(self._binary, self.environment, "quit -t 1")
            self._child.has_ended(within_s=MPS_ANSWER_S)
        end_all([self._child])
        self._child.close()
        self._child = None
        kill_overdue(lambda: [*filter(is_alive, servers)], orderly_s=MPS_ANSWER_S, poll_s=MPS_POLL_S)


def answers(binary: str, environment: dict[str, str]) -> bool:
    """Return whether a daemon answers at these pipes. Existing pipes prove nothing: they remain when it is killed."""
    return _send_command(binary, environment, "get_server_list") == 0


def usable_daemon(environ: dict[str, str]) -> bool:
    """Return whether an MPS daemon of this user already serves this machine. Daemons of other users are never used."""
    folder = Path(environ.get(PIPE_VARIABLE, _USUAL_PIPE))
    binary = shutil.which(CONTROL)
    try:
        # A server serves the clients of one user at a time.
        is_ours = (folder / "control").stat().st_uid == os.geteuid()
    except OSError:
        return False
    return is_ours and bool(binary) and answers(str(binary), {PIPE_VARIABLE: str(folder)})


def _send_command(binary: str, environment: dict[str, str], command: str) -> int:
    """Send the daemon a command; return its exit code, or 1 if there is no answer in time."""
    try:
        # Without arguments the program is a client of the daemon, and reads commands from its input.
        ended = subprocess.run(
            [binary],
            input=f"{command}\n".encode(),
            env={**os.environ, **environment},  # noqa: TID251 - passed on
            capture_output=True,
            timeout=MPS_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 1
    return ended.returncode


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line for line in reversed(lines) if line.strip()), "")
