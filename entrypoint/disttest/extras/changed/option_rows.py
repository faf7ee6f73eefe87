"""The options of ``--changed``."""

from __future__ import annotations

from pathlib import Path

from disttest.options.option import Option
from disttest.options.values import RATIO, SWITCH, Type, path

NAME = "changed"
USUAL = "disttest-changed.json"
MERGE_BASE = "merge-base"
"""Value of ``--changed`` without a revision."""
_COMMANDS = ("run", "list", "plan")


def _is_revision(word: str) -> bool:
    """Whether a word behind a bare ``--changed`` is its revision, and not a test or an option."""
    return not word.startswith("-") and not Path(word.partition("::")[0]).exists()


# Neither a variable nor a setting: a run that leaves tests out has to be asked for.
CHANGED = Option(
    name="changed",
    type=Type(form="REV", bare=MERGE_BASE, follows=_is_revision),
    help="Run only the tests that changes since REV can affect, and record the parts that each test uses.",
    commands=_COMMANDS,
    inputs=("run", "plan"),
    otherwise="all tests run; without REV, since the branch left the default branch",
    in_file=False,
    shapes_tests=True,
    common=True,
)
RECORD = Option(
    name="record-coverage",
    type=SWITCH,
    help="Record the functions and files that each test uses, for later runs with --changed.",
    commands=("run",),
    inputs=("run",),
    default=False,
    has_variable=True,
)
FILE = Option(
    name="coverage-record",
    type=path("FILE"),
    help="File of that record.",
    commands=_COMMANDS,
    inputs=("run", "plan"),
    otherwise=f"{USUAL} in the root of the repository",
    has_variable=True,
    shapes_tests=True,
)
CANARIES = Option(
    name="canaries",
    type=RATIO,
    help="Share of the tests that --changed leaves out which run nevertheless, to find mistakes of the selection.",
    commands=_COMMANDS,
    inputs=("run", "plan"),
    default=0.02,
    shapes_tests=True,
)
OPTIONS = (CHANGED, RECORD, FILE, CANARIES)
