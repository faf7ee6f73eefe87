"""Labs with a folder of their own for resident parents, which are gone when the test is over."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from lab import Lab

from disttest.extras.resident.endpoint import ParentEndpoint, endpoints


def wait_until(holds: Callable[[], bool], limit_s: float = 240) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


class ResidentLab(Lab):
    """A lab whose runs find their parent in a folder of its own."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        super().__init__(folder)
        self.runtime = runtime

    @property
    def environ(self) -> dict[str, str]:
        clean = {name: value for name, value in super().environ.items() if name != "CI"}
        return clean | {"XDG_RUNTIME_DIR": str(self.runtime)}

    @property
    def endpoints(self) -> list[ParentEndpoint]:
        return endpoints(self.environ)

    @property
    def parents(self) -> list[int]:
        """Pids of the parents that run."""
        return [process.pid for endpoint in self.endpoints if (process := endpoint.parent()) is not None]

    @property
    def parent(self) -> psutil.Process:
        (pid,) = self.parents
        return psutil.Process(pid)


@pytest.fixture
def resident_lab(lab: Lab) -> Iterator[ResidentLab]:
    with tempfile.TemporaryDirectory(prefix="rt") as runtime:
        made = ResidentLab(lab.folder, Path(runtime))
        yield made
        made.run("resident", "stop")
        assert list(Path(runtime).iterdir()) == []
