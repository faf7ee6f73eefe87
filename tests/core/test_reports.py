"""What real runs leave is what other programs can read, and what a reader needs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import junitparser
import pytest
from lab import FAULTY_SUITES, Ended, Lab
from lxml import etree
from rendered import render_final
from results_schema import results_schema

from disttest.plugins.github.annotations import render_annotations
from disttest.reports import aggregates
from disttest.reports.results_json import load_results_json
from disttest.reports.write import rebuild

SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).parents[1] / "support" / "junit-xunit2.xsd"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Every faulty suite there is: crashes, hangs, skips, odd output."""
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "test_verdicts.py").write_bytes((FAULTY_SUITES / "test_verdicts.py").read_bytes())
    (folder / "test_broken.py").write_text("import no_such_module\n")
    return Lab(folder).run("run", ".", "--timeout", "3")


def test_junit_validates_and_junitparser_agrees_with_the_run(ended):
    SCHEMA.assertValid(etree.parse(ended.results / "junit.xml"))
    loaded = junitparser.JUnitXml.fromfile(str(ended.results / "junit.xml"))
    failed = {case.name for suite in loaded for case in suite if any(_is_bad(entry) for entry in case.result)}

    assert failed == {test.test.name for test in ended.run.bad} | {"test_broken.py"}


def _is_bad(entry: junitparser.Element) -> bool:
    return isinstance(entry, junitparser.Failure | junitparser.Error)


def test_each_rank_has_its_log_attached_by_a_path_that_exists(ended):
    outputs = etree.parse(ended.results / "junit.xml").iter("system-out")
    lines = [line for output in outputs for line in output.text.splitlines()]
    attached = [line[13:-2] for line in lines if line.startswith("[[ATTACHMENT|") and line.endswith("]]")]
    logs = [rank.log for test in ended.run.tests for rank in test.final.ranks]

    assert sorted(attached) == sorted(logs)
    assert all((ended.results / path).is_file() for path in attached)


def test_results_json_follows_its_schema_and_says_what_the_journal_says(ended):
    content = (ended.results / "results.json").read_bytes()

    jsonschema.validate(json.loads(content), results_schema())
    assert load_results_json(content) == ended.run


def test_reports_built_again_from_the_journal_are_the_same(ended):
    before = {path: path.read_bytes() for path in ended.results.iterdir() if path.is_file()}
    rebuild(ended.results)

    assert {path: path.read_bytes() for path in before} == before


def test_annotations_stand_where_it_happened(ended):
    lines = render_annotations(ended.run).splitlines()
    places = dict(
        re.findall(
            r"^::error title=(\w+)\[.*?,file=test_verdicts\.py,line=(\d+)::", "\n".join(lines), re.MULTILINE
        )
    )
    source = (ended.results.parent / "test_verdicts.py").read_text().splitlines()

    assert "raise ValueError" in source[int(places["test_fails_while_peer_waits"]) - 1]
    assert sum(line.startswith("::error ") for line in lines) == 10
    left = [line for line in lines if line.startswith("::warning ")]
    assert ["test_grandchild_keeps_pipe_open"] == [re.findall(r"title=(\w+)\[", line)[0] for line in left]
    # A daemon is found when its world has ended: a note of the run, which names the test.
    assert any(re.search(r"test_double_fork_new_session\[.*left a process", note) for note in ended.run.notes)


def test_the_terminal_tells_each_finding(ended):
    text = render_final(ended.run)

    for test in ended.run.bad:
        assert aggregates.finding(test.final) in text
    assert "test_broken.py could not be collected" in text
