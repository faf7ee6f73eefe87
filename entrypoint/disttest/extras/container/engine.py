"""The container engine: find it, query it, pull images, and explain its refusals. The only module that translates its errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import docker
import requests
import tenacity
from docker.context import ContextAPI
from docker.context.config import get_current_context_name
from docker.errors import APIError, DockerException, ImageNotFound
from docker.utils import kwargs_from_env

from disttest.errors import EngineError, UsageError
from disttest.extras.container.gpus import CDI_KIND, EngineGpus
from disttest.extras.container.limits import ENGINE_ANSWER_S, ENGINE_PING_S
from disttest.model import Frozen
from disttest.plugins.gpus.machine_advice import MACHINE_ADVICE, AdviceTable, Known


class Endpoint(Frozen):
    """An address to try."""

    origin: str
    """Source of the address."""
    host: str
    chosen: bool = False
    """Whether the user chose it; then no other one is tried."""


def endpoints(*, chosen: str, environ: Mapping[str, str], uid: int, home: str) -> tuple[Endpoint, ...]:
    """Return the addresses to try; only one if the user chose it.

    Raises:
        EngineError: the chosen Docker context is missing or unreadable.
    """
    if chosen:
        return (Endpoint(origin="--engine", host=chosen, chosen=True),)
    # In the order of Docker's own command: the variable overrides the current context.
    if host := environ.get("DOCKER_HOST"):
        return (Endpoint(origin="DOCKER_HOST", host=host, chosen=True),)
    if host := _context_host(environ):
        return (Endpoint(origin="docker context", host=host, chosen=True),)
    run = PurePosixPath(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}")
    places = (
        ("Docker", "/var/run/docker.sock"),
        ("rootless Docker", str(run / "docker.sock")),
        ("Docker Desktop", f"{home}/.docker/run/docker.sock"),
        ("Podman", str(run / "podman/podman.sock")),
        ("Podman", "/run/podman/podman.sock"),
    )
    return tuple(Endpoint(origin=origin, host=f"unix://{path}") for origin, path in places)


def connection_arguments(endpoint: Endpoint, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of ``DockerClient``, including TLS."""
    if endpoint.origin == "docker context":
        tls = _context(environ).TLSConfig
        return {"base_url": endpoint.host} | ({} if tls is None else {"tls": tls})
    if endpoint.origin == "DOCKER_HOST":
        return dict(kwargs_from_env(environment=dict(environ)))
    return {"base_url": endpoint.host}


def _context(environ: Mapping[str, str]) -> Any:
    """Return the Docker context in use: that of the variable, otherwise that of ``docker context use``."""
    name = environ.get("DOCKER_CONTEXT") or get_current_context_name()
    # Not `ContextAPI.kwargs_from_context`: docker 7.1 lacks it, and it returns nothing for a missing name.
    try:
        context = ContextAPI.get_context(name)
    except Exception as error:  # the SDK raises bare exceptions, too
        raise EngineError(
            f"the Docker context {name!r} cannot be read: {error!r}; create it again, or choose another one"
            " in DOCKER_CONTEXT [context-broken]"
        ) from error
    if context is None:
        raise EngineError(
            f"there is no Docker context {name!r}: `docker context ls` lists the existing ones; choose one in"
            " DOCKER_CONTEXT or with `docker context use`, or name the engine's address with --engine"
            " [context-missing]"
        )
    return context


def _context_host(environ: Mapping[str, str]) -> str:
    """Return the address of the current context, unless it is the built-in one."""
    host = _context(environ).Host or ""
    return (
        # Every installation has the built-in context, so it is no choice: the other sockets are tried, too.
        "" if host in ("", "unix:///var/run/docker.sock", "http+unix:///var/run/docker.sock") else str(host)
    )


PULL_ATTEMPTS = 4
FINAL = ("image-name", "image-missing", "image-denied", "disk-full")
"""Refusals that a retry does not change."""


class EngineFacts(Frozen):
    """Properties that an engine reports about itself."""

    name: str
    version: str
    rootless: bool = False
    memory_bytes: int = 0
    local: bool = True
    """Whether it listens on a socket of this host."""
    gpus: EngineGpus = EngineGpus()
    limits_memory: bool = True
    limits_pids: bool = True


@contextlib.contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turn errors of the SDK into disttest's errors with advice.

    Raises:
        UsageError: the engine refused the request, as any other engine would.
        EngineError: the SDK raised for another reason.
    """
    try:
        yield
    except APIError as error:
        # The first clause, since an APIError is a DockerException and a RequestException, too.
        said = str(error.explanation or error)
        # `explanation` has the engine's own words; `str(error)` would add the URL and the status code.
        kind = UsageError if is_mistake(said) else EngineError
        raise kind(f"{doing}: {explain(said)}") from error
    except (DockerException, requests.RequestException, OSError) as error:
        raise EngineError(f"{doing}: {explain(f'{type(error).__name__}: {error}')}") from error


def find_engine(*, chosen: str, environ: Mapping[str, str], uid: int, home: str) -> docker.DockerClient:
    """Connect to the first engine that answers.

    Raises:
        EngineError: no engine answers; the message lists the attempts.
    """
    tried = []
    for endpoint in endpoints(chosen=chosen, environ=environ, uid=uid, home=home):
        try:
            with engine_errors(f"{endpoint.origin} ({endpoint.host})"):
                return _connect(endpoint, environ)
        except EngineError as error:
            if endpoint.chosen:
                raise
            # A usual place without a socket is not worth a line; one that exists and does not answer is.
            if Path(endpoint.host.removeprefix("unix://")).exists():
                tried.append(str(error))
    nothing = "no container engine found; install Docker or Podman, start it, or set DOCKER_HOST"
    raise EngineError("\n".join(tried) if tried else f"{nothing} [engine-missing]")


def _connect(endpoint: Endpoint, environ: Mapping[str, str]) -> docker.DockerClient:
    client = docker.DockerClient(**{"timeout": ENGINE_PING_S, **connection_arguments(endpoint, environ)})
    try:
        client.ping()
    except BaseException:
        # Also for Interrupted, which a signal handler raises here.
        client.close()
        raise
    # The SDK reads this attribute with each request. The short limit is for a silent engine only.
    client.api.timeout = ENGINE_ANSWER_S
    return client


def ask_engine(client: docker.DockerClient) -> EngineFacts:
    """Query the engine's properties.

    Raises:
        EngineError: it does not answer.
    """
    with engine_errors("asking the engine"):
        return read_state(client.info(), client.version(), base_url=client.api.base_url)


def read_state(info: Mapping[str, Any], version: Mapping[str, Any], *, base_url: str) -> EngineFacts:
    """Read the properties from the engine's answers."""
    components = " ".join(str(part.get("Name", "")) for part in version.get("Components") or ())
    podman = "podman" in components.lower()
    devices = tuple(str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ())
    return EngineFacts(
        name="podman" if podman else "docker",
        version=str(version.get("Version", "")),
        rootless=_is_rootless(info),
        memory_bytes=int(info.get("MemTotal") or 0),
        local=base_url.startswith(("http+docker://", "http+unix://", "unix://")),
        gpus=EngineGpus(
            cdi=tuple(device for device in devices if device.startswith(f"{CDI_KIND}=")),
            runtime="nvidia" in (info.get("Runtimes") or {}),
            podman=podman,
        ),
        limits_memory=bool(info.get("MemoryLimit", True)),
        limits_pids=bool(info.get("PidsLimit", True)),
    )


def _is_rootless(info: Mapping[str, Any]) -> bool:
    """Whether the engine is rootless: a security option in Docker, a field of its own in Podman until 4.4."""
    return bool(info.get("Rootless")) or any(
        "rootless" in str(one) for one in info.get("SecurityOptions") or ()
    )


def ensure_image(client: docker.DockerClient, image: str, *, policy: str, say: Callable[[str], None]) -> None:
    """Make sure that the engine has the image.

    Args:
        client: the engine.
        image: name of the image, with a tag or digest.
        policy: when to pull: ``missing``, ``always`` or ``never``.
        say: prints lines of progress.

    Raises:
        UsageError: no registry has the image, or it is missing and must not be pulled.
        EngineError: it cannot be pulled.
    """
    if policy != "always":
        with engine_errors(f"looking for image {image}"), contextlib.suppress(ImageNotFound):
            client.images.get(image)
            return
    if policy == "never":
        raise UsageError(
            f"the engine has no image {image}, and --pull is never; build or load it first [image-missing]"
        )
    say(f"pulling {image}")
    with engine_errors(f"pulling {image}"):
        _pull_with_retries(client, image, say)


def _pull_with_retries(client: docker.DockerClient, image: str, say: Callable[[str], None]) -> None:
    for attempt in tenacity.Retrying(
        stop=tenacity.stop_after_attempt(PULL_ATTEMPTS),
        wait=tenacity.wait_exponential_jitter(initial=1, max=20),
        retry=tenacity.retry_if_exception(is_passing),
        before_sleep=lambda state: say(f"pulling {image}: attempt {state.attempt_number} failed; retrying"),
        reraise=True,
    ):
        with attempt:
            pull(client, image, say)


def is_passing(error: BaseException) -> bool:
    """Whether a retry may succeed."""
    known = ENGINE_ADVICE.find(str(error))
    if known is not None and known.slug in FINAL:
        return False
    return isinstance(error, DockerException | requests.RequestException | OSError)


def pull(client: docker.DockerClient, image: str, say: Callable[[str], None]) -> None:
    """Pull once, and print a line for each further tenth of the known layers.

    Raises:
        docker.errors.APIError: as from the SDK, and for errors that the engine reports within the stream.
    """
    name, tag = split_tag(image)
    layers: dict[str, bool] = {}
    told = 0
    for message in client.api.pull(name, tag=tag, stream=True, decode=True):
        # The engine answers 200 before it pulls, so a refusal comes within the stream.
        if "error" in message:
            raise APIError(str(message["error"]))
        if layer := message.get("id"):
            layers[layer] = layers.get(layer, False) or message.get("status") in (
                "Pull complete",
                "Already exists",
            )
        done = 10 * sum(layers.values()) // max(len(layers), 1)
        if done > told:
            told = done
            say(f"pulling {image}: {sum(layers.values())} of {len(layers)} layers")


def split_tag(image: str) -> tuple[str, str]:
    """Split off the tag or digest; ``latest`` if there is none, never all tags of a repository."""
    if "@" in image:
        name, _, digest = image.partition("@")
        return name, digest
    name, colon, tag = image.rpartition(":")
    # In localhost:5000/name the colon belongs to the port of the registry.
    if not colon or "/" in tag:
        return image, "latest"
    return name, tag


# The first matching row counts. The SDK reports a socket without permission as 'Connection aborted' with a
# PermissionError, so engine-denied comes before engine-gone.
ENGINE_ADVICE = AdviceTable(
    Known(
        "nvidia-smi-missing",
        r"nvidia-container-cli: initialization error|load library failed: libnvidia-ml",
        "the NVIDIA toolkit is there, but the driver is not: install the driver, or run with --gpus none",
    ),
    Known(
        "image-name",
        r"invalid reference format",
        "this is not a valid name of an image: use NAME:TAG in lower case, or NAME@sha256:DIGEST",
    ),
    Known(
        "network-missing",
        r"network \S+ not found|no such container",
        "the engine has no such network: `docker network ls` lists those that exist; correct --network",
    ),
    Known(
        "memory-limit-small",
        r"minimum memory limit allowed",
        "the engine refuses so little memory: raise --memory",
    ),
    Known(
        "image-missing",
        r"manifest (for .* )?(not found|unknown)|no such image|name unknown|repository .* not found",
        "there is no such image: check its name and tag (--image), or build it first and use --pull never",
    ),
    Known(
        "image-denied",
        r"pull access denied|unauthorized|denied: |authentication required",
        "the registry does not let this host pull: check the image's name, and `docker login` before the"
        " launch",
    ),
    Known(
        "registry-unreachable",
        r"lookup .* (no such host|on .*: )|dial tcp"
        r"|TLS handshake|registry.*(timeout|EOF)|toomanyrequests|i/o timeout",
        "the registry cannot be reached from the engine: check its network and proxy, or load the image"
        " and use --pull never",
    ),
    Known(
        "engine-denied",
        r"permission denied.*(docker|podman)|PermissionError",
        "this user may not use the engine: add it to the engine's group (`usermod -aG docker USER`) and"
        " log in again, or use a rootless engine",
    ),
    Known(
        "image-entrypoint",
        r"(exec: )?\"?(timeout|disttest)\"?: executable file not found|\b(timeout|disttest)\b.*no such file",
        "the image has no `disttest` (or no coreutils) on its PATH: use the disttest image, or one built"
        " from it",
    ),
    Known(
        "disk-full",
        r"no space left on device",
        "the engine's disk is full: `docker system prune`, or move its data root",
    ),
    Known(
        "mount-refused",
        r"bind source path does not exist|mounts denied|error mounting|invalid mount config|not shared"
        r" from the host",
        "a folder cannot be mounted: it has to exist on the engine's host under the same path; a"
        " launcher that itself runs in a container has to mount its workspace at the host's path",
    ),
    Known(
        "ulimit-refused",
        r"error setting rlimit|ulimit.*operation not permitted|setrlimit `?RLIMIT_",
        "the engine may not raise limits: give its service LimitMEMLOCK=infinity",
    ),
    # Podman's own packages do not always depend on it: https://github.com/podman-container-tools/podman/issues/4159
    Known(
        "engine-init-missing",
        r"container-init binary not found",
        "Podman lacks the init that containers start with: install its package (`catatonit`)",
    ),
    Known(
        "engine-gone",
        r"connection (aborted|refused|reset)|Cannot connect to the Docker daemon|No such file or"
        r" directory.*sock|FileNotFoundError|remote end closed|read timed out|Bad response from Docker engine",
        "the engine does not answer: check that it runs (`systemctl status docker`), and DOCKER_HOST",
    ),
)

MISTAKES = frozenset(
    ("image-name", "image-missing", "image-entrypoint", "network-missing", "memory-limit-small")
)
"""Refusals of the user's request, which no other machine would accept."""


def is_mistake(message: str) -> bool:
    """Whether the engine refused because of the request."""
    advice = ENGINE_ADVICE.find(message)
    return advice is not None and advice.slug in MISTAKES


def explain(message: str) -> str:
    """Put the message on one line, with a line of advice below it if there is any, also for errors of the machine."""
    said = " ".join(message.split())
    advice = ENGINE_ADVICE.find(message) or MACHINE_ADVICE.find(message)
    return f"{said}\n{advice.action} [{advice.slug}]" if advice else said
