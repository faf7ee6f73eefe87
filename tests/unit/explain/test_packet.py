"""The packet of a failed test: all evidence, and no secret."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from sample_runs import ASSERTION, EPOCH_S, SampleRun, rank, write_log

from disttest.cli.main import command
from disttest.errors import UsageError
from disttest.extras.explain import limits
from disttest.extras.explain.packet_run import scrub
from disttest.extras.history.adding import write_record
from disttest.extras.history.git_facts import CommitFacts
from disttest.extras.history.records import record_of
from disttest.extras.history.store import writing
from disttest.model import Invocation, Outcome, RankEnd
from disttest.outgoing import outgoing
from disttest.plugins.masking.masker import Masker
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, Journal

LOGS = "logs/ddp-test_bad-2/attempt-1"
BAD = "tests/test_ddp.py::test_bad[2xgloo]"


def sample(*, invocation: Invocation | None = None, details: str = ASSERTION) -> SampleRun:
    run = SampleRun(invocation=invocation)
    run.test()
    ranks = (
        rank(0, None, end=RankEnd.KILLED, log=f"{LOGS}/rank0.log"),
        rank(1, Outcome.FAILED, message="AssertionError: boom", log=f"{LOGS}/rank1.log"),
    )
    message = "rank 1 of 2 failed: AssertionError: boom"
    run.test(
        Outcome.FAILED,
        name="test_bad",
        message=message,
        details=details,
        culprit=1,
        victims=(0,),
        ranks=ranks,
    )
    run.finish()
    return run


def stored(folder: Path, run: SampleRun) -> Path:
    folder.mkdir(exist_ok=True)
    journal = Journal(folder / FILE_NAME)
    for event in run.events:
        journal.append(event)
    journal.close()
    for number in range(2):
        write_log(folder, f"{LOGS}/rank{number}.log", f"words of rank {number}\n")
    return folder


def explained(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(command, ["explain", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class TestPacket:
    def test_it_holds_the_finding_the_logs_and_the_command(self, tmp_path):
        results = stored(tmp_path / "results", sample())
        assert explained(results, "", "--packet") == "wrote packet-test_bad-2xgloo\n"

        packet = tmp_path / "packet-test_bad-2xgloo"
        data = json.loads((packet / "packet.json").read_text())
        assert (data["version"], data["test"], data["culprit"], data["place"]) == (
            1,
            BAD,
            1,
            "tests/test_ddp.py:19",
        )
        assert data["finding"] == "rank 1 of 2 failed: AssertionError: boom"
        assert data["repeat"].startswith("disttest run 'tests/test_ddp.py::test_bad[2xgloo]'")
        assert data["environment"]["hardware"]["torch"] == "2.13.0"
        assert [each["path"] for each in data["files"]] == [f"{LOGS}/rank0.log", f"{LOGS}/rank1.log"]
        assert (packet / LOGS / "rank1.log").read_text() == "words of rank 1\n"
        page = (packet / "packet.md").read_text()
        assert ASSERTION in page
        assert data["repeat"] in page

    def test_an_archive_has_the_same(self, tmp_path):
        results = stored(tmp_path / "results", sample())
        explained(results, "test_bad", "--packet", "--output", "bad.zip")

        with zipfile.ZipFile(tmp_path / "bad.zip") as archive:
            names = {name for name in archive.namelist() if not name.endswith("/")}
        assert names == {"bad/packet.md", "bad/packet.json", f"bad/{LOGS}/rank0.log", f"bad/{LOGS}/rank1.log"}
        assert {path.name for path in tmp_path.iterdir()} == {"results", "bad.zip"}

    def test_logs_are_cut_in_the_middle_and_large_files_left_out(self, tmp_path, monkeypatch):
        monkeypatch.setattr(limits, "FILE", 10)
        results = stored(tmp_path / "results", sample())
        write_log(results, f"{LOGS}/rank1.log", "begin\n" + "x" * 79 * 10_000 + "\nend\n")
        write_log(results, f"{LOGS}/rank0.recording", b"12345")
        write_log(results, f"{LOGS}/rank1.recording", b"12345678901")
        explained(results, "--packet", "--output", "p")

        data = json.loads((tmp_path / "p" / "packet.json").read_text())
        files = {each.get("path"): each for each in data["files"]}
        log = (tmp_path / "p" / LOGS / "rank1.log").read_text()
        assert log.startswith("begin")
        assert log.endswith("end\n")
        assert len(log) < 350_000
        assert "are cut" in files[f"{LOGS}/rank1.log"]["why"]
        assert (tmp_path / "p" / LOGS / "rank0.recording").read_bytes() == b"12345"
        assert files[""]["why"] == f"{LOGS}/rank1.recording: left out, it has 11 B"

    def test_a_link_among_the_logs_is_not_followed(self, tmp_path):
        results = stored(tmp_path / "results", sample())
        (tmp_path / "private").write_text("private")
        (results / LOGS / "rank0.log").unlink()
        os.symlink(tmp_path / "private", results / LOGS / "rank0.log")
        explained(results, "--packet", "--output", "p")

        assert not (tmp_path / "p" / LOGS / "rank0.log").exists()
        assert "not copied" in (tmp_path / "p" / "packet.json").read_text()

    def test_the_past_of_the_test(self, tmp_path):
        file = tmp_path / "h.sqlite"
        with writing(file) as connection:
            for number, commit in enumerate(("a" * 40, "b" * 40)):
                facts = msgspec.to_builtins(CommitFacts(commit=commit))
                run = fold(sample(invocation=Invocation(data={"history": facts})).events)
                run = msgspec.structs.replace(run, run_id=f"{number}", started_at_s=EPOCH_S + number)
                write_record(connection, record_of(run, CommitFacts(), now_s=EPOCH_S + 10))
        facts = msgspec.to_builtins(CommitFacts(file=str(file), commit="c" * 40))
        results = stored(tmp_path / "results", sample(invocation=Invocation(data={"history": facts})))
        explained(results, "--packet", "--output", "p")

        data = json.loads((tmp_path / "p" / "packet.json").read_text())
        assert data["history"]["rate"].startswith("failed in 2 of 2 runs")
        assert data["history"]["first_failure"] == "a" * 10
        assert data["run"]["commit"] == "c" * 40
        file.write_bytes(file.read_bytes()[:5000])
        explained(results, "--packet", "--output", "without")
        with pytest.raises(UsageError, match="is damaged"):
            explained(results, "--packet", "--history", file, "--output", "no")
        assert not (tmp_path / "no").exists()

    def test_the_body_of_an_issue_fits_and_is_printed(self, tmp_path):
        results = stored(tmp_path / "results", sample(details="x" * 100_000))
        text = explained(results, "--format", "github-issue", "test_bad")

        assert text.startswith("**rank 1 of 2 failed: AssertionError: boom**")
        assert "### Repeat" in text
        assert len(text) <= limits.ISSUE + 1

    def test_refusals(self, tmp_path):
        results = stored(tmp_path / "results", sample())
        (tmp_path / "taken").mkdir()
        for words, message in (
            (("test_", "--packet", "--output", "taken"), "taken exists; choose another"),
            (("nothing", "--packet"), "no test of this run has 'nothing' in its id"),
            (("--packet", "--output", "no/where"), "cannot be written: No such file"),
        ):
            with pytest.raises(UsageError, match=message):
                explained(results, *words)

        green = SampleRun()
        green.test()
        green.test(name="test_other")
        green.finish()
        stored(tmp_path / "green", green)
        with pytest.raises(UsageError, match="no test failed in this run"):
            explained(tmp_path / "green", "--packet")
        with pytest.raises(UsageError, match="2 tests match; give more of the id of one"):
            explained(tmp_path / "green", "test_", "--packet")


SECRETS = [
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 9,
    "glpat-" + "a1B2" * 5,
    "hf_" + "a1B2" * 8,
    "AKIA" + "A1B2" * 4,
    "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM",
]


class TestSecrets:
    @pytest.mark.parametrize("secret", SECRETS)
    def test_tokens(self, secret):
        assert scrub(f"using {secret}, then") == "using ***, then"

    @pytest.mark.parametrize(
        ("text", "hidden"),
        [
            ("https://ann:pass@host/x", "https://***@host/x"),
            ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
            ("WANDB_API_KEY=abcdef", "WANDB_API_KEY=***"),
            ('"password": "abcd", "b": 1', '"password": "***", "b": 1'),
            ("CI_TOKEN: abcdef", "CI_TOKEN: ***"),
            ("access_token=abcdef&x=1", "access_token=***&x=1"),
            ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nend", "***\nend"),
            ("-----BEGIN PRIVATE KEY-----\ncut off", "***"),
            ("[cut]\n\nMIIEabc+/\nabc=\n-----END PRIVATE KEY-----\nend", "[cut]\n\n***\nend"),
        ],
    )
    def test_values_behind_names(self, text, hidden):
        assert scrub(text) == hidden

    @pytest.mark.parametrize(
        "text",
        [
            "max_tokens=4096 token: 12345 num_tokens = batch.sum()",
            "tests/test_secret.py::test_password[2xgloo]",
            "test_secret.py:1234: AssertionError",
            "MAX_TOKENS=40960",
            'File "/repo/api_key.py", line 5',
        ],
    )
    def test_evidence_stays(self, text):
        assert scrub(text) == text

    @pytest.mark.parametrize("line", ["a.b-", "secret ", "TOKEN.", "A", "abcd\n"])
    def test_a_long_line_takes_linear_time(self, line):
        assert scrub(line * 10_000) == line * 10_000

    def test_a_secret_at_the_border_of_a_cut_is_hidden(self, tmp_path, monkeypatch):
        monkeypatch.setattr(limits, "LOG_HEAD", 4000)
        monkeypatch.setattr(limits, "LOG_TAIL", 8000)
        key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEabcd\n" * 100  # the test printed no end of it
        results = stored(tmp_path / "results", sample(details="x\n" * 6000 + key + "y" * 13_000))
        write_log(results, f"{LOGS}/rank0.log", "x\n" * 30_000 + key + "y" * 7500)
        write_log(results, f"{LOGS}/rank1.log", "x" * 3990 + f" {SECRETS[0]} " + "y" * 60_000)
        issue = explained(results, "--packet", "--output", "p", "--format", "github-issue")

        assert "MIIE" not in issue
        for path in (path for path in (tmp_path / "p").rglob("*") if path.is_file()):
            assert "MIIE" not in path.read_text(), path
            assert "ghp_" not in path.read_text(), path

    def test_known_values_are_hidden_in_every_file(self, tmp_path, monkeypatch):
        monkeypatch.setenv("DISTTEST_MASK", "hunter2\nhunter2-long")
        monkeypatch.setattr(
            outgoing, "_filter", Masker()
        )  # the process of the tests forgets the values again
        facts = {"api_key": "abcdefgh", "branch": "hunter2"}
        run = sample(invocation=Invocation(data={"history": facts}), details="pw hunter2-long\n" + ASSERTION)
        results = stored(tmp_path / "results", run)
        write_log(results, f"{LOGS}/rank1.log", "hunter2\n")
        explained(results, "--packet", "--output", "p")

        for path in (path for path in (tmp_path / "p").rglob("*") if path.is_file()):
            assert "hunter2" not in path.read_text(), path
            assert "abcdefgh" not in path.read_text(), path
        assert "pw ***\n" in (tmp_path / "p" / "packet.md").read_text()
