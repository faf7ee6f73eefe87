"""Where a container engine may be listening, in the order in which the places are tried."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from docker.context import ContextAPI
from docker.context.config import get_current_context_name
from docker.utils import kwargs_from_env

from disttest.errors import EngineError
from disttest.model import Frozen


class Endpoint(Frozen):
    """A place to try."""

    origin: str
    """Who named it."""
    host: str
    chosen: bool = False
    """Somebody chose it: no other place is tried if it does not answer."""


def endpoints(*, chosen: str, environ: Mapping[str, str], uid: int, home: str) -> tuple[Endpoint, ...]:
    """Places to try; only one where somebody chose it.

    Raises:
        EngineError: a Docker context was chosen that is not there or cannot be read.
    """
    if chosen:
        return (Endpoint(origin="--engine", host=chosen, chosen=True),)
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
    """Arguments of ``DockerClient``, TLS included."""
    if endpoint.origin == "docker context":
        tls = _context(environ).TLSConfig
        return {"base_url": endpoint.host} | ({} if tls is None else {"tls": tls})
    if endpoint.origin == "DOCKER_HOST":
        return dict(kwargs_from_env(environment=dict(environ)))
    return {"base_url": endpoint.host}


def _context(environ: Mapping[str, str]) -> Any:
    """The Docker context in use: that of the variable, else the one that ``docker context use`` chose."""
    name = environ.get("DOCKER_CONTEXT") or get_current_context_name()
    # Not `ContextAPI.kwargs_from_context`, which docker 7.1 lacks, and which answers nothing for a name that is not there.
    try:
        context = ContextAPI.get_context(name)
    except Exception as error:  # the SDK raises a bare one, too
        raise EngineError(
            f"the Docker context {name!r} cannot be read: {error!r}; make it anew, or choose another one"
            " in DOCKER_CONTEXT [context-broken]"
        ) from error
    if context is None:
        raise EngineError(
            f"there is no Docker context {name!r}: `docker context ls` lists those there are; choose one in"
            " DOCKER_CONTEXT or with `docker context use`, or name the engine's address with --engine"
            " [context-missing]"
        )
    return context


def _context_host(environ: Mapping[str, str]) -> str:
    """The current context's address, unless it is the built-in one."""
    host = _context(environ).Host or ""
    return (
        "" if host in ("", "unix:///var/run/docker.sock", "http+unix:///var/run/docker.sock") else str(host)
    )
