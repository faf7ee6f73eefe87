"""The sections of messages and the code agree: ids are unique and stable, quotes are what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from disttest.cli.main import main
from disttest.extras.explain.message_page import MessageSection, id_of, literals, message_sections

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = message_sections()
QUOTES = [(section.id, quoted) for section in SECTIONS for quoted in section.messages]
OF_OTHERS = {
    "gpu-toolkit-missing": "the container engine",
    "driver-library-mismatch": "NVML",
    "driver-too-old": "torch",
    "stale-compat-libcuda": "CUDA",
    "unsatisfied-condition": "NVIDIA's container toolkit",
    "engine-denied": "the container engine",
    "gpu-lost": "NVML",
    "gpu-needs-reset": "NVML",
    "image-denied": "a registry",
    "image-missing": "a registry",
    "nvml-lost": "NVML",
    "numpy-unusable": "torch",
    "spmd-group-at-collection": "torch",
    "forked-status": "pytest-forked",
}
"""Messages of other programs."""
COMPOSED = {
    "… lists shard N twice": "the code names the repeated thing",
    "cannot run srun (…)": "the code names the command",
    "it collected 1 test that rank 0 did not: …": "the code counts",
    "rank K leaked file descriptors: N of M are open": "a note of a rank's state, behind what leaked",
    "all N ranks failed, rank 0: …": "the code counts, and adds the rank when their messages differ",
}
"""Quotes whose words are never next to each other in the code."""
WORDS = 3
"""Words in a row that must be found in the code. Messages are composed of parts, so a whole one is in no file."""


@pytest.fixture(scope="module")
def code() -> str:
    """All literals of the product, joined over several lines, without their values."""
    files = [*ROOT.glob("entrypoint/disttest/**/*.py"), *ROOT.glob("suites/**/*.py")]
    text = "\n".join(path.read_text() for path in files)
    text = re.sub(r'["\']\s*\n\s*f?["\']', "", text)
    return re.sub(r"\{[^{}\n]*\}", "…", text).replace("\\", "")


@pytest.mark.parametrize(("section", "quoted"), QUOTES, ids=[f"{name}-{text[:30]}" for name, text in QUOTES])
def test_a_quote_is_what_the_code_says(section: str, quoted: str, code: str) -> None:
    if section not in OF_OTHERS and quoted not in COMPOSED:
        parts = [part.split() for text in literals(quoted) for part in re.split(r"\d+", text)]
        longest = min(WORDS, max(map(len, parts)))
        runs = [part[i : i + longest] for part in parts for i in range(len(part) - longest + 1)]
        assert any(" ".join(run).strip(" :;,.()") in code for run in runs), runs


@pytest.mark.parametrize(("section", "quoted"), QUOTES, ids=[f"{name}-{text[:30]}" for name, text in QUOTES])
def test_a_message_leads_to_its_section(section: str, quoted: str) -> None:
    assert id_of(quoted.replace("…", "some text")) == section


@pytest.mark.parametrize("before", ["", "node n2: "])
def test_a_refusal_of_a_whole_job_leads_to_the_section_of_its_reason(before: str) -> None:
    assert id_of(f"refused: {before}Kubernetes says: the server does not answer") == "kubernetes-says"


def test_each_section_has_an_id_of_several_words_and_no_other_has_it() -> None:
    names = re.findall(r"^### (.*)$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    assert len(set(names)) == len(names) > 100
    # Test names have underscores: a word with a hyphen is never a part of one, so `disttest explain` can tell them apart.
    one_word = {name for name in names if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)}
    assert one_word <= {"memlock"}
    assert {section.id for section in SECTIONS} == set(names)


def test_a_section_has_a_meaning_and_ends_with_the_next_step() -> None:
    for section in SECTIONS:
        *meaning, step = section.text.split("\n\n")[bool(section.messages) :]
        assert meaning, section.id
        assert step.startswith("**Next:** "), section.id
        assert "**Next:**" not in "".join(meaning), section.id


def test_an_error_names_its_id(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["explain", "nowhere/"])
    said = capfd.readouterr().err
    assert "disttest: what to do: disttest explain no-journal" in said, said


def test_without_sections_nothing_is_explained(monkeypatch) -> None:
    monkeypatch.setattr("disttest.extras.explain.message_page.message_sections", tuple[MessageSection, ...])
    assert id_of("rank 1 of 2 failed: AssertionError") == ""
