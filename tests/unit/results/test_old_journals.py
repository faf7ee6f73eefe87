"""Journals that an earlier version wrote, with fields in other places, are read as those of today."""

from pathlib import Path

import pytest

from disttest.extras.chaos.case import FaultKind, Survival, baseline_ranks, case_of
from disttest.extras.chaos.tables import report_tables
from disttest.extras.replay.recorded import recorded_ranks
from disttest.plugins.deadlock.proven import DeadlockKind, proof_of
from disttest.reports.write import write_reports
from disttest.results.fold import fold
from disttest.results.journal import read_events
from disttest.results.narrative import describe_ranks, how_failed
from disttest.results.repeat import command_lines, repeat_command

JOURNALS = Path(__file__).parents[2] / "fixtures" / "journals"


def test_faults_that_stood_beside_the_fields_of_the_core_are_in_the_tables_and_repeated():
    run = fold(read_events(JOURNALS / "chaos-harmed.jsonl"))

    case = case_of(run.tests[0].test)
    assert case is not None
    assert Survival.CONNECTION_ERROR is case.contract.of(FaultKind.KILL)
    (table,) = report_tables(run)
    assert ["rank 0  ·", "rank 1  ·"] == list(table.lines())
    command = "disttest chaos 'test_step.py::test_step[2xgloo]' --fault kill:0:1 "
    assert command in {f"{repeat_command(test.test, run).partition('--world')[0]}" for test in run.tests}


def test_calls_of_an_unharmed_run_are_those_of_its_ranks(tmp_path):
    run = fold(read_events(JOURNALS / "chaos-unharmed.jsonl"))

    ranks = baseline_ranks(run.tests[0].final)
    assert [(0, "allreduce"), (1, "allreduce")] == [(rank.rank, rank.calls[0].op) for rank in ranks]
    assert write_reports(run, tmp_path)


def test_a_proof_that_stood_beside_the_fields_of_the_core_is_told_and_drawn(tmp_path):
    run = fold(read_events(JOURNALS / "deadlock.jsonl"))

    hung, expected = (test.final for test in run.tests)
    assert "deadlock" == how_failed(hung)
    proof = proof_of(hung)
    assert proof is not None
    assert (DeadlockKind.POINT_TO_POINT, True, [0, 1]) == (
        proof.kind,
        proof.ended,
        [edge.rank for edge in proof.edges],
    )
    assert "ranks 0, 1: waited in a deadlock, ended by disttest" in next(describe_ranks(hung))
    assert "ranks 0, 1: was in the deadlock that the test expects" in next(describe_ranks(expected))
    write_reports(run, tmp_path)
    assert '"waits":[{"nodes":[{"rank":0,' in (tmp_path / "report.html").read_text()


def test_a_finding_whose_finder_was_a_sanitizer_has_the_words_of_one():
    run = fold(read_events(JOURNALS / "sanitizer.jsonl"))

    result = run.tests[0].final
    (finding,) = result.findings
    assert ("order", "sanitizer order", "sanitizers") == (finding.finder, finding.source, finding.section)
    assert "sanitizer" == how_failed(result)
    assert result.message.startswith("sanitizer order: ranks disagree")


def test_the_ranks_that_were_recorded_are_those_that_can_be_replayed():
    run = fold(read_events(JOURNALS / "recorded.jsonl"))

    (failed,) = run.tests
    assert (0, 1) == recorded_ranks(failed.final)
    _, *further = command_lines(failed.test, failed.final, run)
    assert "replay: disttest replay /tmp/results 'test_fails.py::test_fails[2xgloo]' --rank 1" in further
    assert "what to do: disttest explain rank-failed" in further  # a journal without ids


@pytest.mark.parametrize(
    ("message", "failed_how"),
    [("ranks disagree: rank 0 passed, rank 1 skipped", "ranks disagree"), ("ValueError: no", "failed")],
)
def test_a_disagreement_that_only_the_message_shows_is_one(tmp_path, message, failed_how):
    journal = tmp_path / "events.jsonl"
    result = f'{{"nodeid":"test_x.py::test_x","outcome":"failed","cause":"test","message":"{message}"}}'
    journal.write_text(f'{{"event":"test_finished","at_s":1.0,"result":{result}}}\n')

    (event,) = read_events(journal)

    assert failed_how == how_failed(event.result)
