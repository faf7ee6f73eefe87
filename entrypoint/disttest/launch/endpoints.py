"""Where a container engine may be listening, in the order in which the places are tried."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from docker.context import ContextAPI
from docker.errors import DockerException
from docker.utils import kwargs_from_env

from disttest.model import Frozen


class Endpoint(Frozen):
    """A place to try."""

    origin: str
    """Who named it."""
    host: str
    chosen: bool = False
    """Somebody chose it: no other place is tried if it does not answer."""


def endpoints(*, chosen: str, environ: Mapping[str, str], uid: int, home: str) -> tuple[Endpoint, ...]:
    """Places to try; only one where somebody chose it."""
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
        return dict(ContextAPI.kwargs_from_context(environment=environ))
    if endpoint.origin == "DOCKER_HOST":
        return dict(kwargs_from_env(environment=dict(environ)))
    return {"base_url": endpoint.host}


def _context_host(environ: Mapping[str, str]) -> str:
    """The current context's address, unless it is the built-in one."""
    try:
        host = ContextAPI.kwargs_from_context(environment=environ).get("base_url", "")
    except (DockerException, OSError, ValueError, KeyError):
        return ""
    return (
        "" if host in ("", "unix:///var/run/docker.sock", "http+unix:///var/run/docker.sock") else str(host)
    )
