"""Fingerprint that has to be equal on the client and all nodes: versions, and the tests with their sources."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import disttest
from disttest.extras.cluster.protocol.wire import NodeReady, Versions
from disttest.model import TestCase
from disttest.plugin_manager import left_out_by, plugin_manager, plugins_differ
from disttest.runtime.messages.protocol import clean_text


def versions_here(words: Sequence[str] = ()) -> Versions:
    """Return the versions of this installation, without importing anything.

    Args:
        words: command line of the process that runs the tests, if it is not this one; it may leave plugins out.
    """
    try:
        # Without the import of torch, which takes more than a second.
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    return Versions(
        disttest=disttest.__version__,
        python=platform.python_version(),
        torch=torch,
        plugins=tuple(
            each for each in plugin_manager().identity if each.partition(" ")[0] not in left_out_by(words)
        ),
    )


def digest_tests(tests: Iterable[TestCase], root: Path) -> str:
    """Return a digest of the tests: ids, worlds and files, the Python files next to these, and conftests above.

    Names count with their secrets hidden: the client has its tests, and a lease its results, from a masked journal.
    """
    digest = hashlib.sha256()
    files: set[Path] = set()
    root = _real(root)
    # Sorted: the client has the order of its division, a node that of its collection.
    for test in sorted(tests, key=lambda test: clean_text(test.nodeid)):
        digest.update(f"{clean_text(test.nodeid)}\0{test.world}\n".encode())
        files.update(_sources(root / clean_text(test.file), root))
    for path in sorted(files):
        # Relative, since the checkout of a node may be in another folder.
        digest.update(path.relative_to(root).as_posix().encode("utf-8", "backslashreplace"))
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _real(root: Path) -> Path:
    """Return the root of a run in this folder, whose name a journal may have masked."""
    # Masked first, also where the real one is known: all nodes must have the same sources.
    masked, here = clean_text(str(root)), Path.cwd()
    return next((each for each in (here, *here.parents) if clean_text(str(each)) == masked), Path(masked))


def _sources(file: Path, root: Path) -> Iterable[Path]:
    if not file.is_relative_to(root):
        return
    yield from (path for path in file.parent.glob("*.py") if path.is_file())
    for folder in file.parents:
        if not folder.is_relative_to(root):
            break
        if (folder / "conftest.py").is_file():
            yield folder / "conftest.py"


def disagreement(client: Versions, digest: str, nodes: Mapping[int, NodeReady]) -> str:
    """Explain why these nodes must not run a world together, in one line that names both sides; empty if they may.

    The client's torch may be another build, since a submitting machine may have no GPU; the nodes need equal ones.
    """
    said = [nodes[node] for node in sorted(nodes)]
    for ready in said:
        if ready.versions.disttest != client.disttest:
            return (
                f"disttest {ready.versions.disttest} on node {ready.host}, {client.disttest} on the client: "
                "install the same version on both"
            )
    for ready in said:
        if words := plugins_differ(
            client.plugins, ready.versions.plugins, f"node {ready.host}", "the client"
        ):
            return words
    first = said[0]
    for name in ("torch", "python"):
        for ready in said[1:]:
            mine, theirs = getattr(first.versions, name), getattr(ready.versions, name)
            if mine != theirs:
                return (
                    f"{name} {mine or 'missing'} on node {first.host}, {theirs or 'missing'} on node {ready.host}: "
                    "ranks of one world need the same version on all nodes"
                )
    for ready in said:
        if ready.digest != digest:
            return (
                f"the tests on node {ready.host} are not those on the client (digest {ready.digest} there, {digest} "
                "here): check out the same commit on both"
            )
    return _other_parameters(said)


def _other_parameters(said: Sequence[NodeReady]) -> str:
    """Report ids under which two nodes have different tests: parameters from a set, or from the machine."""
    first = said[0]
    for ready in said[1:]:
        for nodeid, values in ready.parameters.items():
            there = first.parameters.get(nodeid, values)
            if values != there:
                return (
                    f"{nodeid} is not the same test on all nodes: {there} on node {first.host}, {values} on node "
                    f"{ready.host}. Derive its parameters from data that is equal on all nodes, in a fixed order"
                )
    return ""
