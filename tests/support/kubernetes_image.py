"""The images of the nodes' engines, as thin as they can be: they are imported in a moment, and nothing is built.

The image of the tests has an /etc and the places where something is to be mounted. Its programs, this project's
environment and this checkout are the machine's, at the same paths, read-only: the nodes' runtime mounts them into each
container (`kubernetes/machine/runc`). To Kubernetes it is an image like any other one; the code in it is the checkout's.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from engine import docker_command

ROOT = Path(__file__).parents[2]
IMAGE = "disttest-test/cpu:1"
PAUSE = "disttest-test/pause:1"
ETC = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "alternatives", "ssl", "ca-certificates")
"""What programs look up in /etc."""


def node_files() -> tuple[str, ...]:
    """The folders of the machine that containers of the image have."""
    return tuple(dict.fromkeys(("/usr", sys.base_prefix, sys.prefix, str(ROOT))))


def write_mounts(folder: Path) -> None:
    """Tell the nodes' runtime, which lies in the same folder."""
    (folder / "mounts.json").write_text(json.dumps(node_files()))


def import_images(docker_host: str, pause: Path) -> None:
    """Give both images to an engine."""
    scripts = sysconfig.get_path("scripts")
    environment = f"PATH={scripts}:/usr/local/bin:/usr/bin:/bin NODE_FILES=1 DISTTEST_IMAGE=1 HOME=/tmp PYTHONUNBUFFERED=1"
    _import(docker_host, IMAGE, _thin_image(), f"ENV {environment}", "WORKDIR /tmp")
    _import(docker_host, PAUSE, _pause_image(pause), 'ENTRYPOINT ["/pause"]')


def _import(docker_host: str, tag: str, archive: bytes, *changes: str) -> None:
    words = [word for change in changes for word in ("--change", change)]
    subprocess.run(
        [docker_command(), "--host", docker_host, "import", *words, "-", tag],
        input=archive,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )


def _thin_image() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in ("bin", "lib", "lib64", "sbin"):
            if Path("/", name).exists():
                archive.add(f"/{name}", arcname=name, recursive=False)  # links into /usr, as Debian has them
        for name in ETC:
            if Path("/etc", name).exists():
                archive.add(f"/etc/{name}", arcname=f"etc/{name}")
        for name in ("tmp", "var/tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(folder)
    return out.getvalue()


def _pause_image(pause: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(os.fspath(pause), arcname="pause")
    return out.getvalue()
