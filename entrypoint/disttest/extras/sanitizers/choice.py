"""The value of ``--sanitize``: the sanitizers that a run enables."""

from __future__ import annotations

from collections.abc import Iterable

from disttest.errors import UsageError
from disttest.model import Frozen

POLICIES: dict[str, tuple[str, ...]] = {"order": (), "race": ("nccl",), "values": ()}
"""Each sanitizer with its policies for judging."""
NAMES = tuple(POLICIES)
OFF = "off"
ALL = "all"
_WARN = "warn"
_NAMED = [f"{name}[:{'|'.join(policies)}]" if policies else name for name, policies in POLICIES.items()]
FORM = f"{'|'.join((*_NAMED, ALL))}[:{_WARN}][,…]|{OFF}"


class Chosen(Frozen):
    """An enabled sanitizer."""

    name: str
    # A sanitizer warns by default: what it finds has passed on this backend, and a default that turns green suites
    # red is switched off.
    # docs/decisions/0021-sanitizers-warn.md
    fails: bool
    """Whether a finding fails the test; otherwise it is a warning."""
    policy: str = ""
    """One of the sanitizer's :data:`POLICIES`."""


def words_of(name: str) -> dict[str, str]:
    """Return the fields of a finding that contain text for reports.

    Args:
        name: name of the sanitizer.
    """
    return {"found_by": f"sanitizer {name}", "failure": "sanitizer", "section": "sanitizers"}


def parse_chosen(text: str) -> tuple[Chosen, ...]:
    """Parse ``order``, ``order:warn``, ``race:nccl``, several of them with commas, ``all``, ``all:warn``, or ``off``.

    The last word about a sanitizer counts.

    Raises:
        UsageError: a sanitizer or policy is unknown.
    """
    words = [word.strip() for word in text.split(",")]
    if words == [OFF]:
        return ()
    # `all,order:warn` means all of them, and one of them as a warning.
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
    """Format the sanitizers as :func:`parse_chosen` reads them."""
    return ",".join(":".join(_words(each)) for each in chosen) or OFF


def _words(chosen: Chosen) -> list[str]:
    return [chosen.name, *([chosen.policy] if chosen.policy else []), *([] if chosen.fails else [_WARN])]
