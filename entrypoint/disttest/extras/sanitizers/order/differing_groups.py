"""Find groups that ranks number differently: each process counts them, and ranks meet by number. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from disttest.extras.sanitizers.order.order_findings import NAME
from disttest.extras.sanitizers.order.order_kinds import OrderFindingKind
from disttest.extras.sanitizers.order.stream import GroupMaking, Stream
from disttest.extras.sanitizers.sanitizer import Consequence
from disttest.model import PluginFinding, RankCalls, SeenCall, rank_names

_UNLIKE = Consequence(
    "Ranks meet by the numbers of groups. gloo passes as long as no two ranks meet under different numbers. The next group, "
    "or the first collective over NCCL, hangs or connects the wrong ranks.",
    "Make all groups on all ranks in the same order, also on ranks that are not members, or pass "
    "use_local_synchronization=True.",
)


def find_differing_groups(streams: Mapping[int, Stream]) -> Iterator[PluginFinding]:
    """Yield a finding for the first number under which ranks made different groups, or only some made one."""
    made = {rank: _by_number(stream) for rank, stream in streams.items()}
    for key in dict.fromkeys(key for each in made.values() for key in each):
        found = {rank: each.get(key) for rank, each in made.items()}
        if _are_unlike(list(found.values())):
            yield _finding(key[0], found)
            return


def _are_unlike(makings: Sequence[GroupMaking | None]) -> bool:
    if len({making and (making.ranks, making.dimension) for making in makings}) == 1:
        return False
    # A rank alone in its group meets no other rank under that number.
    return not all(making and len(making.ranks) == 1 and not making.dimension for making in makings)


def _by_number(stream: Stream) -> dict[tuple[str, int], GroupMaking]:
    """Map number and occurrence to the group: torch restarts counting after the default group is destroyed."""
    given: Counter[str] = Counter()
    found = {}
    for making in stream.makings:
        found[making.number, given[making.number]] = making
        given[making.number] += 1
    return found


def _finding(number: str, found: Mapping[int, GroupMaking | None]) -> PluginFinding:
    # torch names groups by a counter of the process:
    # https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group
    by_call: dict[str, list[int]] = {}
    for rank, making in found.items():
        by_call.setdefault(_describe(making), []).append(rank)
    parts = ", ".join(f"{rank_names(ranks)} {call}" for call, ranks in by_call.items())
    kind = OrderFindingKind.EXTRA if None in found.values() else OrderFindingKind.MISMATCH
    return PluginFinding(
        finder=NAME,
        kind=str(kind),
        message=f"ranks disagree about group #{number}: {parts}",
        effect=_UNLIKE.effect,
        advice=_UNLIKE.advice,
        orders=tuple(
            RankCalls(rank=rank, calls=(_shown(making),))
            for rank, making in found.items()
            if making is not None
        ),
    )


def _describe(making: GroupMaking | None) -> str:
    if making is None:
        return "never made it"
    place = f" at {making.where}" if making.where else ""
    dimension = f" for {making.dimension}" if making.dimension else ""
    return f"made it of {rank_names(making.ranks)}{dimension}{place}"


def _shown(making: GroupMaking) -> SeenCall:
    what = f"new_group of {rank_names(making.ranks)}, group #{making.number}"
    return SeenCall(what=what, file=making.file, line=making.line, decides=True)
