"""The command that runs one test of a run again, alone and as it was run. Pure.

It names what decides how the test behaves (world size, backend, device, rules, limits) and leaves out what only
decides which tests run, where results go and what is done with a failure.
"""

from __future__ import annotations

import os.path
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from disttest.model import Invocation, Kind, TestCase
from disttest.planning.cluster_options import CLUSTER_OPTIONS, Takes

KEPT = ("isolation", "verdict", "timeout", "grace", "seed")
"""Options that are repeated as they were given; those that make the world come from the test itself."""

PATIENCE = ("jobs", "job-limit", "queue-limit", "silence-limit")
"""Options of a cluster that decide nothing for one test."""

_DROPPED_WITH_VALUE = (
    "-k",
    "-m",
    "-r",
    "--maxfail",
    "--durations",
    "--junitxml",
    "--junit-xml",
    "--tb",
    "--color",
    "-n",
)
_DROPPED = (
    "-x",
    "--exitfirst",
    "--lf",
    "--last-failed",
    "--ff",
    "--failed-first",
    "--nf",
    "--new-first",
    "--sw",
    "--stepwise",
    "--stepwise-skip",
    "--co",
    "--collect-only",
    "-q",
    "--quiet",
    "-v",
    "-vv",
    "-vvv",
    "--verbose",
)


class Run(Protocol):
    """What has to be known of the run: its first event and its result both know it."""

    @property
    def root(self) -> str:
        """Directory that node ids are relative to."""

    @property
    def invocation(self) -> Invocation:
        """What was asked."""


def repeat_command(test: TestCase, run: Run) -> str:
    """The command, quoted for a shell, to be run where the run was started."""
    asked = run.invocation
    words = ["disttest", "run", _target(test, run), *_world(test)]
    for name in KEPT:
        if value := asked.options.get(name):
            words += [f"--{name}", value]
    words += _cluster(asked)
    if extra := tuple(keep_pytest_args(asked.pytest_args)):
        words += ["--", *extra]
    return " ".join(map(quote, words))


def _target(test: TestCase, run: Run) -> str:
    """The node id, its file as it is seen from where the run was started; bundled suites go by name."""
    asked = run.invocation
    if asked.bundled or not (asked.cwd and run.root):
        return test.nodeid
    file, colons, rest = test.nodeid.partition("::")
    path = os.path.relpath(os.path.join(run.root, file), asked.cwd)  # noqa: PTH118 - perhaps of another machine
    return f"{path}{colons}{rest}"


def _world(test: TestCase) -> Iterator[str]:
    if test.world is None:
        return
    if test.kind is Kind.RANKS:
        yield from ("--world-sizes", str(test.world.size))
    yield from ("--backend", test.world.backend)
    if test.world.backend != "nccl":  # which has no other device
        yield from ("--device", test.world.device)


def _cluster(asked: Invocation) -> Iterator[str]:
    """The engine and what it was asked for; nothing of a run on one machine."""
    if not asked.options.get("launcher"):
        return
    for option in CLUSTER_OPTIONS:
        if option.name in PATIENCE or not (value := asked.options.get(option.name)):
            continue
        for each in value.splitlines() if option.takes is Takes.MANY else [value]:
            # One word, as these values may begin with a dash.
            yield f"--{option.name}={each}"


def keep_pytest_args(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments for pytest that can change what a test does: selection, order and output are left out."""
    skip_value = False
    for word, following in pairwise([*arguments, ""]):
        if skip_value:
            skip_value = False
        elif word in _DROPPED_WITH_VALUE or (word == "-p" and following.startswith("disttest")):
            skip_value = True
        elif word not in _DROPPED and not word.startswith(tuple(f"{flag}=" for flag in _DROPPED_WITH_VALUE)):
            yield word


def quote(word: str) -> str:
    """The word for a shell; with bash's escapes where it has characters that can not be seen."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(char if char.isprintable() and char not in "\\'" else _escape(char) for char in word)
    return f"$'{escaped}'"


def _escape(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
