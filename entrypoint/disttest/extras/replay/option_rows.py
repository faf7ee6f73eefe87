"""Option ``--record``, and the options of ``disttest replay``."""

from __future__ import annotations

from enum import StrEnum

from disttest.options.option import of_every_run, rows_of
from disttest.options.values import WHOLE, Type, member_of


class RecordRule(StrEnum):
    """Tests whose recordings are kept for ``disttest replay``."""

    OFF = "off"
    FAILURES = "failures"
    ALL = "all"


RECORD = of_every_run(
    "record",
    member_of(RecordRule),
    "Record the data that each rank receives, for disttest replay: of all tests, or of failures and hangs only (failures).",
    default=RecordRule.OFF,
    repeated=True,
)

OPTIONS = (
    RECORD,
    rows_of("replay")("rank", Type(form="K", parse=WHOLE.parse), "Rank to replay.", default=0, otherwise="0"),
)
