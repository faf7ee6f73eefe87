"""The steps of a release; each can be repeated.

release.py check TAG             compare the tag with each file that names the version; print version= and created=
release.py notes VERSION         print the release's part of CHANGELOG.md
release.py image NAME REVISION   print digest= of an image that was pushed before, empty if there is none
release.py pin TARGET=DIGEST…    name the images by digest: in the action, the Docker action and the workflow for ARC
release.py refer COMMIT TAG      have the reusable workflows use the actions of one commit
release.py push TAG              push the commit as action-TAG, once, and move the tag of the major version forward
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCKER_ACTION = ROOT / "actions" / "docker" / "action.yml"
ARC = ROOT / ".github" / "workflows" / "arc.yml"
LAUNCH_OPTIONS = ROOT / "entrypoint" / "disttest" / "extras" / "container" / "options.py"


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
        ".github/workflows/arc.yml": f"dist-tests:{version}-cuda" in ARC.read_text(),
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
    """The time of the commit: the same for each build of it."""
    return git("log", "-1", "--format=%cI")


def git(*words: str) -> str:
    """Run git in the checkout and return its output."""
    done = subprocess.run(("git", *words), cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def image(name: str, revision: str) -> str:
    """The digest of an image in the registry that was built from this revision; empty if there is none.

    Raises:
        SystemExit: it was built from another revision, or the registry does not answer.
    """
    command = ("docker", "buildx", "imagetools", "inspect", name, "--format", "{{json .}}")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        if "not found" in done.stderr:
            return ""
        sys.exit(f"{name} cannot be looked up: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    if f'"org.opencontainers.image.revision": "{revision}"' not in json.dumps(found):
        sys.exit(f"{name} exists and is not of {revision}: a tag is pushed once, so release a new version")
    return str(found["manifest"]["digest"])


def pin(*images: str) -> None:
    """Name the images by digest.

    Args:
        images: ``TARGET=DIGEST``.

    Raises:
        SystemExit: one is not that.
    """
    digests = {}
    for one in images:
        found = re.fullmatch(r"(cpu|cuda|full)=(sha256:[0-9a-f]{64})", one)
        if found is None:
            sys.exit(f"{one!r} is not TARGET=DIGEST")
        digests[found[1]] = found[2]
    replace(DOCKER_ACTION, r"^(  image: docker://[^@\s]+).*$", rf"\1@{digests['cuda']}")
    replace(ARC, r"^(        default: ghcr\.io/[^@\s]+).*$", rf"\1@{digests['cuda']}")
    replace(LAUNCH_OPTIONS, r"^DIGESTS: .*$", f"DIGESTS: dict[str, str] = {digests!r}".replace("'", '"'))


def refer(commit: str, tag: str) -> None:
    """Have the reusable workflows use the actions of one commit.

    Raises:
        SystemExit: the commit is not a full SHA.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        sys.exit(f"{commit!r} is not the SHA of a commit")
    own = re.compile(r"(uses: org/dist-tests[\w/-]*)@\S+( #.*)?$", re.MULTILINE)
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        path.write_text(own.sub(rf"\1@{commit} # {tag}", path.read_text()))


def replace(path: Path, pattern: str, new: str) -> None:
    """Replace the one line of a file that a pattern matches.

    Raises:
        SystemExit: there is no such line, or more than one.
    """
    text, times = re.subn(pattern, new, path.read_text(), flags=re.MULTILINE)
    if times != 1:
        sys.exit(f"{path} has {times} lines like {pattern}")
    path.write_text(text)


def push(tag: str) -> None:
    """Push the pinned commit: under a tag of its own, and under that of the major version unless that is newer.

    Raises:
        SystemExit: the tag of its own names another commit.
    """
    head, own, major = git("rev-parse", "HEAD"), f"action-{tag}", tag.partition(".")[0]
    known = remote_tag(own)
    if known not in ("", head):
        sys.exit(f"{own} is {known} and not {head}: a tag is pushed once, so release a new version")
    if not known:
        git("push", "--quiet", "origin", f"HEAD:refs/tags/{own}")
    before = remote_tag(major)
    if before and numbers(remote_version(major)) > numbers(version_of(tag)):
        print(f"{major} stays at {remote_version(major)}, which is newer")
        return
    git(
        "push",
        "--quiet",
        f"--force-with-lease=refs/tags/{major}:{before}",
        "origin",
        f"HEAD:refs/tags/{major}",
    )


def remote_tag(name: str) -> str:
    """The commit that a tag of the remote repository names; empty if there is no such tag."""
    return git("ls-remote", "origin", f"refs/tags/{name}").partition("\t")[0]


def remote_version(name: str) -> str:
    """The version of the project at a tag of the remote repository."""
    git("fetch", "--quiet", "--depth=1", "origin", f"refs/tags/{name}")
    return str(tomllib.loads(git("show", "FETCH_HEAD:pyproject.toml"))["project"]["version"])


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, to compare it."""
    return tuple(map(int, version.split(".")))


def main(command: str, *arguments: str) -> None:
    """Run one of the commands; see the head of the file."""
    if command == "check":
        version = version_of(*arguments)
        check_version(version)
        print(f"version={version}\ncreated={created()}")
    elif command == "notes":
        print(notes_of(*arguments))
    elif command == "image":
        print(f"digest={image(*arguments)}")
    elif command == "pin":
        pin(*arguments)
    elif command == "refer":
        refer(*arguments)
    elif command == "push":
        push(*arguments)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
