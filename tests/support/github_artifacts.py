"""The artifacts of one workflow run, by the documented rules of upload-artifact (from v4) and download-artifact."""

from __future__ import annotations

import fnmatch
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from github_runner import StepResult

REFUSED_IN_PATHS = frozenset('":<>|*?\r\n')
REFUSED_IN_NAMES = REFUSED_IN_PATHS | frozenset("\\/")


class Artifacts:
    """All attempts of a run share them: a name is taken for good."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)

    def names(self) -> set[str]:
        return {path.name for path in self._folder.iterdir()}

    def put(self, name: str, source: Path) -> None:
        """As another job of the run would."""
        shutil.copytree(source, self._folder / name)

    def upload(self, workspace: Path, inputs: Mapping[str, str]) -> StepResult:
        """upload-artifact, for one folder or file."""
        assert set(inputs) <= {"name", "path"}, f"not understood: {set(inputs)}"
        name, source = inputs["name"], workspace / inputs["path"]
        if not name or REFUSED_IN_NAMES & set(name):
            return failed(f"The artifact name is not valid: {name!r}")
        files = list(visible(source))
        if not files:
            return StepResult(outcome="success", log=f"No files were found with the provided path: {source}")
        if odd := [file for file in files if REFUSED_IN_PATHS & set(str(file.relative_to(workspace)))]:
            return failed(f"The path for one of the files in artifact is not valid: {odd[0]}")
        if name in self.names():
            return failed(
                f"409 Conflict: an artifact with this name already exists on the workflow run: {name}"
            )
        for file in files:
            there = self._folder / name / (file.relative_to(source) if source.is_dir() else file.name)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, there)
        return StepResult(outcome="success", outputs={"artifact-id": str(len(self.names()))})

    def download(self, workspace: Path, inputs: Mapping[str, str]) -> StepResult:
        """download-artifact: one by its name, or each that fits a pattern into a folder of its own."""
        assert set(inputs) <= {"name", "pattern", "path"}, f"not understood: {set(inputs)}"
        path = workspace / inputs.get("path", ".")
        if name := inputs.get("name"):
            if name not in self.names():
                return failed(f"Artifact not found for name: {name}")
            shutil.copytree(self._folder / name, path, dirs_exist_ok=True)
            return StepResult(outcome="success")
        for name in sorted(self.names()):
            if fnmatch.fnmatchcase(name, inputs["pattern"]):
                shutil.copytree(self._folder / name, path / name, dirs_exist_ok=True)
        return StepResult(outcome="success")


def visible(path: Path) -> Iterator[Path]:
    """A file, or the files below a folder; hidden ones are left out."""
    if path.is_file():
        yield path
    for one in sorted(path.rglob("*")):
        if one.is_file() and not any(part.startswith(".") for part in one.relative_to(path).parts):
            yield one


def failed(message: str) -> StepResult:
    return StepResult(outcome="failure", log=message + "\n", exit_code=1)
