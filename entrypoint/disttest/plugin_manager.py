"""The plugins of this process: loading, and calls of their hooks."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pluggy

from disttest import hookspecs
from disttest.errors import DisttestError, PluginError
from disttest.outgoing import OutputFilter, outgoing

# All other modules are the core, which has no line to spare.
# docs/decisions/0039-core-is-a-runner-and-libraries.md
_RINGS = ("plugins", "extras")
"""Folders of built-in plugins."""
T = TypeVar("T")
# It imports the plugin's other modules inside functions, when they are used.
_HOOKS = "hooks"
"""Module of a built-in plugin that has its hooks."""
_CORE = "disttest.core"
"""Prefix of the names of the core's own parts, which every process has."""


_loading: list[str] = []
"""Plugins that are being imported; empty outside of the first call."""


@cache
def plugin_manager() -> Plugins:
    """Load the plugins with the first call; return them.

    Raises:
        PluginError: a plugin imports, at its top, a module that needs all plugins; or as in :class:`Plugins`.
    """
    # The registries of options, reports and schedulers are made from all plugins. An import in the middle of
    # loading would see only some of them: a report was once missing without a message.
    if _loading:
        raise PluginError(
            f"plugin {_loading[-1]} imports a module of disttest that needs all plugins: import it inside the functions that "
            "use it (`docs/write-a-plugin.md` lists what a plugin may import at its top)"
        )
    plugins = Plugins(left_out_by(sys.argv[1:]))
    outgoing.install(plugins.call("disttest_output_filter") or OutputFilter())
    return plugins


# Not pytest's manager: the command imports no pytest, and that manager accepts only hooks whose names begin with
# `pytest_`.
# docs/decisions/0001-plugins-through-own-manager.md
class Plugins:
    """The built-in and the installed plugins of a process.

    Args:
        blocked: names of plugins to leave out, as ``-p no:NAME`` gives them.

    Raises:
        PluginError: an installed plugin cannot be imported, or has a hook that does not exist or has other arguments.
    """

    def __init__(self, blocked: Sequence[str] = ()) -> None:
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._versions: dict[str, str] = {}
        for name in blocked:
            if not name.startswith(_CORE):
                self._manager.set_blocked(name)
        for ring in _RINGS:
            # Sorted by name, so that hooks are called in the same order in all processes of a run.
            for module in pkgutil.iter_modules([str(Path(__file__).with_name(ring))]):
                self._add_built_in(f"disttest.{ring}.{module.name}", f"disttest.{module.name}")
        self.blocked = tuple(sorted(blocked))
        """Names of the plugins that the command line leaves out."""
        self.removed: list[str] = []
        """Names of the plugins that were loaded and left out later."""
        self._entries = _entries()
        for entry in self._entries:
            self._add_installed(entry)
        self.identity = tuple(
            sorted(f"{name} {self._versions.get(name, '')}".strip() for name, _ in self.all)
        )
        """Names and versions when they were loaded. All processes of a run must have loaded the same ones."""

    def _add_built_in(self, package: str, name: str) -> None:
        if not self._manager.is_blocked(name):
            with _loads(name):
                module = importlib.import_module(f"{package}.{_HOOKS}")
            self.add(module, name)

    def _add_installed(self, entry: metadata.EntryPoint) -> None:
        if self._manager.is_blocked(entry.name):
            return
        try:
            with _loads(entry.name):
                plugin = entry.load()
        except PluginError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"plugin {entry.name} cannot be loaded: {type(error).__name__}: {error}; "
                f"repair or uninstall it, or leave it out with -p no:{entry.name}"
            ) from error
        self.add(plugin, entry.name)
        self._versions[entry.name] = entry.dist.version if entry.dist else ""

    def why_others(self, words: Sequence[str]) -> str:
        """Return why a new process with this command line would have other plugins; empty if it has the same."""
        if tuple(sorted(left_out_by(words))) != self.blocked:
            return "the command line leaves out other plugins"
        return "the installed plugins changed" if _entries() != self._entries else ""

    def add(self, plugin: object, name: str) -> None:
        """Register a plugin.

        Raises:
            PluginError: it has a hook that does not exist, or that has other arguments.
        """
        if name.startswith(_CORE):
            raise PluginError(f"plugin {name}: names that begin with {_CORE} are reserved for the core")
        try:
            self._check(plugin, name)
            self._manager.register(plugin, name)
            # pluggy compares names of hooks with its specifications only when it is asked.
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(
                f"plugin {name} does not fit this version of disttest: {_misfit(plugin) or error}"
            ) from error

    def add_core(self, plugin: object, name: str) -> None:
        """Register the core's own implementation of hooks, once per process."""
        if not self._manager.has_plugin(f"{_CORE}.{name}"):
            self._manager.register(plugin, f"{_CORE}.{name}")

    def _check(self, plugin: object, name: str) -> None:
        """Refuse hooks that would never be called."""
        # By name: pluggy passes over functions without its mark in silence.
        for hook in (each for each in dir(plugin) if each.startswith(f"{hookspecs.PROJECT}_")):
            if not inspect.isroutine(getattr(plugin, hook)):
                continue
            options = self._manager.parse_hookimpl_opts(plugin, hook)
            if options is None:
                raise PluginError(f"plugin {name}: {hook} lacks @hookimpl, so it would never be called")
            if hook in hookspecs.WRAPPED and not options["wrapper"]:
                raise PluginError(
                    f"plugin {name}: {hook} needs @hookimpl(wrapper=True): the core has the implementation that plugins wrap"
                )

    def remove(self, name: str) -> None:
        """Leave a plugin out from now on; do nothing if there is none of that name."""
        if self._manager.has_plugin(name):
            self._manager.unregister(name=name)
            self.removed.append(name)

    @property
    def all(self) -> Iterator[tuple[str, object]]:
        """Names and plugins, except the parts of the core."""
        for name, plugin in self._manager.list_name_plugin():
            if plugin is not None and not name.startswith(_CORE):
                yield name, plugin

    def has(self, hook: str) -> bool:
        """Return whether any plugin implements a hook."""
        return bool(self._caller(hook).get_hookimpls())

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call a hook.

        Returns:
            The result of each plugin, or for hooks with ``firstresult`` the first that is not None.

        Raises:
            PluginError: a plugin raised an exception; the message names the plugin. Errors of disttest pass unchanged,
                and so do those by which pytest and click end a run.
        """
        caller = self._caller(hook)
        try:
            return caller(**arguments)
        # Also SystemExit and pytest's outcomes: a hook that skips or exits must not pass in silence.
        except BaseException as error:
            name = _culprit(error, caller)
            if name is None or _is_meant(error):
                raise
            raise _failure(name, hook, error) from error

    def chain(self, hook: str, argument: str, value: T) -> T:
        """Call a hook that may change a value; each plugin receives the value that the one before it returned.

        Args:
            hook: a hook that returns a value of this type, or None for no change.
            argument: name of the hook's only argument.
            value: the value for the first plugin.

        Raises:
            PluginError: a plugin raised an exception or returned a value of another type.
        """
        # pluggy passes the same arguments to all implementations and cannot chain them.
        for implementation in reversed(self._caller(hook).get_hookimpls()):
            with blaming(implementation.plugin_name, hook):
                changed = implementation.function(**{argument: value})
            if changed is not None and not isinstance(changed, type(value)):
                raise PluginError(
                    f"plugin {implementation.plugin_name} returned a wrong value from {hook}: "
                    f"a {type(value).__name__} or None is needed"
                )
            value = value if changed is None else changed
        return value

    def implementing(self, hook: str) -> list[str]:
        """Return the names of the plugins that implement a hook, except parts of the core."""
        names = (each.plugin_name for each in self._caller(hook).get_hookimpls())
        return [name for name in names if not name.startswith(_CORE)]

    def items(self, hook: str, type_: type[T], **arguments: Any) -> list[tuple[str, T]]:
        """Call a hook that returns a list; return each item with the name of its plugin.

        Raises:
            PluginError: a plugin raised an exception or returned a value of another type.
        """
        return [
            (name, item)
            for name, found in self._each(hook, **arguments)
            for item in _checked(name, hook, found, type_)
        ]

    def mapping(self, hook: str, type_: type[T], **arguments: Any) -> dict[str, T]:
        """Call a hook that returns a dict; merge the results of all plugins.

        Raises:
            PluginError: a plugin raised an exception, returned another type, or used a name of another plugin.
        """
        owners: dict[str, str] = {}
        merged: dict[str, T] = {}
        for plugin, found in self._each(hook, **arguments):
            for name, value in _checked_mapping(plugin, hook, found, type_).items():
                if name in owners:
                    raise PluginError(
                        f"plugins {owners[name]} and {plugin} both add {name!r} in {hook}: leave one out"
                    )
                owners[name], merged[name] = plugin, value
        return merged

    def _each(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """Call each plugin in pluggy's order: the one registered last is first."""
        results = []
        for implementation in reversed(self._caller(hook).get_hookimpls()):
            given = {name: arguments[name] for name in implementation.argnames}
            with blaming(implementation.plugin_name, hook):
                results.append((implementation.plugin_name, implementation.function(**given)))
        return results

    def named(self, hook: str, type_: type[T], **arguments: Any) -> dict[str, T]:
        """Call a hook; return the results that are not None, by the last part of the plugin's name.

        Raises:
            PluginError: a plugin raised an exception or returned a value of another type.
        """
        found = [(name, result) for name, result in self._each(hook, **arguments) if result is not None]
        for name, result in found:
            if not isinstance(result, type_):
                raise PluginError(
                    f"plugin {name} returned a wrong value from {hook}: a {type_.__name__} is needed"
                )
        return {name.rpartition(".")[2]: result for name, result in found}

    def _caller(self, hook: str) -> pluggy.HookCaller:
        caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
        return caller


@contextmanager
def _loads(name: str) -> Iterator[None]:
    _loading.append(name)
    try:
        yield
    finally:
        _loading.pop()


def plugins_differ(wanted: Sequence[str], found: Sequence[str], where: str, other: str) -> str:
    """Describe in a line how the plugins of two processes of a run differ; empty if names and versions are the same.

    Args:
        wanted: ``Plugins.identity`` of the process that started the run.
        found: ``Plugins.identity`` of the process that joins it.
        where: name of the process that joins, for the message.
        other: name of the process that started the run, for the message.
    """
    here, there = sorted(set(found) - set(wanted)), sorted(set(wanted) - set(found))
    if not here and not there:
        return ""
    return (
        f"{where} has plugin {', '.join(here) or 'none'} where {other} has {', '.join(there) or 'none'}: "
        "all processes of a run need the same plugins in the same versions"
    )


@contextmanager
def blaming(name: str, hook: str, *, meant: type[DisttestError] = DisttestError) -> Iterator[None]:
    """Turn an exception of this block into an error that names the plugin and the hook.

    Args:
        name: the plugin.
        hook: the hook that the block calls.
        meant: errors of disttest that pass as they are, because the plugin may end the command with them.
    """
    try:
        yield
    except BaseException as error:
        if _is_meant(error, meant):
            raise
        raise _failure(name, hook, error) from error


def _misfit(plugin: object) -> str:
    """Return which hook of a plugin does not exist, or which argument; empty if all do."""
    from difflib import get_close_matches  # 1 ms, which no other command has to pay

    for hook in (each for each in dir(plugin) if each.startswith(f"{hookspecs.PROJECT}_")):
        if (spec := getattr(hookspecs, hook, None)) is None:
            like = get_close_matches(hook, dir(hookspecs), 1, 0.8)
            return f"there is no hook {hook}{f', but {like[0]}' if like else ''}"
        known, used = (inspect.signature(each).parameters for each in (spec, getattr(plugin, hook)))
        if unknown := [argument for argument in used if argument not in known]:
            return f"{hook} has no argument {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
    return ""


def _failure(name: str, hook: str, error: BaseException) -> PluginError:
    return PluginError(f"plugin {name} failed in {hook}: {type(error).__name__}: {error}")


def _checked(plugin: str, hook: str, found: Any, type_: type[T]) -> Sequence[T]:
    if isinstance(found, (list, tuple)) and all(isinstance(item, type_) for item in found):
        return found
    raise PluginError(
        f"plugin {plugin} returned a wrong value from {hook}: a list of {type_.__name__} is needed"
    )


def _checked_mapping(plugin: str, hook: str, found: Any, type_: type[T]) -> dict[str, T]:
    if isinstance(found, dict) and all(isinstance(k, str) and isinstance(v, type_) for k, v in found.items()):
        return found
    raise PluginError(
        f"plugin {plugin} returned a wrong value from {hook}: a dict of {type_.__name__} by name is needed"
    )


# Its other exceptions are outcomes of tests, which a hook cannot have.
_ENDINGS = ("Exit", "Failed", "Interrupted", "UsageError")
"""Names of the exceptions by which pytest ends a session."""


def _is_meant(error: BaseException, meant: type[DisttestError] = DisttestError) -> bool:
    """Return whether an exception is intended, and no failure of the plugin that raises it."""
    # Intended are errors of disttest, and exceptions by which the user, pytest or click end the run.
    if isinstance(error, (meant, KeyboardInterrupt, GeneratorExit)):
        return True
    module = type(error).__module__
    if module == "_pytest.outcomes" and type(error).__name__ == "Failed":  # raised by ``pytest.fail``
        return False
    root = module.partition(".")[0]
    # For example, a user leaves a debugger that runs inside a hook.
    return root == "click" or (root in ("_pytest", "pytest") and type(error).__name__ in _ENDINGS)


def _culprit(error: BaseException, caller: pluggy.HookCaller) -> str | None:
    """Return the plugin in whose function an exception was raised; None if the core raised it."""
    # The traceback of a wrapped function includes its wrappers, so the innermost function counts.
    implementations = {
        getattr(each.function, "__code__", None): each.plugin_name for each in caller.get_hookimpls()
    }
    name = None
    trace = error.__traceback__
    while trace is not None:
        name = implementations.get(trace.tb_frame.f_code, name)
        trace = trace.tb_next
    return None if name is None or name.startswith(_CORE) else name


def _entries() -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=hookspecs.PROJECT))


def left_out_by(words: Sequence[str]) -> tuple[str, ...]:
    """Return the plugins that a command line leaves out with ``-p no:NAME``."""
    # pytest accepts `-pno:NAME` and `-p no:NAME`.
    asked = [word[2:] for word in words if word.startswith("-p") and not word.startswith("--")]
    asked += [following for word, following in pairwise(words) if word == "-p"]
    return tuple(word.removeprefix("no:") for word in asked if word.startswith("no:"))
