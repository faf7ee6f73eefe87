"""The field's standard words in code, messages and docs (docs/glossary.md), and none that stood in their place."""

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "entrypoint",
    "suites",
    "docs",
    "actions",
    "examples",
    "tests",
    "bench",
    "tools",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "action.yml",
)
NOT_OURS = {"catalogue", "node_modules", Path(__file__).name}
SUFFIXES = {".py", ".md", ".yml", ".j2", ".js", ".css"}
BANNED = {
    r"can not(?! only)": "cannot",
    r"obituar(y|ies)": "exit reason",
    r"\bbury\b|\bburied\b": "record exit",
    r"testimon(y|ies)": "evidence",
    r"misdeeds?": "fault",
    r"\brogues?\b": "faulty suite",
    r"[Ww]aiting ?[Rr]oom": "pending batches",
    r"LogRoom|junit_room": "log store, text budget",
    r"\b[Zz]ygote|\b[Cc]rew\b": "fork server, world pool",
    r"gang_id|build_gangs|GangScheduler": "batch",
    r"left with (exit )?code": "exited with code",
    r"spoke nonsense|wrote nonsense": "sent a malformed message",
    r"Patience in": "Maximum queue time",
    r"[Pp]atien(t|ts|ce)\b|patience_s|PATIENCE": "wait, suspects",
    r"\b_?[Dd]eeds?\b|by_deed": "what a rank did, breach",
    r"class (Book|Told|Place|Room)\b": "recorder, node note, position, text budget",
    r"def showing\b": "progress mode, visible devices",
    r"\b[Uu]pkeep\b": "device health",
    r"\bon_accused\b": "on device blamed",
    r"\bSeats?\b": "rank handle, slot pool",
    r"--share\b|NodeShare|\bShare(Record|Done|World|Controller)": "--allow-busy-gpus, partition",
    r"EngineState|EngineEnd|engine-args|engine_id": "scheduler: an engine runs containers",
}


def below(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        yield place
        return
    for folder, folders, names in os.walk(place):
        folders[:] = set(folders) - NOT_OURS
        yield from (Path(folder, name) for name in names if name not in NOT_OURS)


@functools.cache
def lines() -> list[tuple[str, str]]:
    """Where each line stands, and the line; read once for all words."""
    return [
        (f"{path.relative_to(ROOT)}:{number}", line.strip())
        for place in PLACES
        for path in below(ROOT / place)
        if path.suffix in SUFFIXES
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]


@pytest.mark.slow("reads all code and all pages")
@pytest.mark.parametrize("banned", BANNED)
def test_a_word_that_stood_for_a_standard_one_is_gone(banned: str) -> None:
    pattern = re.compile(banned)

    found = [f"{place}: {line}" for place, line in lines() if pattern.search(line)]

    assert found == [], f"write {BANNED[banned]!r}"


def test_what_schedules_is_no_engine() -> None:
    sources = (ROOT / "entrypoint" / "disttest" / "cluster").rglob("*.py")
    found = [str(path) for path in sources if re.search(r"(?<!container )engine", path.read_text())]

    assert found == []


def test_the_glossary_has_no_word_twice() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    terms = [term.strip() for row in rows for term in row.split(",")]

    assert len(terms) == len(set(terms)) > 20
