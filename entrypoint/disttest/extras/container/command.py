"""Command ``disttest launch``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from disttest.cli.purposes import Purpose, serves
from disttest.extras.container.container_environment import ENVIRONMENT
from disttest.extras.container.options import LaunchOptions
from disttest.options.flags import PYTEST_WORDS, Decorator, RelayingCommand, Switch, flags, pytest_flag
from disttest.options.option import Option
from disttest.options.registry import options_of, secrets_in
from disttest.outgoing import outgoing

if TYPE_CHECKING:
    from disttest.extras.container.launch_host import Host
    from disttest.extras.container.prepare import Prepared


_HANDED_ON = "disttest.handed_on"


class HandedOnOption(click.Option):
    """A flag of ``run``."""


class HandedOnSwitch(Switch, HandedOnOption):
    """A flag of ``run`` with an optional value."""


def with_flags_of_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``launch`` accept the flags of ``run``, without showing them: see :func:`words_handed_on`."""
    # A flag that both have belongs to the outer one.
    own = {option.flag for option in options_of("launch")}
    for word in PYTEST_WORDS:
        if "run" in word.commands:
            command = pytest_flag(word, hidden=True)(command)
    for option in options_of("run"):
        if option.flag not in own and not option.no_flag:
            command = _foreign_flag(option)(command)
    return command


def words_handed_on(context: click.Context) -> tuple[str, ...]:
    """Return the inner command's flags on this command line, for the inner command line."""
    return tuple(context.meta.get(_HANDED_ON, ()))


def take_secrets(words: Sequence[str], environ: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Remove secrets from the words of ``run``, because command lines are public.

    Returns:
        The other words, and an environment in which variables have the secrets, each on a separate line after the
            existing value.
    """
    secret = {option.flag: option.variable for option in options_of("run") if option.secret}
    variables, left = dict(environ), tuple(words)
    for flag, variable in secret.items():
        values, left = _take(flag, left)
        if values:
            variables[variable] = "\n".join(filter(None, [variables.get(variable), *values]))
    return left, variables


def _take(flag: str, words: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """Take an option out of a command line; return its values, and the other words."""
    values: list[str] = []
    left: list[str] = []
    # One iterator for the loop and its body: of `--mask VALUE` the second word is a value.
    waiting = iter(words)
    for word in waiting:
        name, given, value = word.partition("=")
        if name == flag:
            values.append(value if given else next(waiting, ""))
        else:
            left.append(word)
    return values, tuple(left)


def _foreign_flag(option: Option) -> Decorator:
    def set_value(context: click.Context, _parameter: click.Parameter, given: Any) -> None:
        words = context.meta.setdefault(_HANDED_ON, [])
        # A switch takes its value after `=` only. The word that follows it may be a test.
        for value in given if option.many else (given,):
            if value is not None:
                words.extend([f"{option.flag}={value}"] if option.type.bare else [option.flag, value])

    kind: dict[str, Any] = (
        {"cls": HandedOnSwitch, "value": option.type} if option.type.bare else {"cls": HandedOnOption}
    )
    return click.option(
        *option.aliases,
        option.flag,
        **kind,
        multiple=option.many,
        callback=set_value,
        expose_value=False,
        hidden=True,
    )


_FOLDERS = {"results": "--results", "lease_dir": "--lease-dir"}
"""Fields and options of folders of the host that the run inside writes to."""


@serves(Purpose.MACHINES)
# Options behind the first argument belong to the run inside, even those that both commands have.
@click.command(
    cls=RelayingCommand, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS OF DISTTEST…]")
@flags("launch")
@with_flags_of_run
@click.pass_context
def launch(
    context: click.Context,
    /,
    arguments: tuple[str, ...],
    *,
    dry_run: bool,
    **asked: Any,
) -> None:
    """Start the image on this host, run disttest in it, and return its exit code.

    Options of disttest run may also be given before its targets.

    \b
    disttest launch ddp                        the released image, with the GPUs of this host
    disttest launch --gpus none --image my:1 tests/ --world-sizes 2 -- -k reduce
    """
    # Imported late: importing the Docker SDK takes longer than `disttest --help` may take.
    from disttest.extras.container.launch_host import this_host
    from disttest.extras.container.launching import launch as run_launch
    from disttest.extras.container.launching import preview

    host = this_host()
    # After the first argument, which may be the name of a command.
    words = (*arguments[:1], *words_handed_on(context), *arguments[1:])
    # Secrets leave the command line, which other users can read in /proc, for the environment.
    inside, environ = take_secrets(words, host.environ)
    host = dataclasses.replace(host, environ=environ)
    options = read_options((*inside, *_pytest_part(context.obj)), host, **asked)
    if dry_run:
        click.echo(render_preview(preview(options, host)))
        return
    context.exit(run_launch(options, host, say=lambda line: click.echo(f"disttest launch: {line}", err=True)))


def _pytest_part(pytest_args: Sequence[str] | None) -> tuple[str, ...]:
    return ("--", *pytest_args) if pytest_args else ()


def read_options(
    arguments: tuple[str, ...],
    host: Host,
    *,
    workspace: Path | None,
    workdir: Path,
    env: str,
    mount: tuple[str, ...],
    memory: int,
    shm_size: int,
    time_limit: float,
    deadline: float,
    **asked: Any,
) -> LaunchOptions:
    """Convert the flags. The workspace is GITHUB_WORKSPACE if the current folder is inside it, or else that folder."""
    given = Path(host.environ.get("GITHUB_WORKSPACE") or workdir)
    inside = workdir.resolve().is_relative_to(given.resolve())
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words, of_pytest = arguments[:end], arguments[end:]
    # The run inside would write into folders of the container, which end with it.
    for field, flag in _FOLDERS.items():
        values, others = _take(flag, words)
        # Its variable takes its place, since a path below a link of the host would be another one inside.
        words = others if _has_variable(flag, words) else words
        if not (values or asked[field]):
            values = [host.environ.get(f"DISTTEST_{field.upper()}", "")]
        if named := "".join(values[-1:]):
            asked[field] = workdir / named
    return LaunchOptions(
        arguments=(*words, *of_pytest),
        workspace=workspace or (given if inside else workdir),
        working_dir=workdir,
        environment=_lines(host.environ.get(ENVIRONMENT, ""), env),
        mounts=mount,
        memory_bytes=memory,
        shm_bytes=shm_size,
        time_limit_s=time_limit,
        deadline_s=deadline,
        **asked,
    )


def _has_variable(flag: str, arguments: Sequence[str]) -> bool:
    """Whether the command inside reads the option from its variable, too; without a command it is a run."""
    options = options_of(arguments[0]) if arguments else ()
    return any(option.flag == flag and option.has_variable for option in options or options_of("run"))


def _lines(*texts: str) -> tuple[str, ...]:
    return tuple(line.strip() for text in texts for line in text.splitlines() if line.strip())


def render_preview(prepared: Prepared) -> str:
    """Render the launch as JSON: the decisions, and the arguments for the SDK."""
    from disttest.extras.container.container_spec import container_arguments

    facts = {
        "spec": prepared.spec,
        "hand_back": prepared.hand_back,
        "create": container_arguments(prepared.spec),
    }
    # The preview prints the container's variables, into one of which `take_secrets` has moved --mask.
    outgoing.hide(secrets_in(prepared.spec.environment))
    return outgoing.json(msgspec.json.format(msgspec.json.encode(facts), indent=2)).decode()
