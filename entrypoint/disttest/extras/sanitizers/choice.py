"""Which sanitizers a run wants: the value of ``--sanitize``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from disttest.errors import UsageError
from disttest.model import Frozen

POLICIES: dict[str, tuple[str, ...]] = {"order": (), "race": ("nccl",), "values": ()}
"""Each sanitizer, and what may be said of how it judges."""
NAMES = tuple(POLICIES)
OFF = "off"
ALL = "all"
_WARN = "warn"
_NAMED = [f"{name}[:{'|'.join(policies)}]" if policies else name for name, policies in POLICIES.items()]
FORM = f"{'|'.join((*_NAMED, ALL))}[:{_WARN}][,…]|{OFF}"


class Chosen(Frozen):
    """A sanitizer that is on."""

    name: str
    fails: bool
    """Whether what it finds fails the test; else it is told beside the verdict."""
    policy: str = ""
    """One of :data:`POLICIES`."""


def words_of(name: str) -> dict[str, str]:
    """The fields of a finding that have the words of reports.

    Args:
        name: of the sanitizer.
    """
    return {"found_by": f"sanitizer {name}", "failure": "sanitizer", "section": "sanitizers"}


def move_findings(event: dict[str, Any]) -> None:
    """Give the findings of an event of version 0.1, whose field for any finder was ``sanitizer``, their present form."""
    result = event.get("result")
    for finding in result.get("findings", ()) if isinstance(result, dict) else ():
        if "sanitizer" in finding:
            name = finding["finder"] = finding.pop("sanitizer")
            finding.update({} if "found_by" in finding else words_of(name))


def parse_chosen(text: str) -> tuple[Chosen, ...]:
    """``order``, ``order:warn``, ``race:nccl``, several of them with commas, ``all``, ``all:warn``, or ``off``.

    The last word about a sanitizer counts.

    Raises:
        UsageError: there is no such sanitizer.
    """
    words = [word.strip() for word in text.split(",")]
    if words == [OFF]:
        return ()
    by_name = {chosen.name: chosen for word in words for chosen in _parse(word)}
    return tuple(by_name[name] for name in NAMES if name in by_name)


def _parse(word: str) -> list[Chosen]:
    name, *more = word.split(":")
    fails = _WARN not in more
    policies = [each for each in more if each != _WARN]
    known = POLICIES.get(name, ())
    if (
        name not in (*NAMES, ALL)
        or len(more) > len(set(more))
        or len(policies) > 1
        or not set(policies) <= set(known)
    ):
        raise UsageError(f"{word!r} is not one of {', '.join(_spellings())}")
    policy = policies[0] if policies else ""
    return [Chosen(name=each, fails=fails, policy=policy) for each in (NAMES if name == ALL else (name,))]


def _spellings() -> list[str]:
    names = [*NAMES, *(f"{name}:{policy}" for name, policies in POLICIES.items() for policy in policies), ALL]
    return [*names, *(f"{each}:{_WARN}" for each in names), OFF]


def show_chosen(chosen: Iterable[Chosen]) -> str:
    """The reverse."""
    return ",".join(":".join(_words(each)) for each in chosen) or OFF


def _words(chosen: Chosen) -> list[str]:
    return [chosen.name, *([chosen.policy] if chosen.policy else []), *([] if chosen.fails else [_WARN])]
