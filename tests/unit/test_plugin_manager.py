"""Plugins: which there are, and errors that name them."""

import re
import types
from pathlib import Path

import click
import pytest

from disttest import hookspecs
from disttest import plugin_manager as module
from disttest.errors import PluginError, UsageError
from disttest.hookspecs import hookimpl
from disttest.plugin_manager import Plugins, plugins_differ

BUILT_IN = tuple(name for name, _ in Plugins().all)


def plugin(**functions):
    made = types.ModuleType("made")
    for name, function in functions.items():
        setattr(made, name, hookimpl(function) if callable(function) else function)
    return made


def test_built_in_plugins_are_named_after_their_folders():
    names = [name for name, _ in Plugins().all]

    assert {"disttest.chaos", "disttest.replay", "disttest.sanitizers"} <= set(names)


@pytest.mark.parametrize(
    "words",
    [
        ("-p", "no:disttest.chaos"),
        ("-pno:disttest.chaos",),
        ("run", "x", "--", "-p", "no:disttest.chaos"),
    ],
)
def test_a_plugin_is_left_out_by_a_word_of_the_command_line(words):
    assert ("disttest.chaos",) == module.left_out_by(words)
    assert "disttest.chaos" not in dict(Plugins(module.left_out_by(words)).all)


def test_a_plugin_that_raises_is_named_with_the_hook():
    def disttest_marks():
        raise ValueError("no marks today")

    plugins = Plugins()
    plugins.add(plugin(disttest_marks=disttest_marks), "mine")

    with pytest.raises(PluginError, match="plugin mine failed in disttest_marks: ValueError: no marks today"):
        plugins.call("disttest_marks")


def test_a_named_call_names_it_as_well():
    def disttest_test_data(item):
        raise ValueError(item)

    plugins = Plugins(BUILT_IN)
    plugins.add(plugin(disttest_test_data=disttest_test_data), "mine")

    with pytest.raises(PluginError, match="plugin mine failed in disttest_test_data: ValueError: x"):
        plugins.named("disttest_test_data", object, item="x")


def test_a_named_call_refuses_what_is_not_of_the_type():
    plugins = Plugins(BUILT_IN)
    plugins.add(plugin(disttest_watch_ranks=lambda settings: "a watch"), "mine")

    with pytest.raises(
        PluginError, match="plugin mine returned a wrong value from disttest_watch_ranks: a dict is needed"
    ):
        plugins.named("disttest_watch_ranks", dict, settings=None, size=2, evidence=None)


def test_things_by_name_are_asked_for_with_arguments_and_a_name_has_one_owner():
    plugins = Plugins(BUILT_IN)
    for name in ("first", "second"):
        plugins.add(plugin(disttest_further_commands=lambda test: {"again": f"again {test}"}), name)

    arguments = {"test": "x", "result": None, "run": None}
    with pytest.raises(PluginError, match="plugins second and first both add 'again'"):
        plugins.mapping("disttest_further_commands", str, **arguments)
    plugins.remove("second")
    assert {"again": "again x"} == plugins.mapping("disttest_further_commands", str, **arguments)


def test_the_core_is_no_plugin_that_failed_and_a_wrapper_around_it_is_not_blamed():
    def disttest_rank_test(test):
        raise ValueError(test)

    @hookimpl(wrapper=True)
    def wrapper(test):
        return (yield)

    around = types.ModuleType("around")
    around.disttest_rank_test = wrapper
    plugins = Plugins(BUILT_IN)
    plugins.add_core(plugin(disttest_rank_test=disttest_rank_test), "protocol")
    plugins.add(around, "around")

    with pytest.raises(ValueError, match="x"):
        plugins.call("disttest_rank_test", test="x")


def test_a_usage_error_of_a_plugin_reaches_the_user_as_it_is():
    def disttest_modify_tests(items):
        raise UsageError(f"{items} make no sense")

    plugins = Plugins()
    plugins.add(plugin(disttest_modify_tests=disttest_modify_tests), "mine")

    with pytest.raises(UsageError, match=r"^tests make no sense$"):
        plugins.call("disttest_modify_tests", items="tests", config=None, options=None, host=None)


@pytest.mark.parametrize(
    "meant", [pytest.exit.Exception("enough"), pytest.UsageError("no"), click.exceptions.Exit(3)]
)
def test_an_exception_that_ends_a_run_is_no_failure_of_a_plugin(meant):
    def disttest_run_session(session):
        raise meant

    plugins = Plugins(BUILT_IN)
    plugins.add(plugin(disttest_run_session=disttest_run_session), "mine")

    with pytest.raises(type(meant)) as raised:
        plugins.call("disttest_run_session", session=None)
    assert meant is raised.value


def test_a_hook_that_does_not_exist_and_arguments_that_it_does_not_have_are_refused():
    def disttest_does_not_exist():
        return None

    def disttest_marks(color):
        return (color,)

    def disttest_doctor_check():
        return ()

    def disttest_reports_written(results, folder):
        return (results, folder)

    for function, why in (
        (disttest_does_not_exist, "there is no hook disttest_does_not_exist"),
        (disttest_doctor_check, "there is no hook disttest_doctor_check, but disttest_doctor_checks"),
        (disttest_marks, "disttest_marks has no argument color; it has none"),
        (disttest_reports_written, "disttest_reports_written has no argument folder; it has results"),
    ):
        with pytest.raises(PluginError) as raised:
            Plugins().add(plugin(**{function.__name__: function}), "mine")
        assert f"plugin mine does not fit this version of disttest: {why}" == str(raised.value)


def test_a_plugin_that_needs_all_plugins_while_they_are_loaded_is_named(monkeypatch):
    monkeypatch.setattr(module, "_loading", ["eager"])
    module.plugin_manager.cache_clear()
    try:
        with pytest.raises(
            PluginError, match="plugin eager imports a module of disttest that needs all plugins"
        ):
            module.plugin_manager()
    finally:
        module.plugin_manager.cache_clear()


def test_processes_with_other_plugins_are_told_apart():
    assert "" == plugins_differ(("a 1", "b 2"), ("b 2", "a 1"), "node n1", "the client")
    said = plugins_differ(("a 1", "b 2"), ("a 2", "b 2"), "node n1", "the client")
    assert said.startswith("node n1 has plugin a 2 where the client has a 1: ")
    assert plugins_differ(("a 1",), (), "node n1", "the client").startswith("node n1 has plugin none where")


def test_leaving_the_process_is_a_failure_of_the_plugin_too():
    def disttest_marks():
        raise SystemExit(0)

    def disttest_addoptions():
        pytest.skip("not today")

    plugins = Plugins(BUILT_IN)
    plugins.add(plugin(disttest_marks=disttest_marks, disttest_addoptions=disttest_addoptions), "mine")

    with pytest.raises(PluginError, match="plugin mine failed in disttest_marks: SystemExit: 0"):
        plugins.call("disttest_marks")
    with pytest.raises(PluginError, match="plugin mine failed in disttest_addoptions: Skipped: not today"):
        plugins.items("disttest_addoptions", str)


@pytest.mark.parametrize("returned", ["abc", None, [object()], {"a": "b"}])
def test_what_a_hook_must_not_return_is_refused_with_the_plugin(returned):
    plugins = Plugins(BUILT_IN)
    plugins.add(plugin(disttest_doctor_checks=lambda: returned), "mine")

    with pytest.raises(PluginError, match="plugin mine returned a wrong value from disttest_doctor_checks"):
        plugins.items("disttest_doctor_checks", int)


def test_a_name_that_two_plugins_add_is_refused_with_both():
    plugins = Plugins(BUILT_IN)
    plugins.add(plugin(disttest_schedulers=lambda: {"hosts": "a"}), "first")
    plugins.add(plugin(disttest_schedulers=lambda: {"hosts": "b"}), "second")

    with pytest.raises(PluginError, match="plugins second and first both add 'hosts' in disttest_schedulers"):
        plugins.mapping("disttest_schedulers", str)


def test_hooks_that_nobody_would_call_are_refused():
    def disttest_marks():
        return ()

    def disttest_judge_attempt(attempt):
        return attempt

    unmarked = types.ModuleType("unmarked")
    unmarked.disttest_marks = disttest_marks
    with pytest.raises(PluginError, match="plugin mine: disttest_marks lacks @hookimpl"):
        Plugins().add(unmarked, "mine")
    with pytest.raises(
        PluginError, match=r"plugin mine: disttest_judge_attempt needs @hookimpl\(wrapper=True\)"
    ):
        Plugins().add(plugin(disttest_judge_attempt=disttest_judge_attempt), "mine")
    plugins = Plugins(("disttest.core.protocol",))
    plugins.add_core(plugin(disttest_rank_test=lambda test: True), "protocol")
    assert plugins.has("disttest_rank_test")
    with pytest.raises(PluginError, match="are reserved for the core"):
        Plugins().add(plugin(), "disttest.core.protocol")


def test_the_page_names_every_hook_and_no_other():
    page = (Path(__file__).parents[2] / "docs" / "write-a-plugin.md").read_text()
    packages = {"disttest_collective_budget"}
    hooks = {name for name in dir(hookspecs) if name.startswith("disttest_")}

    assert hooks == set(re.findall(r"\bdisttest_\w+", page)) - packages
