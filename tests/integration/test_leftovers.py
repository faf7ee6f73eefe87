"""Shared memory that a test leaves, with the plugin ``leftovers`` and without it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Lab

from disttest.errors import ExitCode

TESTS = """
    import multiprocessing.resource_tracker, multiprocessing.shared_memory, os
    import pytest

    held = []

    @pytest.mark.world_size(2)
    def test_leaves(world):
        name = f"{os.environ['PYTEST_LEFT']}-{world.size}-{world.rank}"
        segment = multiprocessing.shared_memory.SharedMemory(name, create=True, size=4096)
        multiprocessing.resource_tracker.unregister(segment._name, "shared_memory")
        held.append(segment)  # the maker of a file that is closed at once cannot be proven
"""


@pytest.fixture
def name() -> Iterator[str]:
    """Beginning of the names of files that are removed at the end."""
    chosen = f"left-{uuid.uuid4().hex}"
    yield chosen
    for path in files(chosen):
        path.unlink()


def files(name: str) -> list[Path]:
    return sorted(Path("/dev/shm").glob(f"{name}*"))


@pytest.mark.slow("starts torch in each case")
@pytest.mark.parametrize("words", [(), ("-p", "no:disttest.leftovers")], ids=["with", "without"])
@pytest.mark.parametrize("plain", [False, True], ids=["command", "pytest"])
def test_files_are_removed_and_named_by_the_plugin_only(lab: Lab, name: str, words, plain) -> None:
    lab.write(test_leaves=TESTS)
    run = lab.pytest if plain else lab.run
    ended = run("test_leaves.py", *words, PYTEST_LEFT=name)

    assert ended.exit_code == ExitCode.PASSED, ended.output
    said = [*ended.run.notes, *(note for test in ended.run.tests for note in test.final.notes)]
    named = [note for note in said if "shared memory" in note]
    assert ((0, 2) if words else (2, 0)) == (len(named), len(files(name))), said
    assert not (ended.results / ".shared-memory").exists()
