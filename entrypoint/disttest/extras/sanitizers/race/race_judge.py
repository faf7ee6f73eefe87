"""Judge the races that ranks have seen: the same race on several ranks is one finding. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from disttest.extras.sanitizers.order.order_findings import at, describe
from disttest.extras.sanitizers.race.races import HANDED_OUT, Race, RaceKind, Races, SourceLine
from disttest.extras.sanitizers.sanitizer import Judgement
from disttest.model import PluginFinding, RankCalls, SeenCall, WindowEdge, rank_names

NAME = "race"
_decoder = msgspec.json.Decoder(Races)


class _Wording(NamedTuple):
    """Words of a kind of race."""

    one: str
    """Verb phrase for one rank."""
    several: str
    effect: str
    advice: str


_WORDINGS = {
    RaceKind.OUTPUT_READ: _Wording(
        "reads the result of",
        "read the result of",
        "Timing decides whether the old value is read, the new one, or bytes of both: sometimes the number is wrong.",
        "Call wait() on the handle before reading the result. The wait() of another call suffices only if the backend runs "
        "calls in order (race:nccl).",
    ),
    RaceKind.OUTPUT_WRITTEN: _Wording(
        "writes the result of",
        "write the result of",
        "Depending on timing, the written value is lost, or mixed with the one that the call writes.",
        "Call wait() on the handle before writing the tensor, or write to another one.",
    ),
    RaceKind.INPUT_WRITTEN: _Wording(
        "writes the input of",
        "write the input of",
        "Depending on timing, the other ranks get the old value, the new one, or bytes of both.",
        "Call wait() on the handle before writing the tensor again, or pass a copy to the call (clone()).",
    ),
    RaceKind.STORAGE_FREED: _Wording(
        "frees the memory of",
        "free the memory of",
        "The call continues to read or write memory that belongs to other data: wrong numbers, or a crash elsewhere.",
        "Call wait() on the handle before the storage is resized.",
    ),
}


def judge_races(seen: Mapping[int, Races]) -> tuple[PluginFinding, ...]:
    """Judge a test that passed on all ranks.

    Args:
        seen: rank -> its races.
    """
    if any(each.doubtful for each in seen.values()):
        return ()
    alike: dict[tuple[object, ...], dict[int, Race]] = {}
    for rank, races in seen.items():
        for race in races.races:
            # One line that all ranks run is one finding. Sequence numbers and shapes may differ between
            # ranks.
            key = race.kind, race.call.op, race.call.file, race.call.line, race.at
            alike.setdefault(key, {}).setdefault(rank, race)
    return tuple(_finding(ranks) for ranks in alike.values())


def judge_reports(reports: Mapping[int, msgspec.Raw]) -> Judgement:
    """Judge the reports of the ranks."""
    seen = {rank: _decoder.decode(report) for rank, report in sorted(reports.items())}
    notes = tuple(
        f"sanitizer race: rank {rank} has seen {races.beyond:,} more races"
        for rank, races in seen.items()
        if races.beyond
    )
    return Judgement(judge_races(seen), notes)


def _finding(races: Mapping[int, Race]) -> PluginFinding:
    first = races[min(races)]
    wording = _WORDINGS[first.kind]
    verb = wording.several if len(races) > 1 else wording.one
    thread = " in another thread" if first.in_other_thread else ""
    return PluginFinding(
        finder=NAME,
        kind=str(first.kind),
        message=f"{rank_names(races)} {verb} {describe(first.call)}{at(first.call)} while it is pending: "
        f"{_touch(first)}{_place(first.at)}{thread}; {_waits(first)}",
        effect=wording.effect,
        advice=_ADVICE_ON_STREAMS if first.on_other_stream else wording.advice,
        # Four ranks show it. The message names all of them.
        orders=tuple(
            RankCalls(rank=rank, calls=tuple(_calls(race))) for rank, race in sorted(races.items())[:4]
        ),
    )


_ADVICE_ON_STREAMS = (
    "wait() makes the current stream wait, not the thread. Make this stream wait for that one (wait_stream, or an event), "
    "or call wait() while this stream is current."
)


def _waits(race: Race) -> str:
    if race.on_other_stream:
        return "only another stream was made to wait for it"
    if race.waited and race.waited.where:
        return f"the wait comes at {race.waited.where}"
    return _NO_WAIT[bool(race.waited)]


_NO_WAIT = {True: "the wait comes later", False: "nothing in the test waits for it"}


def _touch(race: Race) -> str:
    if race.kind is RaceKind.INPUT_WRITTEN and race.what == HANDED_OUT:
        return "its memory has changed since numpy got it"
    return race.what


def _place(line: SourceLine) -> str:
    return f" at {line.where}" if line.where else ""


def _calls(race: Race) -> Iterator[SeenCall]:
    """Yield the call, the access to its tensor, and the wait."""
    call = race.call
    what = f"{describe(call)}, #{race.seq} of group {call.group.title}"
    yield SeenCall(what=what, file=call.file, line=call.line, decides=True, window=WindowEdge.OPENS)
    yield SeenCall(
        what=_touch(race), file=race.at.file, line=race.at.line, decides=True, window=WindowEdge.INSIDE
    )
    if race.waited is None:
        what = "wait of another stream" if race.on_other_stream else "no wait"
        yield SeenCall(what=what, window=WindowEdge.INSIDE)
    else:
        yield SeenCall(what="wait", file=race.waited.file, line=race.waited.line, window=WindowEdge.CLOSES)
