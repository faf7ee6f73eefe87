"""Table of sanitizers, with a row for each name of :data:`disttest.extras.sanitizers.choice.NAMES`."""

from __future__ import annotations

from disttest.extras.sanitizers.order.order_judge import judge_reports as judge_order
from disttest.extras.sanitizers.order.order_recorder import OrderRecorder
from disttest.extras.sanitizers.race.policy import NCCL, Policy
from disttest.extras.sanitizers.race.race_judge import judge_reports as judge_races
from disttest.extras.sanitizers.race.race_recorder import RaceRecorder
from disttest.extras.sanitizers.sanitizer import Sanitizer, SanitizerRecorder
from disttest.extras.sanitizers.values.value_judge import judge_reports as judge_values
from disttest.extras.sanitizers.values.values_file import FILE_NAME


def _values(rank: int, policy: str) -> SanitizerRecorder:
    # Imported late: it needs torch and numpy.
    from disttest.extras.sanitizers.values.value_recorder import ValuesRecorder

    del policy
    return ValuesRecorder(rank)


SANITIZERS = {
    "order": Sanitizer(make_recorder=lambda rank, _: OrderRecorder(rank), judge=judge_order),
    "race": Sanitizer(
        make_recorder=lambda rank, policy: RaceRecorder(rank, Policy(as_nccl=policy == NCCL)),
        judge=judge_races,
    ),
    "values": Sanitizer(make_recorder=_values, judge=judge_values, kept_as=FILE_NAME),
}
