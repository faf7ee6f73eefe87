"""Plugins of disttest in packages of their own: those of examples/plugins, and one that fails in each process in turn."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import blocks, commands, write_files
from environments import make_environment, uv
from lab import Lab
from results_files import check_results_below
from typed import without_numbers

from disttest.errors import ExitCode
from disttest.model import Cause, Outcome
from disttest.results.narrative import how_failed

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
PACKAGES = ("collective-budget", "hosts", "slowest-tests")
TESTS = """
    import pytest
    import torch
    import torch.distributed as dist


    @pytest.mark.world_size(2)
    def test_one(world):
        dist.all_reduce(torch.ones(2))


    @pytest.mark.world_size(2)
    def test_five(world):
        for _ in range(5):
            dist.all_reduce(torch.ones(2))
"""
SSH = """\
#!/bin/sh
# A stand-in for ssh: each host is this machine.
while [ "$1" = -o ]; do shift 2; done
shift
exec "$@"
"""
FAILS = """
    import os
    import sys

    from disttest.hookspecs import hookimpl

    planted = "as it was"


    def fail(where):
        wanted, _, how = os.environ.get("PYTEST_FAILS_IN", "").partition(":")
        if wanted == where:
            raise SystemExit(0) if how == "exit" else ValueError(f"planted in {where}")


    def fail_once(where):
        if os.environ.get("PYTEST_FAILS_IN") == where and not os.path.exists("failed"):
            open("failed", "x").close()
            raise ValueError(f"planted in {where}")


    def read_facet():
        fail("read_facet")
        return {}


    fail("import")


    @hookimpl
    def disttest_addreporters():
        fail("addreporters")
        return {}


    @hookimpl
    def disttest_ci_job(environ):
        fail("ci_job")


    @hookimpl
    def disttest_message_id(message):
        fail("message_id")


    @hookimpl
    def disttest_command_failed(exit_code, environ):
        fail("command_failed")
        return []


    @hookimpl
    def disttest_doctor_checks():
        from disttest.host.findings import DeviceFinding, Grade

        fail("doctor_checks")
        return [DeviceFinding(device="machine", check="planted", grade=Grade.BROKEN, message="found by a plugin")]


    @hookimpl
    def disttest_state_facets():
        from disttest.runtime.rank.facet import FacetSource, Setting, attribute, settings

        facet = settings("planted state", Setting("verbose", *attribute(sys.modules[__name__], "planted")))
        other = "planted state" if os.environ.get("PYTEST_FAILS_IN") == "two_facets" else "other state"
        return [FacetSource("sys", lambda: [facet, facet._replace(kind=other, read=read_facet)])]


    @hookimpl
    def disttest_modify_tests(items):
        fail("modify_tests")


    @hookimpl
    def disttest_select_tests(items):
        fail("select_tests")


    @hookimpl
    def disttest_hidden_variables(environ):
        fail("hidden_variables")
        return {}


    @hookimpl
    def disttest_processes_of_run(options):
        fail("processes_of_run")


    @hookimpl
    def disttest_set_options(options):
        fail("set_options")
        return {"one_world": True} if os.environ.get("SETS") else {}


    @hookimpl
    def disttest_world_of(item):
        fail("world_of")


    @hookimpl
    def disttest_place_tests(pairs):
        fail("place_tests")
        return [f"placed {len(pairs)} tests"]


    @hookimpl
    def disttest_make_world(order):
        fail("make_world")


    @hookimpl
    def disttest_process_main(spec):
        fail("process_main")


    @hookimpl
    def disttest_settle():
        fail("settle")
        return {"rows": [1, 2]}


    @hookimpl
    def disttest_worlds_begin(items):
        fail("worlds_begin")
        return [f"{len(items)} tests outside of this process"]


    @hookimpl
    def disttest_process_configure(spec):
        fail("process_configure")
        assert {"rows": [1, 2]} == spec.settled["fails"]


    @hookimpl
    def disttest_process_saves():
        fail("process_saves")


    @hookimpl
    def disttest_world_ended(scratch):
        fail("world_ended")


    @hookimpl
    def disttest_rank_configure(rank):
        fail("rank_configure")


    @hookimpl(wrapper=True)
    def disttest_rank_test(test):
        fail("before_test")
        if test.rank.number == 0 and "standstill" in test.nodeid:
            test.rank.note("fails", "about to wait")
        result = yield
        fail("after_test")
        return result


    @hookimpl
    def disttest_leaks(shared_fixtures):
        fail("leaks")
        return ["a channel of the board is open"] if os.environ.get("LEAKS") else []


    @hookimpl
    def disttest_make_devices(options):
        fail("make_devices")


    @hookimpl(wrapper=True)
    def disttest_judge_attempt(attempt):
        result = yield
        fail("judge_attempt")
        fail_once("judge_once")
        return None if os.environ.get("PYTEST_FAILS_IN") == "judge_type" else result


    @hookimpl
    def disttest_prepare_run(request):
        fail("prepare_run")


    @hookimpl
    def disttest_leaves_tests(config):
        fail("leaves_tests")


    @hookimpl
    def disttest_needs_new_ranks(world, kind, options):
        fail("needs_new_ranks")


    @hookimpl
    def disttest_notes_on_tests(tests, options):
        fail("notes_on_tests")
        return [f"{len(tests)} noted by a plugin"]


    @hookimpl
    def disttest_further_commands(test, result, run):
        fail("further_commands")
        return {"again": f"again {test.name}"}


    @hookimpl
    def disttest_around_worlds(settings):
        fail("around_worlds")


    @hookimpl
    def disttest_watch_ranks(settings, size, evidence):
        from disttest.model import HangCause, Section
        from disttest.runtime.world.rank_watch import RankWatch

        class Watch(RankWatch):
            for_ranks = {"size": size}

            def look(self, attempt):
                fail("look")
                if os.environ.get("PYTEST_FAILS_IN") != "standstill" or not attempt.ranks[0].noted:
                    return None
                section = Section(title="clocks", lines=("rank 0 has stopped",))
                return HangCause(
                    name="standstill", message="standstill: rank 0 waits", advice="wind it up", culprit=0,
                    ends=True, section=section,
                )

        fail("watch_ranks")
        return Watch()


    @hookimpl
    def disttest_watch_world(results):
        from disttest.runtime.world.world_watch import WorldWatch

        class Watch(WorldWatch):
            def look(self, nodeid, *, at_once=False):
                fail("look_around")

            def clean(self):
                fail("clean_world")
                return [("", "the world is clean")]

        fail("watch_world")
        return Watch()


    @hookimpl
    def disttest_watch_run(results):
        from disttest.runtime.controller.run_watch import RunWatch

        class Watch(RunWatch):
            def clean(self, attempts):
                yield attempts()[0].nodeid, "the run is clean"
                fail("clean_run")

        fail("watch_run")
        return Watch()


    @hookimpl
    def disttest_join_watch(place, data):
        from disttest.runtime.rank.waits import WatchedRank

        class Part(WatchedRank):
            def begin(self):
                fail("begin")

        fail("join_watch")
        assert data["fails"]["size"] > place
        return Part()


    @hookimpl
    def disttest_rank_environment():
        fail("rank_environment")
        return {"OF_A_PLUGIN": "1"}


    @hookimpl
    def disttest_calls_of_rank(rank, since_s, folder):
        fail("calls_of_rank")


    @hookimpl
    def disttest_report_tables(run):
        fail("report_tables")
        return []
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the three examples, installed from their own pyproject.toml."""
    interpreter = make_environment(tmp_path_factory.mktemp("environment") / "venv")
    uv("pip", "install", "--python", interpreter, "--no-deps", *[str(EXAMPLES / name) for name in PACKAGES])
    return interpreter


@pytest.fixture
def lab(tmp_path: Path, python: Path) -> Iterator[Lab]:
    yield Lab(tmp_path, python=str(python)).write(test_calls=TESTS)
    check_results_below(tmp_path)


@pytest.fixture(scope="module")
def failing_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a plugin that fails where the variable PYTEST_FAILS_IN says.

    A fork server takes runs with any variables of pytest.
    """
    folder = tmp_path_factory.mktemp("failing") / "venv"
    interpreter = make_environment(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "fails.py").write_text(textwrap.dedent(FAILS))
    info = packages / "fails-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fails\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[disttest]\nfails = fails\n")
    return interpreter


BEFORE_A_FORK = ("addreporters", "import", "two_facets")
"""Places that a fork server has passed when it forks a run."""


@pytest.fixture
def failing(tmp_path: Path, failing_python: Path) -> Lab:
    return Lab(tmp_path, python=str(failing_python), forks=True).write(test_calls=TESTS)


def test_a_sanitizer_of_a_package_fails_a_test_and_every_report_has_its_section(lab):
    ended = lab.run("run", "test_calls.py", "--collective-budget", "4")

    assert ExitCode.FAILED == ended.exit_code
    assert Outcome.PASSED is ended.result("test_one").outcome
    five = ended.result("test_five")
    assert Outcome.FAILED is five.outcome
    assert "collective-budget: rank 0 issued 5 collectives, and the budget is 4" == five.message
    assert {"0": 5, "1": 5} == five.sections["collective-budget"].data
    assert "--collective-budget 4" in ended.output.partition("repeat:")[2]
    texts = [ended.output, *((ended.results / name).read_text() for name in ("junit.xml", "summary.md"))]
    assert all("rank 1: 5" in text for text in texts)
    assert (
        '"title":"collectives","lines":["rank 0: 5","rank 1: 5"]'
        in (ended.results / "report.html").read_text()
    )


def test_the_page_says_what_is_printed(tmp_path, python):
    lab, found = Lab(tmp_path, python=str(python)), blocks("docs/write-a-plugin.md", "5. Try it")
    write_files(found, tmp_path)

    ((typed, shown),) = commands(found)
    program, *arguments = shlex.split(typed)
    printed = lab.run(*arguments).output

    assert "disttest" == program
    lines = {without_numbers(line) for line in printed.splitlines()}
    assert [] == [line for line in shown if without_numbers(line) not in lines], printed


def test_the_code_of_the_page_is_that_of_the_package():
    code = (EXAMPLES / "collective-budget" / "disttest_collective_budget" / "__init__.py").read_text()
    code = (
        code.replace("NAME,", '"collective-budget",')
        .replace("=NAME", '="collective-budget"')
        .replace("  # noqa: ARG002", "")
    )
    code = code.replace(", data=calls)", ")")
    shown = [
        block.text
        for title in ("2. An option", "3. The part in each rank", "4. The part in the world")
        for block in blocks("docs/write-a-plugin.md", title)
    ]
    lines = {line.strip() for line in code.splitlines()}
    assert [] == [
        line
        for text in shown
        for line in text.splitlines()
        if line.strip() not in lines and "with_findings(" not in line
    ]


def test_results_of_a_plugin_that_is_not_installed_are_shown_and_merged(lab, tmp_path):
    lab.run("run", "test_calls.py", "--collective-budget", "4")
    other = Lab(tmp_path)

    explained = other.run("explain", "results")
    merged = other.run("merge", "results", "--results", "merged")

    assert "collectives\n  rank 0: 5\n  rank 1: 5" in explained.output
    assert ExitCode.FAILED == merged.exit_code, merged.output
    assert "rank 1: 5" in (tmp_path / "merged" / "junit.xml").read_text()


def test_a_reporter_of_a_package_has_an_option_and_writes_again_from_the_journal(lab, tmp_path):
    ended = lab.run("run", "test_calls.py", "--slowest-tests", "1")
    report = ended.results / "slowest.md"
    first = report.read_text()

    assert ["| test | seconds |", "|---|---|"] == first.splitlines()[:2]
    assert 3 == len(first.splitlines())
    report.unlink()
    lab.run("report", "results", "--format", "slowest")
    assert first == report.read_text()


def test_a_scheduler_of_a_package_runs_a_world_on_two_hosts(lab, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)

    ended = lab.run(
        *("run", "test_calls.py", "--launcher", "hosts", "--partition", "n1,n2", "--nodes", "2"),
        PATH=f"{folder}{os.pathsep}{os.environ['PATH']}",
    )

    assert ExitCode.PASSED == ended.exit_code, ended.output
    assert "test_calls.py::test_five[2xgloo@2nodes]" in ended.output


def test_a_plugin_that_is_left_out_adds_nothing(lab):
    ended = lab.run("run", "test_calls.py", "-p", "no:collective-budget", "--collective-budget", "4")

    assert ExitCode.USAGE == ended.exit_code
    assert "No such option '--collective-budget'" in ended.output


def test_built_in_plugins_are_left_out_like_others(lab):
    ended = lab.run(
        "run", "test_calls.py", "-p", "no:disttest.html", "-p", "no:disttest.sanitizers", results="bare"
    )

    assert ExitCode.PASSED == ended.exit_code, ended.output
    assert not (ended.results / "report.html").exists()
    assert (ended.results / "ctrf.json").exists()


def test_a_field_of_the_options_is_set_by_one_plugin(failing):
    ended = failing.run("run", "test_calls.py", "--spmd", "2", SETS="1")

    assert ExitCode.PASSED != ended.exit_code
    assert "both add 'one_world' in disttest_set_options: leave one out" in ended.output


@pytest.mark.parametrize(
    ("where", "hook"),
    [
        ("before_test", "disttest_rank_test"),
        ("after_test", "disttest_rank_test"),
        ("leaks", "disttest_leaks"),
        ("process_saves", "disttest_process_saves"),
        ("judge_attempt", "disttest_judge_attempt"),
        ("judge_once", "disttest_judge_attempt"),
        ("look", "disttest_watch_ranks"),
        ("begin", "disttest_join_watch"),
    ],
)
def test_a_plugin_that_fails_beside_a_test_is_named_and_the_test_does_not_pass(failing, where, hook):
    ended = failing.run("run", "test_calls.py", "-k", "one", "--retries", "1", PYTEST_FAILS_IN=where)

    assert ExitCode.FAILED == ended.exit_code
    one = ended.result("test_one")
    assert (Outcome.ERROR, Cause.PLUGIN, 1) == (one.outcome, one.cause, one.attempt)
    assert f"plugin fails failed in {hook}: ValueError: planted in {where}" in one.message
    assert "fails.py" in one.details


@pytest.mark.parametrize(
    ("where", "hook"),
    [
        ("rank_configure", "disttest_rank_configure"),
        ("select_tests", "disttest_select_tests"),
        ("hidden_variables", "disttest_hidden_variables"),
        ("processes_of_run", "disttest_processes_of_run"),
        ("set_options", "disttest_set_options"),
        ("make_devices", "disttest_make_devices"),
        ("world_of", "disttest_world_of"),
        ("place_tests", "disttest_place_tests"),
        ("make_world", "disttest_make_world"),
        ("process_main", "disttest_process_main"),
        ("process_configure", "disttest_process_configure"),
        ("settle", "disttest_settle"),
        ("worlds_begin", "disttest_worlds_begin"),
        ("world_ended", "disttest_world_ended"),
        ("modify_tests", "disttest_modify_tests"),
        ("report_tables", "disttest_report_tables"),
        ("prepare_run", "disttest_prepare_run"),
        ("leaves_tests", "disttest_leaves_tests"),
        ("needs_new_ranks", "disttest_needs_new_ranks"),
        ("notes_on_tests", "disttest_notes_on_tests"),
        ("around_worlds", "disttest_around_worlds"),
        ("watch_ranks", "disttest_watch_ranks"),
        ("watch_world", "disttest_watch_world"),
        ("look_around", "disttest_watch_world"),
        ("clean_world", "disttest_watch_world"),
        ("watch_run", "disttest_watch_run"),
        ("clean_run", "disttest_watch_run"),
        ("join_watch", "disttest_join_watch"),
        ("rank_environment", "disttest_rank_environment"),
    ],
)
def test_a_plugin_that_fails_elsewhere_is_named_and_the_run_is_not_green(failing, where, hook):
    ended = failing.run("run", "test_calls.py", "-k", "one", PYTEST_FAILS_IN=where)

    assert ExitCode.PASSED != ended.exit_code
    assert f"plugin fails failed in {hook}: ValueError: planted in {where}" in ended.output


OVER_NODES = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.nodes(2)
    def test_over_nodes(world):
        dist.barrier()
"""


@pytest.mark.parametrize(
    ("where", "hook"),
    [
        ("after_test", "disttest_rank_test"),
        ("look_around", "disttest_watch_world"),
        ("clean_world", "disttest_watch_world"),
    ],
)
def test_a_plugin_that_fails_on_a_node_is_named_and_the_test_does_not_pass(failing, where, hook):
    failing.write(test_over_nodes=OVER_NODES)
    ended = failing.run(
        *("run", "test_over_nodes.py", "--launcher", "local", "--nodes", "2", "--device", "cpu"),
        *("--pass-env", "PYTEST_FAILS_IN"),
        PYTEST_FAILS_IN=where,
    )

    assert ExitCode.FAILED == ended.exit_code, ended.output
    result = ended.result("test_over_nodes")
    assert (Outcome.ERROR, Cause.PLUGIN) == (result.outcome, result.cause)
    assert f"plugin fails failed in {hook}: ValueError: planted in {where}" in result.message


def test_what_a_world_has_noted_is_kept_if_a_watch_of_it_fails(failing):
    ended = failing.run("run", "test_calls.py", "-k", "one", PYTEST_FAILS_IN="look_around")

    assert "the world is clean" in ended.run.notes


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("ci_job", ExitCode.INTERNAL),
        ("message_id", ExitCode.USAGE),
        ("command_failed", ExitCode.USAGE),
    ],
)
def test_a_plugin_that_fails_around_a_command_is_one_line_and_keeps_its_exit_code(failing, where, code):
    failing.forks = False
    ended = failing.run("run", "nowhere.py", PYTEST_FAILS_IN=where)

    assert code == ended.exit_code, ended.output
    assert f"plugin fails failed in disttest_{where}: ValueError: planted in {where}" in ended.output
    assert "Traceback" not in ended.output
    assert ("no such file or directory: nowhere.py" in ended.output) == (code == ExitCode.USAGE)


def test_watches_over_the_machine_add_notes_of_the_run_and_of_tests(failing):
    runs = [failing.run("run", "test_calls.py", "-k", "one"), failing.pytest("-k", "one", results="plain")]

    for ended in runs:
        assert ExitCode.PASSED == ended.exit_code, ended.output
        assert "the world is clean" in ended.run.notes
        assert any(
            note.endswith("test_calls.py::test_one[2xgloo]: the run is clean") for note in ended.run.notes
        )


def test_a_plugin_that_fails_to_add_reporters_is_named_and_the_run_is_not_green(failing):
    failing.forks = False
    ended = failing.run("run", "test_calls.py", "-k", "one", PYTEST_FAILS_IN="addreporters")

    assert ExitCode.PASSED != ended.exit_code
    assert "plugin fails failed in disttest_addreporters: ValueError: planted in addreporters" in ended.output


def test_a_plugin_that_fails_to_say_what_a_hanging_rank_called_is_named_in_its_log(failing):
    failing.write(test_waits=WAITS)

    ended = failing.run("run", "test_waits.py", "--timeout", "2", PYTEST_FAILS_IN="calls_of_rank")

    result = ended.result("test_standstill")
    assert "timed out after 2 s" in result.message
    log = (ended.results / result.ranks[0].log).read_text()
    assert "disttest: plugin fails failed in disttest_calls_of_rank: ValueError: planted" in log


HOSTED = """
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class Hosted(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_one(self):
            pass
"""


def test_a_watch_that_fails_over_ranks_of_a_class_is_named_and_the_test_does_not_pass(failing):
    failing.write(test_hosted=HOSTED)

    one = failing.run("run", "test_hosted.py", PYTEST_FAILS_IN="look").result("test_one")

    assert (Outcome.ERROR, Cause.PLUGIN) == (one.outcome, one.cause)
    assert "plugin fails failed in disttest_watch_ranks: ValueError: planted in look" in one.message


def test_a_plugin_that_fails_while_a_failure_is_written_is_named(failing):
    failing.write(test_fails="def test_one():\n    assert 0\n")

    ended = failing.run("run", "test_fails.py", PYTEST_FAILS_IN="further_commands")

    assert ExitCode.FAILED == ended.exit_code
    assert "plugin fails failed in disttest_further_commands: ValueError: planted" in ended.output


WAITS = """
    import os
    import signal

    import pytest


    @pytest.mark.world_size(2)
    def test_standstill(world):
        assert os.environ["OF_A_PLUGIN"] == "1"
        if world.rank == 0:
            signal.pause()
"""


def test_a_watch_of_a_plugin_ends_a_test_before_its_limit_and_every_report_has_its_words(failing):
    failing.write(test_waits=WAITS)

    ended = failing.run("run", "test_waits.py", PYTEST_FAILS_IN="standstill")

    result = ended.result("test_standstill")
    assert (Outcome.FAILED, "standstill: rank 0 waits", 0) == (result.outcome, result.message, result.culprit)
    assert "standstill" == how_failed(result)
    assert "waited in a standstill, ended by disttest" == result.ranks[0].message
    assert "wind it up" in ended.output
    assert "    clocks\n      rank 0 has stopped\n" in ended.output
    assert "  again: again test_standstill" in ended.output
    assert "1 noted by a plugin" in ended.output


CHANGES_STATE = """
    import fails
    import pytest


    @pytest.mark.world_size(2)
    def test_changes(world):
        fails.planted = "changed"


    @pytest.mark.world_size(2)
    def test_follows(world):
        assert "as it was" == fails.planted
"""


def test_state_that_a_plugin_names_is_restored_between_tests_and_told(failing):
    failing.write(test_state=CHANGES_STATE)

    ended = failing.run("run", "test_state.py")

    assert ExitCode.PASSED == ended.exit_code, ended.output
    assert any("planted state verbose" in leak for leak in ended.result("test_changes").ranks[0].leaks)
    notes = "\n".join(ended.run.notes)
    assert "placed 2 tests" in notes
    assert "2 tests outside of this process" in notes


def test_what_a_plugin_finds_in_use_after_a_test_is_noted(failing):
    ended = failing.run("run", "test_calls.py", "-k", "one", LEAKS="1")

    assert ExitCode.PASSED == ended.exit_code, ended.output
    assert [("a channel of the board is open",)] * 2 == [
        each.leaks for each in ended.result("test_one").ranks
    ]


def test_a_check_of_a_plugin_fails_the_doctor(failing):
    ended = failing.run("doctor")

    assert ExitCode.INFRASTRUCTURE == ended.exit_code
    assert "broken: machine: planted: found by a plugin" in ended.output


def test_a_check_that_raises_is_a_finding_and_the_others_are_shown(failing):
    ended = failing.run("doctor", PYTEST_FAILS_IN="doctor_checks")

    assert ExitCode.INFRASTRUCTURE == ended.exit_code
    assert (
        "broken: machine: plugins: plugin fails failed in disttest_doctor_checks: ValueError" in ended.output
    )
    assert "shared_memory_litter" in ended.output


def test_facets_of_one_name_are_an_error_of_each_test(failing):
    failing.forks = False
    ended = failing.run("run", "test_calls.py", PYTEST_FAILS_IN="two_facets")

    for name in ("test_one", "test_five"):
        result = ended.result(name)
        assert (Outcome.ERROR, Cause.PLUGIN) == (result.outcome, result.cause)
        assert "plugin fails: two facets have the name 'planted state'" in result.message


OTHER_PLUGIN = """
    import os
    from pathlib import Path

    info = Path(__file__).parent / "more" / "more-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: more\\nVersion: 1.0\\n")
    (info / "entry_points.txt").write_text("[disttest]\\nmore = json\\n")
    os.environ["PYTHONPATH"] = str(info.parent)
"""
NEEDS_A_CLEAN_PROCESS = """
    import threading

    import pytest

    threading.Thread(target=threading.Event().wait, daemon=True).start()


    @pytest.mark.world_size(2)
    def test_one(world):
        pass
"""


def test_a_process_with_other_plugins_runs_no_test(lab):
    lab.write(conftest=OTHER_PLUGIN, test_clean=NEEDS_A_CLEAN_PROCESS)

    ended = lab.run("run", "test_clean.py")

    assert ExitCode.PASSED != ended.exit_code
    assert Outcome.PASSED is not ended.result("test_one").outcome
    assert "this process has plugin more 1.0 where the command has none" in ended.output


@pytest.mark.parametrize("where", ["addreporters", "report_tables", "judge_attempt", "after_test", "import"])
def test_a_plugin_that_leaves_the_process_with_0_makes_no_run_green(failing, where):
    failing.forks = where not in BEFORE_A_FORK
    ended = failing.run("run", "test_calls.py", "-k", "one", PYTEST_FAILS_IN=f"{where}:exit")

    assert ExitCode.PASSED != ended.exit_code
    assert "plugin fails" in ended.output
    assert "SystemExit: 0" in ended.output


def test_a_verdict_that_is_none_and_a_facet_that_cannot_be_read_are_errors_of_the_test(failing):
    no_verdict = failing.run("run", "test_calls.py", "-k", "one", PYTEST_FAILS_IN="judge_type").result(
        "test_one"
    )
    no_facet = failing.run(
        "run", "test_calls.py", "-k", "one", PYTEST_FAILS_IN="read_facet", results="facet"
    ).result("test_one")

    assert (Outcome.ERROR, Cause.PLUGIN) == (no_verdict.outcome, no_verdict.cause)
    assert "a plugin returned NoneType from disttest_judge_attempt" in no_verdict.message
    assert (Outcome.ERROR, Cause.PLUGIN) == (no_facet.outcome, no_facet.cause)
    assert "plugin fails failed to read its facet 'other state': ValueError: planted" in no_facet.message


def test_a_plugin_that_cannot_be_imported_is_told_in_a_line_and_left_out_of_every_command(failing):
    broken = failing.run("doctor", "--help", PYTEST_FAILS_IN="import")
    without = failing.run("doctor", "-p", "no:fails", "--help", PYTEST_FAILS_IN="import")

    assert ExitCode.INTERNAL == broken.exit_code
    assert 1 == len(broken.output.splitlines()), broken.output
    assert "plugin fails cannot be loaded: ValueError: planted in import" in broken.output
    assert "-p no:fails" in broken.output
    assert (ExitCode.PASSED, True) == (without.exit_code, "--level" in without.output)


LAUNCHED = """
    import torch
    import torch.distributed as dist


    def test_five():
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        for _ in range(5):
            dist.all_reduce(torch.ones(2))
"""


def test_ranks_of_launcher_mode_have_the_hooks_of_plugins(lab):
    lab.write(test_launched=LAUNCHED)

    ended = lab.run("run", "test_launched.py", "--spmd", "2", "--collective-budget", "4")

    assert ExitCode.FAILED == ended.exit_code, ended.output
    assert "rank 0 issued 5 collectives, and the budget is 4" in ended.output
