"""The commands that run one test of a run again, alone and as it was run, or one recorded rank of it. Pure.

It names what decides how the test behaves (the tests before it in its world, world size, backend, device, rules,
limits) and leaves out what only decides which tests run, where results go and what is done with a failure.
"""

from __future__ import annotations

import os.path
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from disttest.model import Invocation, TestCase, TestResult, WorldKind
from disttest.options.registry import COMMAND_SETTINGS, RUN_OPTIONS
from disttest.planning.backends import backend_named
from disttest.plugin_manager import plugin_manager

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


# Tests that a command names; a longer line is hard to read and to shorten by hand, and fills every report.
_MOST_TARGETS = 20
# What torch's own classes read when they are imported or set up; ranks of a world get theirs from the world.
_OF_CLASSES = ("BACKEND", "WORLD_SIZE", "TORCH_DISTRIBUTED_DEBUG")


def variables_of_classes(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that belongs to the record of a run."""
    return {name: environ[name] for name in _OF_CLASSES if name in environ}


class Run(Protocol):
    """What has to be known of the run: its first event and its result both know it."""

    @property
    def root(self) -> str:
        """Directory that node ids are relative to."""

    @property
    def invocation(self) -> Invocation:
        """What was asked."""


def repeat_command(test: TestCase, run: Run, after: Sequence[str] = ()) -> str:
    """The command, quoted for a shell, to be run where the run was started.

    Args:
        test: the test to repeat.
        run: its run.
        after: the tests that ran before it in the same processes, and so are repeated before it.
    """
    asked = run.invocation
    of_plugin = plugin_manager().call("disttest_world_options", test=test, invocation=asked)
    words = ["disttest", *_command(test, run, after), *_world(test, of_plugin)]
    # Without it, a world ends with its file, and a long file is split.
    words += ["--one-world"] if after and test.world and of_plugin is None else []
    variables = asked.environment if test.kind in (WorldKind.MAIN, WorldKind.THREADS) else {}
    for option in RUN_OPTIONS:  # those that make the world come from the test itself
        if option.repeated and not option.no_flag and (value := asked.options.get(option.name)):
            words += [option.flag, value]
    words += _cluster(asked)
    if extra := tuple(keep_pytest_args(asked.pytest_args)):
        words += ["--", *extra]
    return " ".join([*(f"{name}={quote(value)}" for name, value in variables.items()), *map(quote, words)])


def further_commands(test: TestCase, result: TestResult, run: Run) -> dict[str, str]:
    """A word -> the command line of what else plugins offer for a failed test."""
    return plugin_manager().mapping("disttest_further_commands", str, test=test, result=result, run=run)


def command_lines(test: TestCase, result: TestResult, run: Run) -> tuple[str, ...]:
    """The last lines of a failure: ``repeat: …``, and those of plugins."""
    further = further_commands(test, result, run).items()
    return (
        f"repeat: {repeat_command(test, run, result.after)}",
        *(f"{word}: {line}" for word, line in further),
    )


def _command(test: TestCase, run: Run, after: Sequence[str]) -> Iterator[str]:
    """Which command, which tests it is given, and further options of a plugin."""
    name, *more = plugin_manager().call("disttest_repeat_words", test=test) or ("run",)
    yield name
    yield from _targets(test, run, after)
    yield from more


def _targets(test: TestCase, run: Run, after: Sequence[str]) -> Iterator[str]:
    """The tests before it and the test, in order, each once; the files of them where they are many."""
    nodeids = dict.fromkeys([*(each for each in after if each != test.selected_by), test.selected_by])
    if len(nodeids) > _MOST_TARGETS:
        nodeids = dict.fromkeys(nodeid.partition("::")[0] for nodeid in nodeids)
    return (seen_from_start(nodeid, run) for nodeid in nodeids)


def target_of(test: TestCase, run: Run) -> str:
    """The node id, its file as it is seen from where the run was started; bundled suites go by name."""
    return seen_from_start(test.selected_by, run)


def seen_from_start(nodeid: str, run: Run) -> str:
    """The same of the node id of a test or of a file."""
    asked = run.invocation
    if asked.bundled or not (asked.cwd and run.root):
        return nodeid
    file, colons, rest = nodeid.partition("::")
    path = os.path.relpath(os.path.join(run.root, file), asked.cwd)  # noqa: PTH118 - perhaps of another machine
    return f"{path}{colons}{rest}"


def _world(test: TestCase, of_plugin: Sequence[str] | None) -> Iterator[str]:
    if test.world is None:
        return
    if test.kind is WorldKind.RANKS:
        yield from of_plugin or ("--world-sizes", str(test.world.size))
    yield from ("--backend", test.world.backend)
    if len(backend_named(test.world.backend).devices) != 1:
        yield from ("--device", test.world.device)


def _cluster(asked: Invocation) -> Iterator[str]:
    """The scheduler and what it was asked for; nothing of a run on one machine."""
    if not asked.options.get("launcher"):
        return
    for option in COMMAND_SETTINGS:
        if not option.repeated or not (value := asked.options.get(option.name)):
            continue
        for each in value.splitlines() if option.many else [value]:
            # One word, as these values may begin with a dash.
            yield f"{option.flag}={each}"


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
    """The word for a shell; with bash's escapes where it has characters that cannot be seen."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(char if char.isprintable() and char not in "\\'" else _escape(char) for char in word)
    return f"$'{escaped}'"


def _escape(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
