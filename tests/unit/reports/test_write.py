"""Writing reports: all or nothing, one failure does not take the others along, rebuilding from a journal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from rendered import render_results_json
from results_files import check_results_below
from results_schema import SCHEMA_ID, render_schema, results_schema
from sample_runs import SampleRun, mixed_run

from disttest.errors import ReportError, UsageError
from disttest.model import Outcome
from disttest.reports import write
from disttest.reports.reporter import Reporter
from disttest.reports.results_json import load_results_json
from disttest.reports.write import rebuild, write_reports, write_whole
from disttest.results.journal import Journal

PUBLISHED = Path(__file__).parents[3] / "docs" / SCHEMA_ID


def with_sorted_alternatives(found: dict[str, Any]) -> dict[str, Any]:
    """A part of the schema with its alternatives sorted, which another msgspec names in another order."""
    return {**found, "anyOf": sorted(found["anyOf"], key=json.dumps)} if "anyOf" in found else found


def in_one_order(schema: str) -> str:
    return json.dumps(json.loads(schema, object_hook=with_sorted_alternatives))


def journal(results_dir: Path, sample: SampleRun) -> Path:
    sample.finish()
    writer = Journal(results_dir / "events.jsonl")
    for event in sample.events:
        writer.append(event)
    writer.close()
    return results_dir / "events.jsonl"


def sample_with_failure() -> SampleRun:
    sample = SampleRun()
    sample.test()
    sample.test(Outcome.FAILED, name="test_bad", message="rank 1 failed")
    return sample


class TestWriteReports:
    def test_writes_each_format_and_leaves_no_temporary_file(self, tmp_path):
        written = write_reports(mixed_run(tmp_path), tmp_path)

        names = [path.name for path in written]
        assert names[:3] == ["results.json", "junit.xml", "summary.md"]
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "logs"])

    def test_nothing_is_written_through_links_that_others_have_planted(self, tmp_path):
        results, victim = tmp_path / "results", tmp_path / "victim"
        results.mkdir()
        victim.write_text("years of work")
        run = mixed_run(results)
        for name in ("results.json", "junit.xml", "summary.md", "report.html"):
            (results / name).symlink_to(victim)
            (results / f".{name}.{os.getpid()}.tmp").symlink_to(victim)

        written = write_reports(run, results)

        assert victim.read_text() == "years of work"
        assert not any(path.is_symlink() for path in written)

    @pytest.mark.parametrize("kind", ["link", "folder-link", "pipe"])
    def test_a_log_that_is_elsewhere_is_in_no_report(self, tmp_path, kind):
        results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
        run = mixed_run(results)
        elsewhere.mkdir()
        logs = list(results.rglob("rank*.log"))
        for log in logs:
            (elsewhere / log.name).write_text("words of others")
            log.unlink()
            if kind == "link":
                log.symlink_to(elsewhere / log.name)
            elif kind == "pipe":
                os.mkfifo(log)
        if kind == "folder-link":
            for folder in {log.parent for log in logs}:
                folder.rmdir()
                folder.symlink_to(elsewhere)

        written = write_reports(run, results)

        assert logs
        assert not any("words of others" in path.read_text() for path in written)

    def test_one_that_fails_does_not_stop_the_others(self, tmp_path, monkeypatch):
        def broken(run, results_dir, history, file):
            file.write(b"half")
            raise RuntimeError("no ink")

        reporters = {"bad": Reporter("bad.txt", broken), **write.reporters()}
        monkeypatch.setattr(write, "reporters", lambda: reporters)
        with pytest.raises(ReportError, match=r"could not write bad\.txt: RuntimeError: no ink") as caught:
            write_reports(mixed_run(), tmp_path, tuple(reporters))

        assert len(caught.value.written) == len(reporters) - 1
        assert not (tmp_path / "bad.txt").exists()
        assert all(path.is_file() for path in caught.value.written)
        assert "`disttest report DIR` writes them again from the journal" in str(caught.value)

    def test_a_place_that_can_not_be_written_is_told_with_each_report(self, tmp_path):
        with pytest.raises(ReportError, match=r"junit\.xml: FileNotFoundError"):
            write_reports(mixed_run(), tmp_path / "gone")

    def test_an_unknown_format_names_those_that_exist(self, tmp_path):
        with pytest.raises(UsageError, match="no report format 'pdf'; there are json, junit, summary"):
            write_reports(mixed_run(), tmp_path, ("pdf",))

    def test_a_reader_never_sees_half_a_report(self, tmp_path):
        path = write_whole(tmp_path / "report", "old")

        def dies_half_way(file):
            file.write(b"new, but ")
            raise RuntimeError("no ink")

        with pytest.raises(RuntimeError, match="no ink"):
            write_whole(path, dies_half_way)

        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]


class TestRebuild:
    def test_gives_the_same_reports_as_the_run_did(self, tmp_path):
        sample = sample_with_failure()
        journal(tmp_path, sample)
        first = {path: path.read_text() for path in write_reports(sample.finish(), tmp_path)}

        assert {path: path.read_text() for path in rebuild(tmp_path)} == first

    def test_only_the_formats_asked_for(self, tmp_path):
        journal(tmp_path, sample_with_failure())

        assert [path.name for path in rebuild(tmp_path, ("junit",))] == ["junit.xml"]

    def test_no_journal_is_a_clear_error(self, tmp_path):
        with pytest.raises(UsageError, match=r"no journal at .*events\.jsonl: No such file"):
            rebuild(tmp_path)

    @pytest.mark.parametrize("keep", range(0, 101, 7))
    def test_a_journal_cut_anywhere_still_gives_reports(self, tmp_path, keep):
        path = journal(tmp_path, sample_with_failure())
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) * keep // 100])

        rebuild(tmp_path)

        assert (tmp_path / "junit.xml").stat().st_size > 0

    def test_unknown_events_and_rubbish_are_noted_not_fatal(self, tmp_path):
        path = journal(tmp_path, sample_with_failure())
        with path.open("ab") as file:
            file.write(b'{"event":"from_the_future","at_s":1}\n\xff\xfe\n{"event":"noted"\n')
        rebuild(tmp_path)

        assert (tmp_path / "summary.md").read_text().count("skipped, not an event") == 3

    def test_two_runs_in_one_journal_are_reported_as_one_with_the_last_word(self, tmp_path):
        path = journal(tmp_path, sample_with_failure())
        path.write_bytes(path.read_bytes() * 2)
        rebuild(tmp_path, ("json",))

        assert len(load_results_json((tmp_path / "results.json").read_bytes()).tests) == 2


class TestResultsJson:
    def test_in_pieces_it_is_what_it_would_be_as_a_whole(self, tmp_path):
        run = mixed_run(tmp_path)

        for each in (run, msgspec.structs.replace(run, tests=(), worlds=())):
            whole = {"schema_version": each.schema_version, **msgspec.to_builtins(each)}
            assert (
                render_results_json(each)
                == msgspec.json.format(msgspec.json.encode(whole), indent=1).decode() + "\n"
            )

    def test_validates_against_its_schema_and_says_its_version(self, tmp_path):
        content = json.loads(render_results_json(mixed_run(tmp_path)))

        jsonschema.Draft202012Validator.check_schema(results_schema())
        jsonschema.validate(content, results_schema())
        assert content["schema_version"] == 1

    def test_the_schema_refuses_what_it_should(self):
        content = json.loads(render_results_json(mixed_run()))
        content["tests"][0]["attempts"][0]["outcome"] = "fine"

        with pytest.raises(jsonschema.ValidationError, match="'fine' is not one of"):
            jsonschema.validate(content, results_schema())

    def test_a_reader_of_the_schema_learns_what_the_fields_mean(self):
        described = results_schema()["$defs"]["TestResult"]["properties"]["message"]["description"]

        assert described == "One line that names the culprit rank and says what it did."

    @pytest.mark.parametrize(
        ("spoil", "told"),
        [
            ({"schema_version": 2}, r"results\.json: \$\.schema_version: 1 was expected"),
            ({"weather": "fine"}, r"results\.json: \$: .*'weather' was unexpected"),
            ({"exit_code": None}, r"results\.json: \$\.exit_code: None is not of type 'integer'"),
        ],
    )
    def test_what_checks_the_files_of_real_runs_refuses_what_the_schema_does_not_describe(
        self, tmp_path, spoil, told
    ):
        path = tmp_path / "run" / "results.json"
        path.parent.mkdir()
        good = json.loads(render_results_json(mixed_run()))
        path.write_text(json.dumps(good))
        check_results_below(tmp_path)

        path.write_text(json.dumps(good | spoil))
        with pytest.raises(AssertionError, match=told):
            check_results_below(tmp_path)

    def test_reads_back_as_it_was(self):
        run = mixed_run()

        assert load_results_json(render_results_json(run)) == run

    def test_a_lone_surrogate_does_not_lose_the_file(self):
        sample = SampleRun()
        sample.test(Outcome.FAILED, message="bad \ud800 byte")
        run = load_results_json(render_results_json(sample.finish()))

        assert run.tests[0].final.message == "bad \ufffd byte"

    def test_rubbish_is_refused(self):
        with pytest.raises(msgspec.ValidationError):
            load_results_json('{"schema_version": 1}')

    def test_the_published_schema_is_this_one(self, update_golden):
        if update_golden:
            PUBLISHED.write_text(render_schema())
        published, made = PUBLISHED.read_text(), render_schema()
        assert in_one_order(published) == in_one_order(made), "run pytest with --update-golden"
