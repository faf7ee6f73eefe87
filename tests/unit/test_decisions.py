"""docs/decisions.md: each decision is a record with its day and a status that the page explains."""

import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "decisions.md").read_text()


def test_each_has_its_day_a_status_and_a_sentence() -> None:
    records = re.findall(r"^- .*", PAGE, re.MULTILINE)
    known = re.compile(r"- 20\d\d-\d\d-\d\d(, until [^:]+)?: \*\*\S")

    assert len(records) > 100
    assert [] == [record for record in records if not known.match(record)]


def test_none_stands_twice() -> None:
    titles = re.findall(r"^- [^*]+\*\*(.+?)\*\*", PAGE, re.MULTILINE)

    assert len(titles) == len(set(titles))
