"""Options: parsed once, refused with a message that names the option and the value."""

import re
import types
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from disttest import plugin
from disttest.cli.main import command, main
from disttest.cli.purposes import PURPOSES
from disttest.errors import PluginError, UsageError
from disttest.extras.container.command import HandedOnOption
from disttest.hookspecs import hookimpl
from disttest.model import FlakyRule, Isolation
from disttest.options import registry
from disttest.options.flags import (
    PYTEST_GROUP,
    PYTEST_WORDS,
    PytestOption,
    RegistryCommand,
    flags,
)
from disttest.options.option import Option
from disttest.options.registry import (
    OPTIONS,
    PLUGIN_OPTIONS,
    RUN_OPTIONS,
    groups_of,
    is_shown,
    options_of,
)
from disttest.options.run import RunOptions, given_options, resolve_options
from disttest.options.values import WHOLE, GpuShare
from disttest.plugin_manager import Plugins
from disttest.plugins.gpus.hooks import ALLOW_BUSY_GPUS, LEASE_DIR
from disttest.plugins.masking.hooks import MASK


def test_defaults():
    assert RunOptions() == resolve_options({}, environ={})


def test_every_option_has_a_field_and_a_variable():
    fields = set(RunOptions.__struct_fields__)

    # by the session or by plugins, not by an option of the core
    found = {
        "given",
        "is_debugged",
        "plugin_options",
        "plugins",
        "ranks_collect",
        "secret_options",
        "world_letter",
    }
    assert fields - found == {option.field for option in RUN_OPTIONS if option not in PLUGIN_OPTIONS}
    assert all(option.variable == f"DISTTEST_{option.field.upper()}" for option in RUN_OPTIONS)


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("world_sizes", "1,2, 4,2", (1, 2, 4)),
        ("backend", "gloo,NCCL", ("gloo", "nccl")),
        ("backend", "auto", ()),
        ("device", "cuda", "cuda"),
        ("slots", "8", 8),
        ("timeout", "0.5", 0.5),
        ("deadline", "3600", 3600.0),
        ("results", "out/x", Path("out/x")),
        ("isolation", "warm", Isolation.WARM),
        ("isolation", "auto", None),
        ("seed", "0", 0),
        ("gpus", "auto", GpuShare()),
        ("gpus", "ALL", GpuShare(required=True)),
        ("gpus", "none", GpuShare(none=True)),
        ("gpus", "2", GpuShare(required=True, count=2)),
        ("gpus", "device=3", GpuShare(required=True, names=("3",))),
        ("gpus", "GPU-1f, MIG-2", GpuShare(required=True, names=("GPU-1f", "MIG-2"))),
        ("log_limit", "64k", 65536),
        ("retries", "0", 0),
        ("retries", "3", 3),
        ("infra_retries", "2", 2),
        ("flaky", "fail", FlakyRule.FAIL),
        ("log_limit", "8MiB", 8 * 1024**2),
    ],
)
def test_values(field, text, value):
    variable = f"DISTTEST_{field.upper()}"

    assert value == getattr(resolve_options({field: text}, environ={}), field)
    assert value == getattr(resolve_options({}, environ={variable: text}), field)


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        (ALLOW_BUSY_GPUS, "true", True),
        (ALLOW_BUSY_GPUS, "False", False),
        (LEASE_DIR, "/x", Path("/x")),
    ],
)
def test_values_of_plugins(option, text, value):
    assert value == option.of(resolve_options({option.field: text}, environ={}))
    assert value == option.of(resolve_options({}, environ={option.variable: text}))


def test_a_flag_wins_over_the_variable_and_empty_means_not_set():
    environ = {"DISTTEST_TIMEOUT": "10", "DISTTEST_SEED": ""}

    assert 5 == resolve_options({"timeout": "5"}, environ=environ).timeout
    assert 10 == resolve_options({"timeout": ""}, environ=environ).timeout
    assert 0 == resolve_options({}, environ=environ).seed


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *[("gpus", text) for text in ("0", "-1", "x", "GPU", "device=", "1.5", "GPU-1,")],
        ("allow_busy_gpus", "yes"),
        *[("world_sizes", text) for text in ("0", "-1", "x", "10000", "1,,2", "2.0", "١")],
        *[("timeout", text) for text in ("-1", "x", "nan", "inf")],
        *[("deadline", text) for text in ("-5", "soon")],
        *[("slots", text) for text in ("0", "-1", "many")],
        *[("log_limit", text) for text in ("0", "-1", "8q", "k")],
        ("device", "tpu"),
        ("isolation", "cold"),
        ("seed", "-1"),
        ("retries", "-1"),
        ("infra_retries", "some"),
        ("flaky", "maybe"),
    ],
)
def test_nonsense_is_refused_by_name(field, text):
    name = field.replace("_", "-")

    with pytest.raises(UsageError) as from_flag:
        resolve_options({field: text}, environ={})
    with pytest.raises(UsageError) as from_variable:
        resolve_options({}, environ={f"DISTTEST_{field.upper()}": text})

    assert str(from_flag.value).startswith(f"--{name}: ")
    assert str(from_variable.value).startswith(f"DISTTEST_{field.upper()}: ")
    assert text.split(",")[0] in str(from_flag.value)


def test_masks_of_flag_and_variable_add_up_and_stay_out_of_records_and_worlds():
    flags, environ = (
        {"mask": "by flag", "seed": "1"},
        {"DISTTEST_MASK": "by variable", "DISTTEST_FLAKY": "fail"},
    )

    options = resolve_options(flags, environ=environ)
    assert ("by flag", "by variable") == MASK.of(options)
    assert b"by flag" in msgspec.json.encode(options.secret_options)
    assert b"by flag" not in msgspec.json.encode(options.for_worlds())
    assert {"seed": "1", "flaky": "fail"} == given_options(flags, environ=environ)


def test_a_limit_of_0_is_none():
    options = resolve_options({"timeout": "0", "deadline": "0"}, environ={})

    assert (0.0, 0.0) == (options.timeout, options.deadline)


def test_what_was_given_is_known_even_where_it_is_the_default():
    """The time limit of torch's own table gives way to a --timeout of 300, which is the default, as to any other."""
    assert () == resolve_options({}, environ={"DISTTEST_SEED": ""}).given
    options = resolve_options({"timeout": "300", "seed": None}, environ={"DISTTEST_GRACE": "0.3"})
    assert ("timeout", "grace") == options.given
    assert RunOptions().timeout == options.timeout


# --- the registry


def help_of(*words):
    shown = CliRunner().invoke(command, words, obj=[], prog_name="disttest").output
    return shown, [flag for _, flag in re.findall(r"^  (--?\w\w, )?(-[\w-]+)", shown, re.MULTILINE)]


def test_the_help_of_a_run_has_the_common_options_and_the_long_help_each_option_once():
    shown, flags = help_of("run", "--help")
    common = [option.flag for option in dict(groups_of("run"))["Common options"]]
    assert 17 == len(common)
    assert [*common, *(word.flags[0] for word in PYTEST_WORDS)] == flags[:-2]

    whole, every = help_of("run", "--help-all")
    wanted = {option.flag for option in options_of("run") if is_shown(option, "run")}
    words = {word.flags[0] for word in PYTEST_WORDS}
    assert sorted(wanted | words | {"-h", "--help-all"}) == sorted(every)
    assert ["Common options", PYTEST_GROUP] == re.findall(r"^(\w.*):$", whole, re.MULTILINE)[:2]
    assert "--lf, --last-failed" in shown


@pytest.mark.parametrize("name", ["list", "plan", "chaos"])
def test_the_help_of_other_commands_has_no_option_that_cannot_matter_there(name):
    _, flags = help_of(name, "--help")

    assert {"--world-sizes", "--backend", "--device"} <= {*flags}
    assert not {"--retries", "--flaky", "--isolation", "--native-stacks", "--record", "--debugpy"} & {*flags}
    assert ("--seed" in flags) == (name == "chaos")
    assert {"--retries", "--isolation"} <= {
        flag for each in command.commands[name].params for flag in each.opts
    }


def test_the_help_groups_all_commands_by_purpose_and_cuts_no_sentence():
    shown, _ = help_of("--help")
    text = " ".join(shown.split())

    assert "..." not in shown.partition("\n\n")[2]
    for each in command.commands.values():
        first = " ".join((each.help or "").partition("\n\n")[0].split())
        assert each.hidden or first.partition(". ")[0].rstrip(".") in text, each.name
        assert each.hidden or each.name in PURPOSES, each.name


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--grace", "write grace = … below [tool.disttest] in pyproject.toml, or set DISTTEST_GRACE"),
        ("--jobs", "write jobs = …"),
        ("--until-fail", "--until-fail is --repeat until-fail now"),
        ("--contain", "--contain is --isolate-files now"),
    ],
)
def test_a_flag_that_was_moved_is_refused_with_its_replacement(flag, words, capfd):
    with pytest.raises(SystemExit) as left:
        main(["run", flag, "1"])

    assert (4, True) == (left.value.code, words in capfd.readouterr().err)


@pytest.mark.parametrize(
    ("words", "before", "behind"),
    [
        (["-k", "a or b", "-x", "--", "-q"], ["-k", "a or b", "-x"], ["-q"]),
        (["-vv", "--lf", "--maxfail", "2"], ["-v", "-v", "--maxfail", "2"], []),
    ],
)
def test_common_options_of_pytest_need_no_dashes_before_them(words, before, behind, monkeypatch):
    seen = []
    monkeypatch.setattr(command.commands["run"], "invoke", lambda context: seen.extend(context.obj))
    with pytest.raises(SystemExit):
        main(["run", "tests", *words])

    assert [*sorted(before), *behind] == [*sorted(seen[: len(before)]), *seen[len(before) :]]


@pytest.mark.parametrize("name", sorted({name for option in OPTIONS for name in option.commands}))
def test_a_command_has_the_options_of_the_registry_and_no_others(name):
    options = [option for option in options_of(name) if not option.no_flag]
    own = [
        each for each in command.commands[name].params if not isinstance(each, PytestOption | HandedOnOption)
    ]
    flags = [each.opts[-1] for each in own if each.opts[-1].startswith("--")]

    assert len(options) == len({option.name for option in options})
    assert sorted(option.flag for option in options) == sorted(flag for flag in flags if flag != "--help")


def test_commands_have_no_option_that_is_not_in_the_registry():
    registered = {name for option in OPTIONS for name in option.commands}
    for name in command.commands.keys() - registered:
        assert not [each for each in command.commands[name].params if isinstance(each, click.Option)], name


def test_what_an_option_takes_and_does_is_said_once():
    """Rows of one name may differ in meaning; no two of them may have one text, and none names its default itself."""
    texts = [option.help for option in OPTIONS]

    assert len(texts) == len(set(texts))
    assert not [text for text in texts if "(default" in text or not text.endswith(".")]


SWITCHES = [
    (name, option)
    for option in OPTIONS
    if option.is_switch and not option.no_flag
    for name in option.commands
]


def parsed(name, *words):
    """What the flags of a command amount to, without the command."""
    seen = {}

    @click.command(cls=RegistryCommand)
    @click.argument("rest", nargs=-1)
    @flags(name)
    def probe(**given):
        seen.update(given)

    probe.main(list(words), standalone_mode=False)
    return seen


@pytest.mark.parametrize(("name", "switch"), SWITCHES, ids=[f"{n}-{o.name}" for n, o in SWITCHES])
def test_a_switch_stands_alone_or_has_a_value(name, switch):
    def value(*words):
        seen = parsed(name, *words)
        assert ("ddp",) == seen["rest"], words
        value = seen[switch.field]
        return switch.type.parse(value) if isinstance(value, str) else bool(value)

    assert [True] * 3 == [
        value(*w, "ddp") for w in ([switch.flag], [f"{switch.flag}=true"], [switch.flag, "True"])
    ]
    assert [False] * 3 == [value(*w, "ddp") for w in ([], [f"{switch.flag}=false"], [switch.flag, "false"])]
    with pytest.raises(UsageError, match="'maybe' is not true or false"):
        resolve_options(parsed(name, f"{switch.flag}=maybe"), environ={})


VALUES = {
    "host": "true",
    "world-sizes": "2", "backend": "gloo", "gpus": "2", "lease-dir": "/x", "results": "out", "log-limit": "64k",
    "mask": "s3cret", "isolation": "warm", "device": "cpu", "verdict": "torch", "flaky": "fail", "allow-busy-gpus": "true",
    "one-world": "true",
    "native-stacks": "true", "isolate-files": "true", "fast-spawn": "false",
    "sanitize": "order", "deadlock": "report", "record": "all", "perturb": "cpu:2",
    "record-coverage": "true",
}  # fmt: skip


@pytest.mark.parametrize("option", RUN_OPTIONS, ids=lambda option: option.name)
def test_an_option_of_a_run_takes_its_value_as_a_flag_a_variable_and_in_pytest(option, pytester_parser):
    text = VALUES.get(option.name, "1")
    wanted = resolve_options({option.field: text}, environ={})

    assert RunOptions() != wanted
    for words in ((f"{option.flag}={text}",), (option.flag, text)) if not option.no_flag else ():
        assert wanted == resolve_options(parsed("run", *words), environ={})
    assert wanted == resolve_options({}, environ={option.variable: text})
    if not option.secret:
        known = pytester_parser.parse_known_args([f"--disttest-{option.name}", text])
        assert wanted == resolve_options(
            {option.field: getattr(known, f"disttest_{option.field}")}, environ={}
        )


@pytest.fixture
def pytester_parser():
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    return parser


def test_descriptions():
    by_name = {option.name: option for option in (*RUN_OPTIONS, *options_of("run"), *options_of("launch"))}

    assert (
        "Time limit of a test without a timeout mark; 0: none (default: 300)."
        == by_name["timeout"].description
    )
    assert by_name["log-limit"].description.endswith("(default: 8m).")
    assert "true or false: mount the image read-only." == by_name["read-only"].input_description
    assert by_name["mount"].input_description.startswith("One PATH[:ro] a line: ")
    assert by_name["device"].input_description.startswith(
        "auto, cpu, cuda or emulated-cuda:N: where ranks compute"
    )


def test_a_value_that_makes_no_sense_is_told_with_its_flag():
    with pytest.raises(UsageError, match=r"^--nodes: '0' is not a whole number from 1 to 10000$"):
        parsed("run", "--nodes", "0")
    with pytest.raises(UsageError, match=r"^--by: 'size' is not one of world-size$"):
        parsed("plan", "--by", "size")
    assert 1 == parsed("run", "--nodes", "")["nodes"]


def test_the_launcher_is_taken_from_its_variable(monkeypatch):
    monkeypatch.setenv("DISTTEST_LAUNCHER", "local")

    assert "local" == parsed("run")["launcher"]
    assert "slurm" == parsed("run", "--launcher", "slurm")["launcher"]
    monkeypatch.setenv("DISTTEST_LAUNCHER", "pbs")
    with pytest.raises(
        UsageError, match=r"^DISTTEST_LAUNCHER: 'pbs' is not one of local, slurm, kubernetes$"
    ):
        parsed("run")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"name": "timeout"}, "plugin mine and disttest both have an option --timeout of run"),
        ({"name": "budget", "many": True}, "plugin mine: --budget of run has many=True"),
        ({"name": "budget", "type": str}, "plugin mine: the type of --budget is <class 'str'>; take one of "),
    ],
)
def test_an_option_of_a_plugin_that_cannot_work_is_refused_with_its_name(monkeypatch, option, message):
    plugins = Plugins(tuple(name for name, _ in Plugins().all))
    hooks = types.ModuleType("hooks")
    row = Option(**{"type": WHOLE, "help": "N.", "commands": ("run",), **option})
    hooks.disttest_addoptions = hookimpl(lambda: [row])
    plugins.add(hooks, "mine")
    monkeypatch.setattr(registry, "plugin_manager", lambda: plugins)

    with pytest.raises(PluginError, match=message):
        list(registry._of_plugins())
