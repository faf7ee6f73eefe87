"""The parts that each test of one process uses, recorded by a plain session of pytest."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

from disttest.extras.changed.recorder import read_lines

pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="coverage or a debugger has precedence")

RUN = """
import sys, pathlib, pytest
from disttest.extras.changed.recorder import TestRecorder
recorder = TestRecorder(sys.argv[1], pathlib.Path(sys.argv[2]))
sys.exit(pytest.main(["-q", "-p", "no:disttest", "-p", "no:cacheprovider", "."], plugins=[recorder]))
"""


def recorded(folder: Path, files: dict[str, str]) -> dict[str, set[tuple[str, str]]]:
    """Run the tests in files; return the parts that each uses."""
    project, lines = folder / "project", folder / "lines"
    lines.mkdir()
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(textwrap.dedent(text))
    argv = [sys.executable, "-c", RUN, str(project), str(lines)]
    ended = subprocess.run(argv, cwd=project, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    used = defaultdict(set)
    for test, units in read_lines(lines):
        used[test.rpartition("::")[2]].update(units)
    return used


FIXTURES = """
import pytest

def inner_part(): ...
def outer_part(): ...
def other_part(): ...

@pytest.fixture(scope="session")
def inner():
    inner_part()

@pytest.fixture(scope="module")
def outer(request):
    outer_part()
    request.getfixturevalue("inner")

class TestOther:
    @pytest.fixture(scope="class")
    def outer(self):
        other_part()

    def test_other(self, outer): ...

def test_first(request):
    request.getfixturevalue("inner")

def test_second(request):
    request.getfixturevalue("outer")

def test_third(request):
    request.getfixturevalue("outer")

def test_fourth(outer): ...
"""


def test_every_test_uses_what_the_fixtures_that_it_shares_used(tmp_path):
    used = recorded(tmp_path, {"test_a.py": FIXTURES})
    parts = {test: {part for _, part in units if part.endswith("_part")} for test, units in used.items()}
    both = {"inner_part", "outer_part"}
    assert parts == {
        "test_other": {"other_part"},
        "test_first": {"inner_part"},
        "test_second": both,
        "test_third": both,
        "test_fourth": both,
    }


def test_every_test_uses_the_functions_that_are_compiled_into_others(tmp_path):
    files = {
        "lib.py": """
            def deep_part(x): return x
            def part(x): return deep_part(x) * 2
            def outer(x): return part(x) + 1
        """,
        "test_a.py": """
            import pytest
            import torch
            from torch import nn

            import lib

            def module_part(x): return x + 1

            class Net(nn.Module):
                def forward(self, x): return module_part(x)

            net = torch.compile(Net(), backend="eager")

            @pytest.mark.parametrize("number", [1, 2])
            def test_function(number):
                assert torch.compile(lib.outer, backend="eager")(torch.ones(1)) == 3

            @pytest.mark.parametrize("number", [1, 2])
            def test_module(number):
                assert net(torch.ones(1)) == 2

            def test_other(): ...
        """,
    }
    used = recorded(tmp_path, files)
    parts = {test: {part for _, part in units if part.endswith("part")} for test, units in used.items()}
    assert parts == {
        "test_function[1]": {"part", "deep_part"},
        "test_function[2]": {"part", "deep_part"},
        "test_module[1]": {"module_part"},
        "test_module[2]": {"module_part"},
        "test_other": set(),
    }


def test_every_test_uses_the_files_whose_source_it_inspects(tmp_path):
    files = {
        "lib.py": "def f(): ...\n",
        "test_a.py": """
            import inspect
            import lib

            def test_first():
                assert inspect.getsource(lib.f)

            def test_second():
                assert inspect.getsource(lib.f)
        """,
    }
    used = recorded(tmp_path, files)
    assert ("lib.py", "") in used["test_first"] & used["test_second"]


def test_what_a_memo_used_belongs_to_its_module(tmp_path):
    files = {
        "lib.py": """
            import functools
            from pathlib import Path

            kept = {}
            single = None

            class Box:
                table = {}

                def get(self):
                    if 1 not in self.table:
                        self.table[1] = in_class()
                    return self.table[1]

                @functools.cached_property
                def size(self): return in_property()

                @classmethod
                def make(cls):
                    cls.made = in_classmethod()

            box = Box()

            @functools.cache
            def cached(): return in_cache() or Path(__file__).with_name("data.txt").read_text()

            def get(name):
                if name not in kept:
                    kept[name] = in_dict()
                return kept[name]

            later = {}

            def late(number):
                if number not in later:
                    later[number] = number == 1 or in_second_call()
                return later[number]

            def in_second_call(): return 2

            def only():
                global single
                single = single or in_global()

            def attribute():
                box.value = in_attribute()

            def memoized(function):
                results = {}
                def wrapped():
                    if 1 not in results:
                        results[1] = function()
                    return results[1]
                return wrapped

            def in_closure(): ...
            closed = memoized(in_closure)

            def in_cache(): ...
            def in_class(): ...
            def in_property(): ...
            def in_classmethod(): ...
            def in_dict(): return inner()
            def in_global(): ...
            def in_attribute(): ...
            def inner(): return 1
            def plain(): ...
            def pure(): return plain()
        """,
        "data.txt": "1",
        "test_a.py": """
            import lib

            def test_first():
                lib.inner()
                lib.late(1), lib.in_second_call(), lib.late(2)
                lib.get(1), lib.cached(), lib.only(), lib.attribute(), lib.closed()
                lib.box.get(), lib.box.size, lib.Box.make(), lib.pure()

            def test_second():
                lib.get(1), lib.cached(), lib.only()
        """,
    }
    parts = {part or file for file, part in recorded(tmp_path, files)["lib.py"]}
    assert {part for part in parts if part.startswith("in")} == {
        *(
            "in_cache",
            "in_class",
            "in_property",
            "in_classmethod",
            "in_dict",
            "in_global",
            "in_attribute",
            "in_closure",
            "in_second_call",
        ),
        "inner",
    }
    assert "data.txt" in parts
    assert parts.isdisjoint({"plain", "pure", "get"})


def test_a_data_file_of_a_package_is_used(tmp_path):
    files = {
        "pkg/__init__.py": "",
        "pkg/data.json": "1",
        "test_a.py": """
            import pkgutil

            def test_data():
                assert pkgutil.get_data("pkg", "data.json")
        """,
    }
    assert ("pkg/data.json", "") in recorded(tmp_path, files)["test_data"]


def test_every_test_uses_the_modules_that_it_imports_by_a_made_name(tmp_path):
    files = {
        "pkg/__init__.py": "",
        "pkg/model_one.py": "LAYERS = 2\n",
        "test_a.py": """
            import importlib
            import pytest

            @pytest.mark.parametrize("number", [1, 2])
            def test_layers(number):
                assert importlib.import_module(".model_" + "one", "pkg").LAYERS == 2
        """,
    }
    used = recorded(tmp_path, files)
    assert ("pkg/model_one.py", "<module>") in used["test_layers[1]"] & used["test_layers[2]"]


def test_a_script_that_runs_in_another_folder_is_used(tmp_path):
    files = {
        "tools/check.sh": "exit 0\n",
        "test_a.py": """
            import pathlib
            import subprocess

            def test_script():
                folder = pathlib.Path(__file__).with_name("tools")
                subprocess.run(["sh", "check.sh"], cwd=folder, check=True)
        """,
    }
    assert ("tools/check.sh", "") in recorded(tmp_path, files)["test_script"]
