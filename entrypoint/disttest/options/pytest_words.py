"""Options of pytest that disttest's commands accept without ``--`` before them."""

from __future__ import annotations

from disttest.model import Frozen

PYTEST_GROUP = "Options of pytest (all others behind --)"


class PytestWord(Frozen):
    """One such option."""

    flags: tuple[str, ...]
    help: str
    commands: tuple[str, ...] = ("run",)
    form: str = ""
    """Placeholder of its value; empty if it has none."""
    many: bool = False
    """Whether it may be repeated, each time with a value."""


_COLLECTING = ("run", "list", "plan")

PYTEST_WORDS = (
    PytestWord(
        flags=("-k",), form="EXPR", help="Only tests whose names match this expression.", commands=_COLLECTING
    ),
    PytestWord(
        flags=("-m",),
        form="MARKS",
        help="Only tests whose marks match this expression.",
        commands=_COLLECTING,
    ),
    PytestWord(
        flags=("-p",),
        form="NAME",
        help="Load a plugin of pytest; no:NAME leaves out one of pytest or disttest, such as no:disttest.html.",
        commands=_COLLECTING,
        many=True,
    ),
    PytestWord(flags=("-x",), help="Stop at the first failure."),
    PytestWord(flags=("--maxfail",), form="N", help="Stop after so many failures."),
    PytestWord(
        flags=("-s",),
        help="Show what tests print, as they print it: each line of a rank with its rank in front.",
    ),
    PytestWord(flags=("-v",), help="Show pytest's own output, with more of it for each further v."),
    PytestWord(
        flags=("--pdb",),
        help="Debug a test where it fails; of a world, the rank that fails first.",
    ),
)
"""All other options are given after ``--``, where pytest's command line begins."""
