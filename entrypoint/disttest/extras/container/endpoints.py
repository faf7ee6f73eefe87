"""Addresses at which a container engine may listen, in the order of attempts."""

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
        "" if host in ("", "unix:///var/run/docker.sock", "http+unix:///var/run/docker.sock") else str(host)
    )
