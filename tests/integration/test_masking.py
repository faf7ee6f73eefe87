"""Values that are to be hidden reach no file and no terminal, wherever a test puts them."""

from __future__ import annotations

import json
import pickle
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from lab import Ended, Lab

from disttest.model import Outcome
from disttest.plugins.masking.common_words import is_common
from disttest.results.journal import FILE_NAME

pytestmark = pytest.mark.forked_runs

GIVEN = "t0ken-ünï-🔑-given"
BY_VARIABLE = "variable-s3cret"
MULTILINE = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\n-----END KEY-----"
LEARNED = "learned-fr0m-the-test"
SECRETS = (GIVEN, BY_VARIABLE, "MIIEvQIBADANBgkqhkiG9w0B", LEARNED)

# The tests put the values together, so that their own source has none.
LEAKY = """
    import os, pathlib, sys, time, pytest
    import torch
    import torch.distributed as dist

    GIVEN = "t0ken-ünï-" + "🔑-given"
    BY_VARIABLE = os.environ["DISTTEST_MASK"].splitlines()[0]
    LINE = "MIIEvQIBADAN" + "BgkqhkiG9w0B"
    ALL = (GIVEN, BY_VARIABLE, LINE)

    def leak():
        for value in ALL:
            print("printed", value)
            print("to stderr", repr(value), file=sys.stderr)
            os.system(f"echo from a child {value}")
            data = f"in pieces {value}\\n".encode()
            for at in range(len(data)):
                os.write(1, data[at : at + 1])

    @pytest.mark.world_size(2)
    def test_says_it_all(world):
        leak()
        raise ValueError(f"rank {world.rank} fails with {GIVEN} and {BY_VARIABLE}\\n{LINE}")

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("value", [GIVEN, "harmless"])
    def test_called_by_it(world, value):
        leak()

    @pytest.mark.world_size(2)
    @pytest.mark.timeout(4)
    def test_hangs(world):
        leak()
        group = dist.new_group([0, 1], group_desc=f"group {GIVEN}")
        dist.all_reduce(torch.ones(1), group=group)
        if world.rank == 0:
            code = compile("def waits():\\n dist.barrier()", f"/nowhere/{GIVEN}.py", "exec")
            scope = {"dist": dist}
            exec(code, scope)
            scope["waits"]()
        time.sleep(600)

    @pytest.mark.world_size(1)
    def test_floods(world):
        chunk = "".join(f"{number:05} {GIVEN} " for number in range(300)) + "\\n"
        for _ in range(100):
            sys.stdout.write(chunk)

    def test_ordinary():
        leak()
        assert GIVEN == BY_VARIABLE
"""
HOSTED = """
    import test_leaky
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class TestHosted(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            test_leaky.leak()
            self._spawn_processes()

        def test_hosted(self):
            test_leaky.leak()
            raise ValueError(test_leaky.GIVEN)
"""
TEACHES = """
    import pytest

    VALUE = "learned-fr0m-" + "the-test"

    @pytest.mark.world_size(2)
    def test_before(world):
        print("said before it was a secret:", VALUE)
        assert world.rank, VALUE

    @pytest.mark.world_size(2)
    def test_teaches(world):
        print("::add-mask::" + VALUE)
        print(VALUE)

    @pytest.mark.world_size(2)
    @pytest.mark.fresh_world
    def test_later(world):
        assert world.rank, VALUE
"""


def assert_hidden(folder: Path, secrets: tuple[str, ...] = SECRETS) -> None:
    """No file below holds any of the values, nor a name of one."""
    for path in folder.rglob("*"):
        assert not any(secret in str(path) for secret in secrets), path
        if path.is_file():
            data = path.read_bytes()
            found = [
                secret
                for secret in secrets
                if secret.encode() in data or ascii(secret)[1:-1].encode() in data
            ]
            assert not found, (path, found)


@pytest.fixture(scope="module")
def ended(module_lab: Lab) -> Ended:
    lab = module_lab.write(test_leaky=LEAKY, test_hosted=HOSTED)
    return lab.run(
        *("run", ".", "--slots", "2", f"--mask={GIVEN}", "--mask", MULTILINE),
        *("--timeout", "20", "--", "-v", "-s"),
        DISTTEST_MASK=BY_VARIABLE,
        DISTTEST_LOG_LIMIT="64k",
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(lab.folder / "step-summary.md"),
        GITHUB_OUTPUT=str(lab.folder / "outputs"),
    )


def test_nothing_is_in_any_file(ended: Ended) -> None:
    assert_hidden(ended.results)
    for name in ("step-summary.md", "outputs"):
        text = (ended.results.parent / name).read_text()
        assert not any(secret in text for secret in SECRETS)
    assert {"events.jsonl", "junit.xml", "summary.md", "report.html", "results.json"} <= {
        path.name for path in ended.results.iterdir()
    }


def test_nothing_is_on_the_terminal_nor_in_annotations(ended: Ended) -> None:
    assert "::error" in ended.output
    assert not any(secret in ended.output or ascii(secret)[1:-1] in ended.output for secret in SECRETS)
    assert "printed ***" in ended.output  # of the ordinary test, with -s


def test_the_rest_of_what_was_said_is_there(ended: Ended) -> None:
    log = ended.log("test_says_it_all", 1)

    assert "printed ***" in log
    assert "from a child ***" in log
    assert "in pieces ***" in log
    assert "fails with *** and ***" in ended.result("test_says_it_all").message
    assert "printed ***" in ended.log("test_hosted", 0)
    assert "ValueError: ***" in ended.result("test_hosted").message
    main = next((ended.results / "logs").glob("*test_hosted*/attempt-1/main.log"))
    assert "printed ***" in main.read_text()


def test_a_shard_and_its_merge_have_no_planned_name(lab: Lab) -> None:
    lab.write(
        test_planned=f"""
            import pytest

            @pytest.mark.parametrize("value", ["{BY_VARIABLE}", "{LEARNED}"])
            def test_login(value):
                print("::add-mask::{LEARNED}")
        """
    )
    assert 0 == lab.run("plan", "test_planned.py", "--shards", "1").exit_code
    shard = lab.run(
        *("run", ".", "--plan", "plan.json", "--shard", "1", "--results", "artifacts/1"),
        DISTTEST_MASK=BY_VARIABLE,
    )
    merged = lab.run("merge", "artifacts", "--plan", "plan.json")
    again = lab.run("run", ".", "--plan", "artifacts/1/plan.json", "--shard", "1")

    assert (0, 0) == (shard.exit_code, merged.exit_code), merged.output
    for name in ("artifacts", "merged"):
        assert_hidden(lab.folder / name)
    assert (4, True) == (again.exit_code, "artifacts/1/plan.json was changed" in again.output), again.output


def test_a_plan_has_real_names_also_where_values_are_to_be_hidden(lab: Lab) -> None:
    """No shard found its tests, and the last one ran all of them."""
    lab.write(test_planned="def test_swordfish():\n    pass\n")
    planned = lab.run("plan", "test_planned.py", "--shards", "1", DISTTEST_MASK="swordfish")
    ended = lab.run("run", ".", "--plan", "plan.json", "--shard", "1", DISTTEST_MASK="swordfish")

    assert (0, 0) == (planned.exit_code, ended.exit_code), planned.output + ended.output
    assert "no longer exists" not in ended.output
    assert "test_swordfish" in (lab.folder / "plan.json").read_text()
    assert "swordfish" not in planned.output + ended.output


def test_a_hang_is_explained_and_its_evidence_has_nothing(ended: Ended) -> None:
    result = ended.result("test_hangs")

    assert "barrier" in result.message
    assert "/nowhere/***.py" in result.ranks[0].stacks
    assert "disttest: stacks of rank 0" in ended.log("test_hangs", 0)
    flight = next((ended.results / "logs").glob("*test_hangs*/attempt-1/flight"))
    dump = pickle.loads((flight / "rank_0").read_bytes())  # still what torch's analyser reads
    assert "group ***" in {entry["process_group"][1] for entry in dump["entries"]}


def test_a_log_is_cut_without_leaving_half_a_value(ended: Ended) -> None:
    log = ended.log("test_floods", 0)
    head, _, tail = log.partition("[disttest:")

    assert "bytes cut here" in tail
    for part in (head, tail):
        assert not any(piece in part for piece in ("t0ken", "given", "ünï"))


def test_tests_that_are_called_by_a_value_keep_their_results(ended: Ended) -> None:
    names = [test.test.nodeid for test in ended.run.tests if "test_called_by_it" in test.test.nodeid]

    assert [
        "test_leaky.py::test_called_by_it[2xgloo-***]",
        "test_leaky.py::test_called_by_it[2xgloo-harmless]",
    ] == (sorted(names))
    assert all(
        Outcome.PASSED is test.final.outcome
        for test in ended.run.tests
        if "test_called_by_it" in test.test.nodeid
    )


def test_no_child_has_a_value_on_its_command_line(lab: Lab) -> None:
    lab.write(
        test_lines="""
        import pathlib, pytest

        @pytest.mark.world_size(1)
        def test_lines(world):
            found = []
            for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    words = process.read_bytes()
                except OSError:
                    continue
                if b"--disttest-order" in words:
                    found.append(words)
            assert found
            assert not any(b"cmd-l1ne" + b"-secret" in words for words in found)
        """
    )
    # In new processes: a fork has the command line of its server.
    ended = Lab(lab.folder).run("test_lines.py", "--mask", "cmd-l1ne-secret")

    assert 0 == ended.exit_code, ended.output
    assert_hidden(ended.results, ("cmd-l1ne-secret",))


def test_a_test_that_teaches_a_value_has_it_hidden_before_and_after(lab: Lab) -> None:
    ended = lab.write(test_teaches=TEACHES).run("test_teaches.py", "--slots", "1")

    assert_hidden(ended.results)
    assert "said before it was a secret: ***" in ended.log("test_before", 0)
    assert "::add-mask::***" in ended.log("test_teaches", 1)
    assert "AssertionError: ***" in ended.result("test_later").message


def test_the_same_under_plain_pytest(lab: Lab) -> None:
    ended = lab.write(test_leaky=LEAKY).pytest(
        *(
            "--disttest-slots=1",
            "-k",
            "says or ordinary or called",
            "--junitxml=own.xml",
            "-v",
        ),
        DISTTEST_MASK=f"{BY_VARIABLE}\n{GIVEN}\n{MULTILINE}",
    )

    assert_hidden(ended.results)
    assert_hidden(lab.folder / ".pytest_cache")
    for text in (ended.output, (lab.folder / "own.xml").read_text()):
        assert not any(secret in text for secret in SECRETS)


@pytest.mark.slow("runs with each kind of file that pytest writes")
@pytest.mark.parametrize("guarded", [True, False])
def test_files_that_pytest_writes_itself(lab: Lab, guarded: bool) -> None:
    """JUnit of its own, its cache and its log file; a value that is learned at the end included."""
    lab.write(
        test_own="""
        import logging, pytest

        GIVEN = "own-f1le " + "'<secret>'"
        LEARNED = "learned-" + "at-the-end"

        @pytest.mark.parametrize("value", [GIVEN])
        def test_ordinary(value, record_property, record_testsuite_property, record_xml_attribute):
            logging.getLogger().warning("logged %s", value)
            record_property("key", value)
            record_property(value, "value")
            record_testsuite_property("key", value)
            record_xml_attribute("attribute", value)
            print("printed", value, LEARNED)
            logging.getLogger().warning(LEARNED)
            print("::add-mask::" + LEARNED)
            assert value == ""

        @pytest.mark.world_size(1)
        @pytest.mark.parametrize("value", [GIVEN])
        def test_ranks(world, value, record_property):
            record_property("key", value)
            assert value == ""
        """
    )
    own = ("--junitxml=own.xml", "-o", "junit_logging=all", "-o", "log_file=own.log", "-p", "no:randomly")
    secrets = ("own-f1le", "<secret>", "&lt;secret&gt;", "learned-at-the-end")
    if guarded:
        ended = lab.run("test_own.py", "--mask", "own-f1le '<secret>'", "--", *own)
    else:
        ended = lab.pytest("test_own.py", *own, DISTTEST_MASK="own-f1le '<secret>'")

    assert ended.exit_code == 1, ended.output
    assert_hidden(ended.results, secrets)
    assert_hidden(lab.folder / ".pytest_cache", secrets)
    for name in ("own.xml", "own.log"):
        text = (lab.folder / name).read_text()
        assert "***" in text
        assert not [text[text.index(secret) - 60 :][:200] for secret in secrets if secret in text], name


def test_names_that_only_differ_in_hidden_values_are_refused(lab: Lab) -> None:
    lab.write(
        test_names="""
        import pytest

        @pytest.mark.world_size(1)
        @pytest.mark.parametrize("value", ["first-" + "secret", "second-" + "secret"])
        def test_named(world, value):
            pass
        """
    )
    ended = lab.run("test_names.py", "--mask", "first-secret", "--mask", "second-secret")

    assert 4 == ended.exit_code
    assert (
        "2 tests have the name test_names.py::test_named[1xgloo-***] once masked values are hidden"
        in ended.output
    )


def test_such_names_in_two_shards_are_refused_since_their_merge_has_one_test(lab: Lab) -> None:
    lab.write(
        test_names="""
        import pytest

        @pytest.mark.parametrize("value", ["first-" + "secret", "second-" + "secret"])
        def test_named(value):
            pass
        """
    )
    lab.run("plan", "test_names.py", "--shards", "2")
    masks = ("--mask", "first-secret", "--mask", "second-secret")

    ended = lab.run("test_names.py", "--plan", "plan.json", "--shard", "1", *masks)

    assert 4 == ended.exit_code, ended.output
    assert "2 tests have the name test_names.py::test_named[***]" in ended.output


@pytest.mark.parametrize("how", ["command", "pytest"])
def test_parts_of_the_words_and_numbers_of_reports_damage_none(lab: Lab, how: str) -> None:
    """With `fail` to be hidden the outcome `failed` was no failure any more, and the run was green."""
    test = """
        import pytest

        def test_bad():
            assert "swordfish" == "fail"

        @pytest.mark.world_size(1)
        def test_bad_rank(world):
            assert "swordfish" == "fail"
    """
    # The first digits of every moment in the journal.
    values = ["fail", "outcome", "test", "event", "true", "swordfish", str(int(time.time()))[:4]]
    run = lab.run if how == "command" else lab.pytest
    lab.write(test_bad=test)
    own = [*["--"] * (how == "command"), "--junitxml=own.xml"]
    ended = run("test_bad.py", *own, DISTTEST_MASK="\n".join(values))

    assert 1 == ended.exit_code, ended.output
    assert {Outcome.FAILED} == {test.final.outcome for test in ended.run.tests}
    assert 2 == len(ended.run.tests)
    for junit in (ended.junit(), ET.parse(lab.folder / "own.xml").getroot()):
        assert 2 == len(list(junit.iter("failure")))
    assert "swordfish" not in ended.output + (ended.results / FILE_NAME).read_text()


def test_words_of_pytests_own_files_are_known(lab: Lab) -> None:
    """As pytest of this environment writes them."""
    writes = """
        import json

        def pytest_runtest_logreport(report):
            with open("reports", "a") as file:
                print(json.dumps(report._to_json()), file=file)
    """
    tests = """
        import pytest

        def test_fails(record_property):
            print("said")
            assert 0

        def test_skips():
            pytest.skip("no")

        @pytest.fixture
        def bad():
            1 / 0

        def test_error(bad):
            pass

        @pytest.mark.xfail
        def test_xfail():
            assert 0
    """
    lab.write(conftest=writes, test_own=tests).pytest("--junitxml=own.xml")
    reports = [json.loads(line) for line in (lab.folder / "reports").read_text().splitlines()]

    found = set(_keys(reports)) | {report[name] for report in reports for name in ("outcome", "when")}
    for element in ET.parse(lab.folder / "own.xml").iter():
        found |= {element.tag, *element.attrib}
    assert {"longrepr", "teardown", "testcase", "failure"} <= found
    assert [] == sorted(word for word in found if len(word) > 3 and not is_common(word))


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _keys(item)
    if isinstance(value, dict):
        yield from value
        for key, item in value.items():
            # Those of this dictionary are the names of the test and its marks.
            yield from _keys(item) if key != "keywords" else ()


def test_a_short_value_is_refused(lab: Lab) -> None:
    ended = lab.write(test_x="def test_x(): pass").run("test_x.py", "--mask", "abc")

    assert 4 == ended.exit_code
    assert "fewer than 4 characters cannot be hidden" in ended.output


def test_kill_of_the_command_leaves_nothing_unmasked(lab: Lab) -> None:
    lab.write(
        test_waits="""
        import pathlib, time, pytest

        @pytest.mark.world_size(2)
        def test_waits(world):
            print("-".join(("k1lled", "secret")), flush=True)  # the compiler joins less
            pathlib.Path(f"up{world.rank}").touch()
            time.sleep(600)
        """
    )
    process = lab.start("test_waits.py", "--mask", "k1lled-secret", TMPDIR=str(lab.folder))
    deadline = time.monotonic() + 60
    while not all((lab.folder / f"up{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert_hidden(lab.folder, ("k1lled-secret",))
    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=30)
    _, alive = psutil.wait_procs(below, timeout=60)

    assert [] == alive
    assert (lab.folder / "results" / "events.jsonl").exists()
    assert_hidden(lab.folder, ("k1lled-secret",))
