"""Commands that repeat one test of a run, alone and as it was run, or one recorded rank of it. Pure.

A command contains everything that affects the behaviour of the test (earlier tests in its world, world size, backend,
device, rules, limits). It omits selection, the location of results and the treatment of failures.
"""

from __future__ import annotations

import os.path
import re
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

_ATTACHED = re.compile(r"-([rkmn].+|[qvx]+)")
"""The same in one word: ``-rA``, ``-kname``, ``-qq``."""

# Maximum number of tests in a command; a longer line is hard to read and fills every report.
_MOST_TARGETS = 20
# Variables that torch's classes read at import or in set-up; ranks of a world get them from the world.
_OF_CLASSES = ("BACKEND", "WORLD_SIZE", "TORCH_DISTRIBUTED_DEBUG")


def variables_of_classes(environ: Mapping[str, str]) -> dict[str, str]:
    """Select the environment variables that belong to the record of a run."""
    return {name: environ[name] for name in _OF_CLASSES if name in environ}


class Run(Protocol):
    """The parts of a run that are needed here; its first event and its result both have them."""

    @property
    def root(self) -> str:
        """Directory to which node ids are relative."""

    @property
    def invocation(self) -> Invocation:
        """The request of the user."""


def repeat_command(test: TestCase, run: Run, after: Sequence[str] = ()) -> str:
    """Build the command, quoted for a shell, for the directory where the run was started.

    Args:
        test: the test to repeat.
        run: its run.
        after: tests that ran before it in the same processes, and are repeated first.
    """
    asked = run.invocation
    of_plugin = plugin_manager().call("disttest_world_options", test=test, invocation=asked)
    words = ["disttest", *_command(test, run, after), *_world(test, of_plugin)]
    # Without this option a world ends with its file, and a long file is split.
    words += ["--one-world"] if after and test.world and of_plugin is None else []
    variables = asked.environment if test.kind in (WorldKind.MAIN, WorldKind.THREADS) else {}
    # Options that select the world follow from the test itself.
    for option in RUN_OPTIONS:
        if option.repeated and not option.no_flag and (value := asked.options.get(option.name)):
            words += [option.flag, value]
    words += _cluster(asked)
    if extra := tuple(keep_pytest_args(asked.pytest_args)):
        words += ["--", *extra]
    return " ".join([*(f"{name}={quote(value)}" for name, value in variables.items()), *map(quote, words)])


def further_commands(test: TestCase, result: TestResult, run: Run) -> dict[str, str]:
    """Map words to further command lines that plugins offer for a failed test."""
    return plugin_manager().mapping("disttest_further_commands", str, test=test, result=result, run=run)


def command_lines(test: TestCase, result: TestResult, run: Run) -> tuple[str, ...]:
    """Return the last lines of a failure: ``repeat: …``, and those of plugins."""
    further = further_commands(test, result, run).items()
    return (
        f"repeat: {repeat_command(test, run, result.after)}",
        *(f"{word}: {line}" for word, line in further),
    )


def _command(test: TestCase, run: Run, after: Sequence[str]) -> Iterator[str]:
    """Yield the command, its tests, and further options of a plugin."""
    name, *more = plugin_manager().call("disttest_repeat_words", test=test) or ("run",)
    yield name
    yield from _targets(test, run, after)
    yield from more


def _targets(test: TestCase, run: Run, after: Sequence[str]) -> Iterator[str]:
    """Yield the earlier tests and the test, in order, once each; their files if there are many."""
    # The test comes last even if an earlier repetition of it is among `after`.
    nodeids = dict.fromkeys([*(each for each in after if each != test.selected_by), test.selected_by])
    if len(nodeids) > _MOST_TARGETS:
        nodeids = dict.fromkeys(nodeid.partition("::")[0] for nodeid in nodeids)
    return (seen_from_start(nodeid, run) for nodeid in nodeids)


def target_of(test: TestCase, run: Run) -> str:
    """Return the node id with its file relative to the start directory of the run; bundled suites keep their names."""
    return seen_from_start(test.selected_by, run)


def seen_from_start(nodeid: str, run: Run) -> str:
    """Return the id of a test or a file relative to the start directory of the run."""
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
    # A backend that runs on one type of device determines it: nccl needs no `--device cuda`.
    if len(backend_named(test.world.backend).devices) != 1:
        yield from ("--device", test.world.device)


def _cluster(asked: Invocation) -> Iterator[str]:
    """Yield the scheduler and its options; nothing for a run on one machine."""
    if not asked.options.get("launcher"):
        return
    for option in COMMAND_SETTINGS:
        if not option.repeated or not (value := asked.options.get(option.name)):
            continue
        for each in value.splitlines() if option.many else [value]:
            # One word, because these values may begin with a dash.
            yield f"{option.flag}={each}"


def keep_pytest_args(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the pytest arguments that can change a test's behaviour; selection, order and output are omitted."""
    skip_value = False
    for word, following in pairwise([*arguments, ""]):
        if skip_value:
            skip_value = False
        # The repeat command loads disttest anyway.
        elif word in _DROPPED_WITH_VALUE or (word == "-p" and following.startswith("disttest")):
            skip_value = True
        elif (
            word not in _DROPPED
            and not _ATTACHED.fullmatch(word)
            and not word.startswith(tuple(f"{flag}=" for flag in _DROPPED_WITH_VALUE))
        ):
            yield word


def quote(word: str) -> str:
    """Quote a word for a shell, with bash escapes for unprintable characters."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(char if char.isprintable() and char not in "\\'" else _escape(char) for char in word)
    # bash's `$'…'` keeps the command on one line if an id contains a newline or an escape sequence.
    return f"$'{escaped}'"


def _escape(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    # A file name that is not UTF-8 has lone surrogates, each of which represents one byte. An id may have others.
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", errors))
