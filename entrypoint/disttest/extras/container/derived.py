"""Derived images: a layer with requirements of the tests, and a layer with the user's own project.

Each is built once for an image and the content of the layer. Its name in the engine is the digest of both.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import IO, Any

import docker
from docker.errors import BuildError, DockerException, ImageNotFound

from disttest.errors import UsageError
from disttest.extras.container.engine import engine_errors
from disttest.extras.container.left_containers import PREFIX
from disttest.extras.container.limits import REQUIREMENTS_S
from disttest.extras.container.user_project import Project, add_files, files_of
from disttest.model import Frozen

SHOWN_LINES = 12
"""Last lines of pip's output to show; a conflict is reported at the end."""
SOURCE = "/tmp/disttest-project"  # noqa: S108 - inside the image
# The build runs as root in a separate layer, where pip's warning about root is noise.
# With pip, which the image has: the same hash checks and constraints. uv would add 60 MB.
_PIP = "python3 -m pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore"
_REQUIREMENTS = f"""\
FROM {{image}}
COPY requirements.txt /tmp/
RUN {_PIP} --requirement /tmp/requirements.txt
"""
# The build has neither git nor the history of the checkout: setuptools-scm and hatch-vcs get a version instead.
_PROJECT = f"""\
FROM {{image}}
COPY installed_first.py /tmp/
COPY project {SOURCE}
RUN cd {SOURCE} && SETUPTOOLS_SCM_PRETEND_VERSION=0+disttest {_PIP}{{isolation}} '{{target}}' \
&& python3 /tmp/installed_first.py {SOURCE} && rm -rf {SOURCE}
"""
_NO_COMPILER = ("gcc", "g++", "c++", "No CMAKE_CXX_COMPILER", "Unknown compiler", "CMAKE_C_COMPILER")

Say = Callable[[str], None]


class Layer(Frozen):
    """A layer that is put onto an image."""

    name: str
    """Of the images that have such a layer."""
    recipe: str
    """Its Dockerfile, without the base."""
    asked: str
    """The option with its value, for messages."""
    labels: Mapping[str, str]


def with_requirements(client: docker.DockerClient, image: str, requirements: Path, say: Say) -> str:
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
    try:
        text = requirements.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--requirements {requirements} cannot be read: {error}") from error
    return _with_text(client, image, text, f"--requirements {requirements}", str(requirements), say)


def with_project(client: docker.DockerClient, image: str, project: Project, say: Say) -> str:
    """Return the name of an image in which the project is installed; build it if necessary.

    The requirements of the project are a layer below, which changes less often.

    Args:
        client: the engine, which has the image.
        image: name of the image.
        project: the user's project.
        say: prints lines of progress.

    Raises:
        UsageError: pip rejects it, or a file of it cannot be read.
        EngineError: the engine fails.
    """
    asked = f"--project {project.folder}"
    if project.first:
        image = _with_text(client, image, project.first, asked, "what the project requires", say)
    place = hashlib.sha256(str(project.folder).encode()).hexdigest()[:16]
    isolation = " --no-build-isolation" if project.needs_torch else ""
    layer = Layer(
        name="disttest-project",
        recipe=_PROJECT.replace("{isolation}", isolation).replace("{target}", project.target),
        asked=asked,
        labels={f"{PREFIX}project": place},
    )
    # The file travels with the build, so that an edit of it gives the layer another digest.
    script = (resources.files(__package__) / "installed_first.py").read_bytes()
    with tempfile.TemporaryFile() as context:
        try:
            with tarfile.open(fileobj=context, mode="w") as archive:
                _add(archive, "installed_first.py", script)
                add_files(archive, project.folder, files_of(project.folder), "project")
        except OSError as error:
            raise UsageError(f"{asked}: {error}") from error
        tag = _with_layer(client, image, layer, context, "the project", say)
    _remove_others(client, tag, f"{PREFIX}project={place}")
    return tag


def _with_text(client: docker.DockerClient, image: str, text: str, asked: str, what: str, say: Say) -> str:
    layer = Layer(
        name="disttest-requirements",
        recipe=_REQUIREMENTS,
        asked=asked,
        labels={f"{PREFIX}requirements": "1"},
    )
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        _add(archive, "requirements.txt", text.encode())
    return _with_layer(client, image, layer, context, what, say)


def _with_layer(
    client: docker.DockerClient, image: str, layer: Layer, context: IO[bytes], what: str, say: Say
) -> str:
    with engine_errors(f"looking for image {image}"):
        # By id: a pull may move the tag, and the layer must then be built on the new image.
        base = str(client.images.get(image).id)
    tag = f"{layer.name}:{_digest(base, layer.recipe, context)}"
    with engine_errors(f"looking for image {tag}"):
        try:
            client.images.get(tag)
        except ImageNotFound:
            say(f"installing {what} into {image}")
            context.seek(0)
            # The Dockerfile comes after the digest, in which recipe and base are included already.
            with tarfile.open(fileobj=context, mode="a") as archive:
                _add(archive, "Dockerfile", layer.recipe.replace("{image}", base).encode())
            context.seek(0)
            _build(client, layer, context, tag)
    return tag


def _digest(base: str, recipe: str, context: IO[bytes]) -> str:
    digest = hashlib.sha256(f"{base} {recipe}".encode())
    context.seek(0)
    while block := context.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()[:16]


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    # Time and owner stay zero, so that equal content gives an equal digest.
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _build(client: docker.DockerClient, layer: Layer, context: IO[bytes], tag: str) -> None:
    try:
        client.images.build(
            fileobj=context,
            custom_context=True,
            tag=tag,
            labels=dict(layer.labels),
            rm=True,
            # `rm` alone keeps the intermediate container of a build that failed.
            forcerm=True,
            timeout=REQUIREMENTS_S,
        )
    except BuildError as error:
        end = _end(error.build_log)
        compiler = "\nit needs a compiler: choose --target full, or an image of your own that has one"
        hint = compiler if any(word in end for word in _NO_COMPILER) else ""
        raise UsageError(f"{layer.asked} cannot be installed into the image:\n{end}{hint}") from error


def _end(log: Iterable[Mapping[str, Any]]) -> str:
    said = "".join(str(message.get("stream", "")) for message in log)
    return "\n".join([line for line in said.splitlines() if line.strip()][-SHOWN_LINES:])


def _remove_others(client: docker.DockerClient, tag: str, label: str) -> None:
    """Remove the images of earlier states of a project; one that a container uses stays."""
    with contextlib.suppress(DockerException, OSError):
        # A container may still use an old image, which does not concern this launch.
        for image in client.images.list(filters={"label": label}):
            if tag not in image.tags:
                with contextlib.suppress(DockerException):
                    client.images.remove(image.id)
