"""What a release needs and no credentials: `check TAG`, `notes VERSION`, `pin DIGEST`.

`check` holds the tag against every place that names the version, and prints `version=…` and `created=…` for GITHUB_OUTPUT;
`notes` prints the release's part of CHANGELOG.md; `pin` makes actions/docker/action.yml name its image by digest.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCKER_ACTION = ROOT / "actions" / "docker" / "action.yml"


def version_of(tag: str) -> str:
    """The version that a tag names.

    Raises:
        SystemExit: it is no tag of a release.
    """
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        sys.exit(f"{tag} is no release: tags of releases are vX.Y.Z")
    return tag[1:]


def check_version(version: str) -> None:
    """Hold it against the package, the action and the changes.

    Raises:
        SystemExit: one names another; the message says which.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    module = (ROOT / "entrypoint" / "disttest" / "__init__.py").read_text()
    found = {
        "pyproject.toml": project == version,
        "entrypoint/disttest/__init__.py": f'__version__ = "{version}"\n' in module,
        "actions/docker/action.yml": f"dist-tests:{version}-cuda" in DOCKER_ACTION.read_text(),
        "CHANGELOG.md (with a date)": bool(notes_of(version)),
    }
    if wrong := [place for place, holds in found.items() if not holds]:
        sys.exit(f"{version} is not what these name: {', '.join(wrong)}")


def notes_of(version: str) -> str:
    """Its part of CHANGELOG.md; empty where there is none with a date."""
    changes = (ROOT / "CHANGELOG.md").read_text()
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d{{2}}-\d{{2}}\)\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changes, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def created() -> str:
    """When the commit was made: the same for everybody who builds it."""
    told = subprocess.run(
        ["git", "log", "-1", "--format=%cI"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return told.stdout.strip()


def pin(digest: str) -> None:
    """Name the image of the Docker action by digest.

    Raises:
        SystemExit: it is none.
    """
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        sys.exit(f"{digest!r} is no digest")
    text = DOCKER_ACTION.read_text()
    DOCKER_ACTION.write_text(
        re.sub(r"^(  image: docker://[^@\s]+).*$", rf"\1@{digest}", text, flags=re.MULTILINE)
    )


def main(command: str, argument: str) -> None:
    """Run one of the commands; see the head of the file."""
    if command == "check":
        version = version_of(argument)
        check_version(version)
        print(f"version={version}\ncreated={created()}")
    elif command == "notes":
        print(notes_of(argument))
    elif command == "pin":
        pin(argument)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:3])
