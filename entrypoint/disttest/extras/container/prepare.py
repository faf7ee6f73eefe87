"""Derive the LaunchSpec from the options, the host and the engine. Pure except for looking at paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from disttest.errors import EngineError, UsageError
from disttest.extras.container.container_environment import FILES, choose_environment
from disttest.extras.container.container_spec import Bind, LaunchSpec, choose_shm
from disttest.extras.container.engine import EngineFacts
from disttest.extras.container.gpus import ALL, AUTO, GpuGrant, HostGpu, choose_gpus
from disttest.extras.container.left_containers import RESULTS, WORKING_DIR, job_of, make_labels
from disttest.extras.container.limits import CONTAINER_LIMIT_S, CONTAINER_MARGIN_S, PIDS_LIMIT
from disttest.extras.container.options import DEFAULT_TARGET, DIGESTS, IMAGE, LaunchOptions
from disttest.extras.container.ownership import HandBack, choose_user, needs_hand_back, owner_of
from disttest.host.proc import ProcessIdentity
from disttest.model import Frozen

FORBIDDEN = (
    "/",
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/opt",
    "/opt/disttest",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
)
"""Paths at which a mount would hide the image's own files."""


class Prepared(Frozen):
    """A launch that is ready to start."""

    spec: LaunchSpec
    hand_back: HandBack | None
    """None if the container can only write the owner's files."""


def choose_image(options: LaunchOptions, *, version: str, with_gpus: bool) -> str:
    """Return the image's name: the chosen one, or the released one of this version and target."""
    if options.image:
        return options.image
    target = DEFAULT_TARGET[with_gpus] if options.target == AUTO else options.target
    return f"{IMAGE}@{DIGESTS[target]}" if target in DIGESTS else f"{IMAGE}:{version}-{target}"


def prepare(
    options: LaunchOptions,
    *,
    environ: Mapping[str, str],
    facts: EngineFacts,
    host_gpus: tuple[HostGpu, ...] | None,
    client: ProcessIdentity,
    now_s: float,
    version: str,
) -> Prepared:
    """Make all decisions of a launch.

    Raises:
        UsageError: a path or a choice is invalid.
        NotEnoughDevices: GPUs are required and missing.
        EngineError: the engine cannot set a requested limit.
    """
    if options.memory_bytes and not facts.limits_memory:
        raise EngineError(
            "--memory: this engine cannot limit memory; enable the memory controller of its cgroups"
        )
    workspace = _folder(options.workspace, "--workspace")
    working_dir = _folder(options.working_dir, "--workdir")
    owner = owner_of(workspace)
    user = choose_user(options.user, owner=owner, facts=facts)
    gpus = _grant_gpus(options, environ, facts, host_gpus)
    limit_s = options.time_limit_s or _limit(options.deadline_s)
    task = HandBack(workspace=str(workspace), owner=str(owner), since=now_s)
    returns = needs_hand_back(user, owner=owner, facts=facts)
    environment = choose_environment(environ, options.environment)
    if given := environment.get("GITHUB_WORKSPACE"):
        # Links of the host do not exist inside, where mounts have their real paths.
        environment["GITHUB_WORKSPACE"] = str(Path(given).resolve())
    labels = make_labels(client, job_of(environ), expires_at_s=now_s + limit_s)
    labels |= {WORKING_DIR: str(working_dir)}
    labels |= {RESULTS: str(options.results.resolve())} if options.results else {}
    spec = LaunchSpec(
        image=choose_image(options, version=version, with_gpus=bool(gpus.devices)),
        arguments=options.arguments,
        working_dir=str(working_dir),
        binds=_binds(options, workspace, working_dir, environment),
        environment=environment | _run_environment(options),
        labels=labels | (task.labels() if returns else {}),
        gpus=gpus,
        user=user,
        shm_bytes=options.shm_bytes or choose_shm(options.memory_bytes or facts.memory_bytes),
        memory_bytes=options.memory_bytes,
        pids=_pids(options, facts),
        time_limit_s=limit_s,
        network=options.network,
        read_only=options.read_only,
        raise_limits=not facts.rootless,
    )
    return Prepared(spec=spec, hand_back=task if returns else None)


def _pids(options: LaunchOptions, facts: EngineFacts) -> int:
    if options.pids_limit and not facts.limits_pids:
        raise EngineError(
            "--pids-limit: this engine cannot limit processes; enable the pids controller of its cgroups"
        )
    if options.pids_limit is None:
        return PIDS_LIMIT if facts.limits_pids else 0
    return options.pids_limit


def _leases_gpus(options: LaunchOptions) -> bool:
    """Whether the run itself leases that many free and healthy GPUs, which all runs on this host share."""
    return options.lease_dir is not None and options.gpus.strip().isdigit()


def _grant_gpus(
    options: LaunchOptions,
    environ: Mapping[str, str],
    facts: EngineFacts,
    host_gpus: tuple[HostGpu, ...] | None,
) -> GpuGrant:
    share = environ.get("NVIDIA_VISIBLE_DEVICES")
    # Also for a run that leases: a count that the share cannot meet is refused before the start.
    grant = choose_gpus(options.gpus, share=share, host=host_gpus, engine=facts.gpus)
    if _leases_gpus(options):
        # The container gets the whole share, since only the run inside knows which GPUs are free.
        return choose_gpus(ALL, share=share, host=host_gpus, engine=facts.gpus)
    return grant


def _limit(deadline_s: float) -> float:
    return deadline_s + CONTAINER_MARGIN_S if deadline_s else CONTAINER_LIMIT_S


def _folder(path: Path, flag: str) -> Path:
    folder = path.resolve()
    if not folder.is_dir():
        raise UsageError(f"{flag} {path}: there is no such folder")
    if str(folder) in FORBIDDEN:
        raise UsageError(f"{flag} {folder} would hide files of the image; choose another folder")
    return folder


def _binds(
    options: LaunchOptions, workspace: Path, working_dir: Path, environment: dict[str, str]
) -> tuple[Bind, ...]:
    paths: dict[str, Bind] = {}
    # The user's mounts come first: the folders below are added only if none of these has them.
    for entry in options.mounts:
        path, _, mode = entry.partition(":")
        if mode not in ("", "ro", "rw"):
            raise UsageError(f"--mount {entry!r} is not PATH or PATH:ro")
        _add_chosen(paths, Bind(path=str(_folder(Path(path), "--mount")), read_only=mode == "ro"))
    # The workspace has the same path inside, so that paths in reports are valid outside.
    for folder in (workspace, working_dir, options.results, options.cache, options.lease_dir):
        if folder is not None:
            _add(paths, folder.resolve())
    for name in FILES:
        file = Path(environment.get(name) or "/nowhere")
        if file.is_file():
            _add(paths, file)
        else:
            # A variable without its file inside would make each attempt to publish fail.
            environment.pop(name, None)
    return tuple(paths.values())


def _add_chosen(paths: dict[str, Bind], chosen: Bind) -> None:
    """Add a mount of the user. A read-only one below a writable one stays: it protects its files.

    Raises:
        UsageError: the same folder was given with the other mode.
    """
    known = paths.setdefault(chosen.path, chosen)
    if known != chosen:
        raise UsageError(f"--mount {chosen.path} is given as read-only and as writable; leave one out")


def _add(paths: dict[str, Bind], path: Path) -> None:
    """Add a writable mount, unless the user chose one for this folder, or one above it includes it."""
    closest = max(
        (bind for bind in paths.values() if path.is_relative_to(bind.path)),
        key=lambda bind: len(bind.path),
        default=None,
    )
    if closest is None or (closest.read_only and closest.path != str(path)):
        paths[str(path)] = Bind(path=str(path))


def _run_environment(options: LaunchOptions) -> dict[str, str]:
    """Return the variables for the run inside; its own flags take precedence."""
    variables = {}
    if options.results is not None:
        variables["DISTTEST_RESULTS"] = str(options.results.resolve())
    if options.deadline_s:
        variables["DISTTEST_DEADLINE"] = f"{options.deadline_s:g}"
    if options.lease_dir is not None:
        variables["DISTTEST_LEASE_DIR"] = str(options.lease_dir.resolve())
        if _leases_gpus(options):
            variables["DISTTEST_GPUS"] = options.gpus.strip()
    if options.cache is not None:
        cache = options.cache.resolve()
        # Inductor's default is a folder in /tmp, which ends with the container.
        variables |= {"XDG_CACHE_HOME": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
    return variables
