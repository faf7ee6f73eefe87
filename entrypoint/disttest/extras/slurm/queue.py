"""Queries of Slurm's queue for the jobs of a run: short calls, one for all jobs that ask at about the same time."""

from __future__ import annotations

import getpass
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from disttest.extras.cluster.schedulers.agent_command import call
from disttest.extras.slurm import words
from disttest.extras.slurm.limits import SLURM_ANSWER_S, SLURM_FINAL_S


class SlurmQueue:
    """Queue shared by the threads of all jobs. A controller that does not answer is no answer, never an exception."""

    def __init__(self, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._environ = environ
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_s = float("-inf")
        self._lines: dict[str, words.QueueLine] = {}
        self._polls = ThreadPoolExecutor(max_workers=1, thread_name_prefix="squeue")

    def begin_poll(self, name: str, *, fresh_s: float) -> Future[words.QueueLine | None]:
        """Begin what :meth:`line` does. The caller goes on: a controller may take ``SLURM_ANSWER_S`` not to answer."""
        return self._polls.submit(self.line, name, fresh_s=fresh_s)

    def line(self, name: str, *, fresh_s: float) -> words.QueueLine | None:
        """Return a job's line of the queue, at most ``fresh_s`` seconds old; None if the job is not in it.

        However many jobs wait, one squeue queries the controller for all of them.
        """
        with self._lock:
            if self._clock() - self._asked_s >= fresh_s:
                lines = self._ask_queue([f"--user={getpass.getuser()}"])
                self._lines = {line.name: line for line in lines}
                self._asked_s = self._clock()
            return self._lines.get(name)

    def final_line(self, name: str) -> words.QueueLine | None:
        """Return the job's line after its end, which the controller may take a moment to notice."""
        deadline = self._clock() + SLURM_FINAL_S
        while True:
            lines = self._ask_queue(["--states=all", f"--name={name}"])
            line = lines[-1] if lines else None
            if line is None or line.state.is_over or self._clock() > deadline:
                return line
            time.sleep(0.1)

    def cancel(self, names: Sequence[str]) -> None:
        """Cancel jobs of this user by name."""
        for name in names:
            self.ask(["scancel", "--quiet", f"--user={getpass.getuser()}", f"--name={name}"])

    def _ask_queue(self, which: Sequence[str]) -> Sequence[words.QueueLine]:
        said = self.ask(["squeue", "-h", *which, "-o", words.SQUEUE_FORMAT])
        return words.parse_queue(said.stdout) if said is not None and said.returncode == 0 else ()

    def ask(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
        """Run a command; None if it is missing or does not end in time."""
        try:
            return call(argv, self._environ, limit_s=SLURM_ANSWER_S)
        except (subprocess.TimeoutExpired, OSError):
            return None
