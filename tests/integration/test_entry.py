"""A test file of torch's kind, started in each way that its authors have, with the plugin merely installed.

Who does not ask gets torch's own harness; who asks, by one line, gets forked ranks.
"""

import subprocess
import sys
from importlib import metadata

import pytest
from lab import Lab

TORCH_FILE = """
    import os
    from multiprocessing import parent_process

    from beside import VALUE
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.common_utils import run_tests

    class TestEntry(MultiProcessTestCase):
        world_size = 1

        def setUp(self):
            if "test_other" in self.id():
                self.skipTest("it takes seconds to start its rank")
            super().setUp()
            self._spawn_processes()

        def test_start(self):
            from late import LATER

            assert (VALUE, LATER) == (1, 2)
            with open(os.environ["TRACE"], "a") as trace:
                print("spawned" if parent_process() else "forked", file=trace)

        def test_other(self):
            pass

    if __name__ == "__main__":
        run_tests()
"""
# What the conftest of torch's repository does for ``python FILE --use-pytest``, as far as it matters here.
MAIN_MODULE = """
    import sys
    import pytest

    def pytest_addoption(parser):
        parser.addoption("--use-main-module", action="store_true")

    def pytest_pycollect_makemodule(module_path, parent):
        if parent.config.getoption("--use-main-module"):
            return MainModule.from_parent(parent, path=module_path)

    class MainModule(pytest.Module):
        def _getobj(self):
            return sys.modules["__main__"]
"""
DRIVER = """
    import subprocess
    import sys

    words = ["test_entry.py", "-vv", "-rfEX", "-p", "no:xdist", "--use-pytest", "-x", "-k", "test_start"]
    sys.exit(subprocess.run([sys.executable, "-bb", *words]).returncode)
"""


class Started:
    """What a way of starting came to."""

    def __init__(self, lab: Lab, *words: str, **environ: str) -> None:
        trace = lab.folder / "trace"
        trace.write_text("")
        here = {
            name: text for name, text in lab.environ.items() if name != "CI"
        }  # there torch needs xmlrunner
        ended = subprocess.run(
            [sys.executable, *words],
            cwd=lab.folder,
            env=here | {"TRACE": str(trace)} | environ,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        self.output = ended.stdout + ended.stderr
        self.exit_code = ended.returncode
        self.ranks = trace.read_text().split()


@pytest.fixture
def started(lab):
    assert "disttest" in {entry.name for entry in metadata.entry_points(group="pytest11")}
    lab.write(
        test_entry=TORCH_FILE, conftest=MAIN_MODULE, driver=DRIVER, beside="VALUE = 1", late="LATER = 2"
    )
    return lambda *words, **environ: Started(lab, *words, **environ)


@pytest.mark.parametrize(
    "words",
    [
        ("test_entry.py",),
        ("test_entry.py", "TestEntry.test_start"),
        ("test_entry.py", "--use-pytest"),
        ("driver.py",),
        ("-m", "pytest", "test_entry.py"),
        ("-m", "pytest", "--import-mode=append", "test_entry.py"),
        ("-m", "pytest", "--import-mode=importlib", "test_entry.py"),
    ],
    ids=" ".join,
)
def test_who_does_not_ask_gets_torchs_own_harness(lab, started, words):
    ended = started(
        *words, PYTHONPATH=f".:{lab.environ['PYTHONPATH']}"
    )  # importlib needs it, whoever imports

    assert (0, ["spawned"]) == (ended.exit_code, ended.ranks), ended.output


ASKED = {
    "flag": (("-m", "pytest", "--disttest-host", "suite/test_entry.py"), {}),
    "flag, importlib": (("-m", "pytest", "suite/test_entry.py", "--import-mode=importlib", "--disttest-host=true"), {}),
    "variable, append": (("-m", "pytest", "--import-mode=append", "suite/test_entry.py"), {"DISTTEST_HOST": "true"}),
    "command": (("-m", "disttest", "run", "suite/test_entry.py"), {}),
    "variable, python FILE --use-pytest": (("suite/test_entry.py", "--use-pytest"), {"DISTTEST_HOST": "true"}),
}  # fmt: skip


@pytest.fixture
def package(lab, started):
    """The file in a package, whose folder only ``python FILE`` has on its path."""
    (lab.folder / "suite").mkdir()
    for name in ("test_entry", "beside", "late"):
        (lab.folder / f"{name}.py").rename(lab.folder / "suite" / f"{name}.py")
    (lab.folder / "suite" / "__init__.py").touch()
    return lab


@pytest.mark.parametrize("way", ASKED)
def test_who_asks_gets_forked_ranks_and_the_path_that_python_file_has(started, package, way):
    words, environ = ASKED[way]
    ended = started(*words, **environ)

    assert (0, ["forked"]) == (ended.exit_code, ended.ranks), ended.output


def test_a_line_of_the_project_asks_and_a_flag_takes_it_back(started, package):
    (package.folder / "pyproject.toml").write_text("[tool.disttest]\nhost = true\n")
    words = ("-m", "pytest", "suite/test_entry.py", "-k", "test_start")
    hosted, path = started(*words), f"suite:{package.environ['PYTHONPATH']}"
    taken_back = started(*words, "--disttest-host", "false", PYTHONPATH=path)

    assert (0, ["forked"]) == (hosted.exit_code, hosted.ranks), hosted.output
    assert (0, ["spawned"]) == (taken_back.exit_code, taken_back.ranks), taken_back.output


def test_a_mark_asks_for_its_class(lab, started):
    source = (lab.folder / "test_entry.py").read_text()
    marked = source.replace("class TestEntry", "import pytest\n\n@pytest.mark.hosted\nclass TestEntry")
    (lab.folder / "test_entry.py").write_text(marked)
    ended = started("-m", "pytest", "--strict-markers", "test_entry.py")

    assert (0, ["forked"]) == (ended.exit_code, ended.ranks), ended.output


THREADS = """
    import os
    import threadpoolctl
    import torch

    def test_threads():
        pools = {(pool["user_api"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()}
        ours = {name: text for name, text in os.environ.items() if name.endswith(("_NUM_THREADS", "_CHECK"))}
        print("SEEN", torch.get_num_threads(), sorted(pools), ours)
"""


@pytest.mark.parametrize("asked", [{}, {"OMP_NUM_THREADS": "3"}], ids=["default", "OMP_NUM_THREADS"])
def test_ordinary_tests_compute_as_if_the_plugin_were_not_installed(lab, started, asked):
    lab.write(test_threads=THREADS)
    words = ("-m", "pytest", "-s", "-q", "test_threads.py")
    seen = [
        [line for line in started(*words, *more, **asked).output.splitlines() if "SEEN" in line]
        for more in ((), ("-p", "no:disttest"))
    ]

    assert len(seen[0]) == 1
    assert seen[0] == seen[1]
