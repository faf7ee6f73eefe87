"""A test file of torch's kind, started in each way that its authors have, with the plugin merely installed.

Who does not ask gets torch's own harness; who asks, by one line, gets forked ranks. The ways are started side by side,
each in a folder of its own: most of what one takes is imports.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from lab import Lab

from tests.compat.stand_ins import DRIVER, FAILS, MAIN_MODULE, THREADS, TORCH_FILE


class Way(NamedTuple):
    """A way of starting."""

    words: tuple[str, ...]
    """Of the interpreter."""
    environ: dict[str, str] = {}
    in_package: bool = False
    """The file lies in a package, whose folder only ``python FILE`` has on its path."""
    project: str = ""
    """What the project's file says."""
    decorated: str = ""
    """What stands above the class."""


class Started(NamedTuple):
    """What a way of starting came to."""

    folder: Path
    exit_code: int
    output: str

    @property
    def ranks(self) -> list[str]:
        """How each rank was started."""
        return (self.folder / "trace").read_text().split()

    @property
    def kept_logs(self) -> list[Path]:
        """What lies where logs are kept that nobody has given a place."""
        return list((self.folder / "tmp").glob("disttest-*"))


IN_PATH = {"PYTHONPATH": "."}  # importlib needs it, whoever imports
UNTOUCHED = {
    " ".join(words): Way(words, IN_PATH)
    for words in (
        ("test_entry.py",),
        ("test_entry.py", "TestEntry.test_start"),
        ("driver.py",),
        ("-m", "pytest", "test_entry.py"),
        ("-m", "pytest", "--import-mode=append", "test_entry.py"),
        ("-m", "pytest", "--import-mode=importlib", "test_entry.py"),
    )
}
FILE = "suite/test_entry.py"
PYTEST = ("-m", "pytest", FILE)
ASKS = {"DISTTEST_HOST": "true"}
HOSTED = "import pytest\n\n@pytest.mark.hosted\n"
ASKED = {
    "flag": Way(("-m", "pytest", "--disttest-host", FILE), in_package=True),
    "flag, importlib": Way((*PYTEST, "--import-mode=importlib", "--disttest-host=true"), in_package=True),
    "variable, append": Way((*PYTEST, "--import-mode=append"), ASKS, in_package=True),
    "command": Way(("-m", "disttest", "run", FILE), in_package=True),
    "variable, python FILE --use-pytest": Way((FILE, "--use-pytest"), ASKS, in_package=True),
    "project": Way(PYTEST, in_package=True, project="[tool.disttest]\nhost = true\n"),
    "mark": Way(("-m", "pytest", "--strict-markers", "test_entry.py"), decorated=HOSTED),
}
TAKEN_BACK = ASKED["project"]._replace(
    words=(*PYTEST, "--disttest-host", "false"), environ={"PYTHONPATH": "suite"}
)
TORCHS = {**UNTOUCHED, "project, taken back": TAKEN_BACK}
COMPUTES = {
    f"{threads or 'default'}, {'without' if more else 'with'}": Way(
        ("-m", "pytest", "-s", "-q", "test_threads.py", *more),
        {"OMP_NUM_THREADS": threads} if threads else {},
    )
    for threads in ("", "3")
    for more in ((), ("-p", "no:disttest"))
}
LOGS = {"fails": Way(("-m", "pytest", "--basetemp=base", "test_fails.py"))}


def start(lab: Lab, name: str, way: Way) -> Started:
    folder = lab.folder / re.sub(r"\W+", "-", name)
    package = folder / "suite" if way.in_package else folder
    for made in (package, folder / "tmp"):
        made.mkdir(parents=True)
    Lab(folder).write(conftest=MAIN_MODULE, driver=DRIVER, test_threads=THREADS, test_fails=FAILS)
    Lab(package).write(test_entry=TORCH_FILE, beside="VALUE = 1", late="LATER = 2")
    entry = package / "test_entry.py"
    entry.write_text(entry.read_text().replace("class TestEntry", f"{way.decorated}class TestEntry"))
    (folder / "trace").touch()
    if way.in_package:
        (package / "__init__.py").touch()
    if way.project:
        (folder / "pyproject.toml").write_text(way.project)
    here = {name: text for name, text in lab.environ.items() if name != "CI"}  # there torch needs xmlrunner
    paths = [way.environ.get("PYTHONPATH"), here["PYTHONPATH"]]
    own = {"TRACE": str(folder / "trace"), "TMPDIR": str(folder / "tmp")}
    ended = subprocess.run(
        [sys.executable, *way.words],
        cwd=folder,
        env=here | own | way.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Started(folder, ended.returncode, ended.stdout + ended.stderr)


@pytest.fixture(scope="module")
def started(module_lab):
    assert "disttest" in {entry.name for entry in metadata.entry_points(group="pytest11")}
    ways = {**TORCHS, **ASKED, **COMPUTES, **LOGS}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        ended = pool.map(lambda name: start(module_lab, name, ways[name]), ways)
        return dict(zip(ways, ended, strict=True))


@pytest.mark.parametrize("way", TORCHS)
def test_who_does_not_ask_or_takes_it_back_gets_torchs_own_harness(started, way):
    ended = started[way]

    assert (0, ["spawned"]) == (ended.exit_code, ended.ranks), ended.output


@pytest.mark.parametrize("way", ASKED)
def test_who_asks_gets_forked_ranks_and_the_path_that_python_file_has(started, way):
    ended = started[way]

    assert (0, ["forked"]) == (ended.exit_code, ended.ranks), ended.output
    assert [] == ended.kept_logs


@pytest.mark.parametrize("asked", ["default", "3"])
def test_everything_computes_as_if_the_plugin_were_not_installed(started, asked):
    """While files are imported, and in tests without a world."""
    seen = [
        [line for line in started[f"{asked}, {plugin}"].output.splitlines() if "THREADS" in line]
        for plugin in ("with", "without")
    ]

    assert 2 == len(seen[0]), started[f"{asked}, with"].output
    assert seen[0] == seen[1]


def test_logs_of_a_failure_outlive_the_temporary_folders_of_pytest(started):
    ended = started["fails"]
    shutil.rmtree(ended.folder / "base")
    (kept,) = ended.kept_logs
    (log,) = kept.rglob("rank0.log")

    assert 1 == ended.exit_code
    assert str(log.relative_to(ended.folder)) in ended.output
    assert "the last words" in log.read_text()
