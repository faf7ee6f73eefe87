"""The command ``disttest launch``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from disttest.errors import DisttestError, UsageError
from disttest.launch.options import IMAGE, TARGETS, LaunchOptions
from disttest.masking import masker
from disttest.planning.options import check_seconds, parse_bytes

if TYPE_CHECKING:
    from disttest.launch.host import Host
    from disttest.launch.prepare import Prepared

FOLDER = click.Path(path_type=Path)


def _number_of_seconds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float:
    if not text:
        return 0.0
    try:
        return check_seconds(float(text))
    except ValueError:
        raise UsageError(f"{text!r} is not a number of seconds above 0") from None


def _size(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int:
    return parse_bytes(text) if text else 0


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS OF DISTTEST…]")
@click.option("--image", metavar="NAME", help=f"Image to start (default: {IMAGE} of this version).")
@click.option(
    "--target", type=click.Choice(TARGETS), default="auto", help="Which build of the released image."
)
@click.option(
    "--gpus", default="auto", metavar="CHOICE", help="auto, all, none, a count, UUIDs, or device=INDEX."
)
@click.option(
    "--pull", type=click.Choice(("missing", "always", "never")), default="missing", help="When to pull."
)
@click.option(
    "--engine",
    default="",
    metavar="ADDRESS",
    help="Engine's address (default: DOCKER_HOST, then usual places).",
)
@click.option(
    "--user", default="auto", metavar="CHOICE", help="auto (the workspace's owner), image, or UID:GID."
)
@click.option(
    "--workspace",
    type=FOLDER,
    default=None,
    help="Folder to mount (default: GITHUB_WORKSPACE or the current).",
)
@click.option(
    "--workdir",
    type=FOLDER,
    default=Path(),
    help="Where disttest starts inside (default: the current folder).",
)
@click.option("--results", type=FOLDER, default=None, help="Results directory, on the host.")
@click.option("--cache", type=FOLDER, default=None, help="Folder for caches that outlive the container.")
@click.option(
    "--lease-dir", type=FOLDER, default=None, help="Folder in which the runners of this host lease GPUs."
)
@click.option("--mount", "mounts", multiple=True, metavar="PATH[:ro]", help="One more folder of the host.")
@click.option("--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="One more variable.")
@click.option("--network", default="", metavar="NAME", help="Network of the container, such as none or host.")
@click.option("--read-only", is_flag=True, help="Mount the image read-only.")
@click.option(
    "--shm-size", callback=_size, metavar="SIZE", help="Size of /dev/shm (default: half of the memory)."
)
@click.option(
    "--time-limit", callback=_number_of_seconds, metavar="SECONDS", help="The container ends after that."
)
@click.option(
    "--deadline", callback=_number_of_seconds, metavar="SECONDS", help="Time limit of the run inside."
)
@click.option("--dry-run", is_flag=True, help="Print what would be started, as JSON, and start nothing.")
@click.pass_context
def launch(
    context: click.Context,
    /,
    arguments: tuple[str, ...],
    *,
    dry_run: bool,
    shm_size: int,
    time_limit: float,
    **asked: Any,
) -> None:
    """Start the image on this host, run disttest in it, and return its exit code.

    \b
    disttest launch ddp                        the released image, with the GPUs that are here
    disttest launch --gpus none --image my:1 tests/ --world-sizes 2 -- -k reduce
    """
    # The Docker SDK takes longer to import than `disttest --help` may take.
    from disttest.launch.host import this_host
    from disttest.launch.session import launch as run_launch
    from disttest.launch.session import preview
    from disttest.reports.outputs import failure_outputs, publish_outputs

    host = this_host()
    options = read_options(
        (*arguments, *_pytest_part(context.obj)), host, shm_bytes=shm_size, time_limit_s=time_limit, **asked
    )
    if dry_run:
        click.echo(render_preview(preview(options, host)))
        return
    try:
        code = run_launch(options, host, say=lambda line: click.echo(f"disttest launch: {line}", err=True))
    except DisttestError as error:
        publish_outputs(failure_outputs(error.exit_code), host.environ)
        raise
    context.exit(code)


def _pytest_part(pytest_args: Sequence[str] | None) -> tuple[str, ...]:
    return ("--", *pytest_args) if pytest_args else ()


def read_options(
    arguments: tuple[str, ...],
    host: Host,
    *,
    workspace: Path | None,
    workdir: Path,
    variables: tuple[str, ...],
    deadline: float,
    image: str | None,
    **asked: Any,
) -> LaunchOptions:
    """The flags as options; the workspace is GitHub's where we are inside it, else the current folder."""
    given = Path(host.environ.get("GITHUB_WORKSPACE") or workdir)
    inside = workdir.resolve().is_relative_to(given.resolve())
    return LaunchOptions(
        arguments=arguments,
        image=image or "",
        workspace=workspace or (given if inside else workdir),
        working_dir=workdir,
        environment=variables,
        deadline_s=deadline,
        **asked,
    )


def render_preview(prepared: Prepared) -> str:
    """The launch as JSON: what was decided, and what the SDK is told."""
    from disttest.launch.spec import container_arguments

    facts = {
        "spec": prepared.spec,
        "hand_back": prepared.hand_back,
        "create": container_arguments(prepared.spec),
    }
    masker.hide(prepared.spec.environment.get("DISTTEST_MASK", "").splitlines())
    return masker.text(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())
