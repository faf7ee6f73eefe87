"""docs/decisions/: each record has all parts, a date and a known status, and the index lists exactly these records."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
STATUS = r"accepted|proposed|rejected|superseded by \d+"


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_its_parts(record: Path) -> None:
    text = record.read_text()

    assert re.match(
        rf"# {int(record.name[:4])}\. \S.*\n\nDate: 20\d\d-\d\d-\d\d\. Status: ({STATUS})\.\n", text
    )
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == ["Context", "Options", "Decision", "Consequences"]
    assert len(re.findall(r"^- ", text, re.MULTILINE)) > 1, "a decision needs more than one option"


def test_the_index_lists_each_record_once() -> None:
    rows = re.findall(
        r"^\| (\d+) \| \[(.+)\]\((.+)\) \| (.+) \| (.+) \|$", (FOLDER / "index.md").read_text(), re.MULTILINE
    )

    assert [number for number, *_ in rows] == [str(n) for n in range(1, len(RECORDS) + 1)]
    for (number, title, name, date, status), record in zip(rows, RECORDS, strict=True):
        assert name == record.name
        assert record.read_text().startswith(f"# {number}. {title}\n\nDate: {date}. Status: {status}.\n")


def test_a_line_of_code_refers_to_each_record() -> None:
    root = FOLDER.parents[1]
    files = [root / "action.yml", *(root / "entrypoint" / "disttest").rglob("*.py")]
    named = {name for path in files for name in re.findall(r"docs/decisions/(\S+\.md)", path.read_text())}

    assert named == {record.name for record in RECORDS}
