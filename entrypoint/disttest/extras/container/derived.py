"""Image with additional requirements of the tests: one more layer for each image and requirements file."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import docker
from docker.errors import BuildError, ImageNotFound

from disttest.errors import UsageError
from disttest.extras.container.engine import engine_errors
from disttest.extras.container.left_containers import PREFIX
from disttest.extras.container.limits import REQUIREMENTS_S

NAME = "disttest-requirements"
SHOWN_LINES = 12
"""Last lines of pip's output to show; a conflict is reported at the end."""
RECIPE = """\
FROM {image}
COPY requirements.txt /tmp/
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
--requirement /tmp/requirements.txt
"""


def with_requirements(
    client: docker.DockerClient, image: str, requirements: Path, say: Callable[[str], None]
) -> str:
    """Return the name of an image that includes the requirements; build it if necessary.

    Args:
        client: the engine, which has the image.
        image: name of the image.
        requirements: requirements file for pip that includes no other file; its hashes are checked if it has any.
        say: prints lines of progress.

    Raises:
        UsageError: the file cannot be read, or pip rejects it.
        EngineError: the engine fails.
    """
    text = _read(requirements)
    with engine_errors(f"looking for image {image}"):
        # The layer is made with pip, which the image has: the same hash checks and constraints. uv would add 60 MB.
        base = str(client.images.get(image).id)
        tag = f"{NAME}:{hashlib.sha256(f'{base} {text}'.encode()).hexdigest()[:16]}"
        try:
            client.images.get(tag)
        except ImageNotFound:
            say(f"installing {requirements} into {image}")
            _build(client, base, text, tag, requirements)
    return tag


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--requirements {path} cannot be read: {error}") from error


def _build(client: docker.DockerClient, base: str, text: str, tag: str, path: Path) -> None:
    files = {"Dockerfile": RECIPE.format(image=base), "requirements.txt": text}
    try:
        client.images.build(
            fileobj=_context(files),
            custom_context=True,
            tag=tag,
            labels={f"{PREFIX}requirements": "1"},
            rm=True,
            forcerm=True,
            timeout=REQUIREMENTS_S,
        )
    except BuildError as error:
        raise UsageError(
            f"--requirements {path} cannot be installed into the image:\n{_end(error.build_log)}"
        ) from error


def _context(files: Mapping[str, str]) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    packed.seek(0)
    return packed


def _end(log: Iterable[Mapping[str, Any]]) -> str:
    said = "".join(str(message.get("stream", "")) for message in log)
    return "\n".join([line for line in said.splitlines() if line.strip()][-SHOWN_LINES:])
