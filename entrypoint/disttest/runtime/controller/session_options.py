"""Options of a pytest session: from its user, from the command that started it, or from the client of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from disttest.errors import UsageError
from disttest.model import Invocation
from disttest.options.environment import ci_workspace, environment
from disttest.options.project_file import read_project_settings
from disttest.options.registry import PLUGIN_SWITCHES, RUN_OPTIONS
from disttest.options.run import RunOptions, given_options, resolve_options
from disttest.options.values import spell_out
from disttest.planning.backends import GPU, is_accelerator
from disttest.planning.targets import suites_dir
from disttest.plugin_manager import plugin_manager
from disttest.results.repeat import variables_of_classes
from disttest.runtime.controller.orders import is_given
from disttest.runtime.controller.target_host import MOST_GPUS, TargetHost

ASKED = pytest.StashKey[bool]()
"""Whether the session asks for something of disttest; see :func:`has_asked`."""


def has_asked(config: pytest.Config) -> bool:
    """Whether the user asked for disttest by command or option, as opposed to having it installed.

    Called before the configuration is read; invalid values become errors later.
    """
    if is_given(config):
        return True
    known = config.known_args_namespace
    flags = {option.field: getattr(known, f"disttest_{option.field}", None) for option in RUN_OPTIONS}
    try:
        settings = read_project_settings(known.file_or_dir or (), config.invocation_params.dir)
    # A project file with an error belongs to a project that uses disttest. The user must see the error.
    except UsageError:
        return True
    return bool(given_options(settings.fill(flags)))


def _flags_of(config: pytest.Config) -> dict[str, str | None]:
    """Return the flags of plain pytest and the project; the command has read the project's file for its processes."""
    flags = {option.field: config.getoption(f"disttest_{option.field}", None) for option in RUN_OPTIONS}
    if is_given(config):
        return flags
    return read_project_settings(config.args, config.invocation_params.dir).fill(flags)


def invocation_of(config: pytest.Config) -> Invocation:
    """Describe the invocation of plain pytest."""
    asked = config.invocation_params
    positional = config.getoption("file_or_dir") or ()
    return Invocation(
        cwd=str(asked.dir),
        workspace=ci_workspace(),
        bundled=config.rootpath == suites_dir(),
        options=given_options(_flags_of(config)),
        pytest_args=tuple(arg for arg in _without_ours(map(str, asked.args)) if arg not in positional),
        environment=variables_of_classes(environment()),
    )


def _without_ours(arguments: Iterable[str]) -> Iterator[str]:
    """Remove the plugin's own arguments, whose values may be the next word."""
    # After this every switch of the plugin has its value attached, and every other option the value as the next word.
    words = iter(spell_out(tuple(arguments), PLUGIN_SWITCHES))
    for word in words:
        if not word.startswith("--disttest-"):
            yield word
        elif "=" not in word:
            next(words, None)


@contextmanager
def pytests_errors() -> Iterator[None]:
    """Raise an error of the user as pytest's, which it prints without a traceback."""
    try:
        yield
    except UsageError as error:
        raise pytest.UsageError(f"disttest: {error}") from None


def options_of(config: pytest.Config) -> RunOptions:
    """Resolve the options of the run.

    Raises:
        pytest.UsageError: an option is invalid.
    """
    with pytests_errors():
        return resolve_options(_flags_of(config))


OPTIONS = pytest.StashKey[RunOptions]()
"""The options of the run of a pytest configuration."""


def with_plugins(options: RunOptions, config: pytest.Config) -> RunOptions:
    """Let plugins change the options.

    Raises:
        pytest.UsageError: a plugin cannot do what the options ask.
    """
    with pytests_errors():
        changed = plugin_manager().mapping("disttest_set_options", object, config=config, options=options)
    return msgspec.structs.replace(options, **changed)


def check_reports(config: pytest.Config) -> None:
    """Require pytest's ``reports`` plugin, which ranks use to send their reports.

    Raises:
        pytest.UsageError: the plugin is switched off.
    """
    if not config.pluginmanager.hasplugin("reports"):
        raise pytest.UsageError(
            "disttest: tests with ranks need pytest's plugin reports, which -p no:reports has switched off"
        )


def host_in_order(options: RunOptions) -> TargetHost:
    """Describe this machine as if its GPUs worked; their number is a guess unless an option states it."""
    share = options.gpus
    gpus = share.count or len(share.names) or options.slots or MOST_GPUS
    return TargetHost(
        gpus=gpus,
        device=options.device if is_accelerator(options.device) else GPU,
        ranks_per_gpu=options.ranks_per_gpu,
    )
