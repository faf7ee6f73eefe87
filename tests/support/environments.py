"""Python environments of a test's own, made in a second: what the project has installed is seen, not installed again."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from disttest.extras.emulated_gpus.build import default_cache

SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
OURS = ("disttest", "dist_tests", "_disttest", "_dist_tests")
"""How what the project itself has installed begins."""


def uv(*arguments: str | Path) -> None:
    """Run it, which is among the project's own tools."""
    program = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    assert program, "uv is missing"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def make_environment(folder: Path, seen: Path = SITE_PACKAGES) -> Path:
    """Make an environment that sees the packages of another folder; returns its interpreter."""
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    line = f"import site; site.addsitedir({str(seen)!r})\n"
    (folder / "lib" / version / "site-packages" / "_seen.pth").write_text(line)
    return folder / "bin" / "python"


def packages_but_ours(folder: Path) -> Path:
    """A folder that has what is installed here, disttest itself left out."""
    folder.mkdir()
    for path in SITE_PACKAGES.iterdir():
        if not path.name.startswith(OURS):
            (folder / path.name).symlink_to(path)
    return folder


def environment_with(lock: Path, names: Sequence[str]) -> Path:
    """An environment that has the project's packages and these of a lock file too; kept between runs.

    In the project's own one a plugin would show in every other test.
    """
    text = lock.read_text()
    return kept_environment("".join(_entry(text, name) for name in names), "--no-deps", "--require-hashes")


def kept_environment(requirements: str, *options: str) -> Path:
    """The interpreter of an environment that has the project's packages, and in their place what is required here.

    Args:
        requirements: lines as pip reads them.
        options: of the installation.
    """
    key = hashlib.sha256(f"{SITE_PACKAGES}\n{sys.version}\n{options}\n{requirements}".encode()).hexdigest()[
        :16
    ]
    folder = default_cache(os.environ) / f"environment-{key}"
    if not folder.exists():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        fresh.parent.mkdir(parents=True, exist_ok=True)
        python, listed = make_environment(fresh), fresh / "requirements.txt"
        listed.write_text(requirements)
        uv("pip", "install", "--quiet", *options, "--python", python, "--requirement", listed)
        fresh.rename(folder)
    return folder / "bin" / "python"


def _entry(lock: str, name: str) -> str:
    """What a lock file says of one package: its version and hashes."""
    found = re.search(rf"^{re.escape(name)}==.*\n(?:    --hash.*\n)+", lock, re.MULTILINE)
    assert found, f"{name} is not in the lock file: run `make lock`"
    return found.group()
