"""Parts of a project: their digests, the functions in them, and the modules that files import."""

from __future__ import annotations

import textwrap

import pytest

from disttest.extras.changed.sources import (
    ALL_PYTHON,
    FOLDER,
    LINK,
    LOST,
    MODULE,
    UNKNOWN,
    WHOLE,
    Sources,
    parse,
)

SOURCE = """
    import functools
    LIMIT = 3

    def plain(x, y=1):
        return x

    class Shape:
        sides = 4

        def area(self):
            def inner():
                return 1
            return inner()

        @property
        def size(self):
            return 1

        @size.setter
        def size(self, value):
            pass

    @functools.lru_cache(maxsize=None)
    def cached():
        return 1

    def counts():
        global LIMIT
        LIMIT += 1

    def pytest_addoption(parser):
        pass
"""


def changed(old: str, new: str) -> set[str]:
    """The parts that an edit changes."""
    assert old in SOURCE
    before = parse(textwrap.dedent(SOURCE).encode()).units
    after = parse(textwrap.dedent(SOURCE.replace(old, new, 1)).encode()).units
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("return x", "return y", {"plain"}),
        ("return x", "return x  # a comment", set()),
        ("return x", "\n\n        return x", set()),
        ("y=1", "y=2", {MODULE}),
        ("def plain(x", "@decorated\n    def plain(x", {MODULE}),
        ("return inner()", "return inner() + 1", {"Shape.area"}),
        ("    return 1\n            return inner", "    return 2\n            return inner", {"Shape.area"}),
        ("value):\n            pass", "value):\n            return", {"Shape.size"}),
        ("sides = 4", "sides = 5", {MODULE}),
        ("def area", "def surface", {MODULE, "Shape.area", "Shape.surface"}),
        ("cached():\n        return 1", "cached():\n        return 2", {MODULE}),
        ("LIMIT += 1", "LIMIT += 2", {MODULE}),
        ("parser):\n        pass", "parser):\n        return", {MODULE}),
    ],
)  # fmt: skip
def test_an_edit_changes_the_parts_that_contain_it(old, new, wanted):
    assert changed(old, new) == wanted


def test_what_is_not_python_is_one_part():
    assert parse(b"def f(:").units.keys() == {MODULE}
    assert parse(b"\x00").units.keys() == {MODULE}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("plain", "plain"),
        ("Shape", MODULE),
        ("Shape.area.<locals>.inner", "Shape.area"),
        ("<lambda>", MODULE),
        ("<listcomp>", MODULE),
        ("plain.<locals>.<listcomp>", "plain"),
        ("cached", MODULE),
        (WHOLE, WHOLE),
    ],
)
def test_a_function_that_ran_belongs_to_a_part(tmp_path, name, part):
    (tmp_path / "lib.py").write_text(textwrap.dedent(SOURCE))
    assert Sources(tmp_path, ["lib.py"]).resolve(("lib.py", name)) == ("lib.py", part)


IMPORTS = {
    "src/pkg/__init__.py": "",
    "src/pkg/one.py": "from . import two\nfrom .deep.three import x",
    "src/pkg/two.py": "",
    "src/pkg/deep/__init__.py": "",
    "src/pkg/deep/three.py": "from ..two import y",
    "src/pkg/typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pkg.one\n",
    "src/pkg/late.py": "def f():\n    import pkg.one as one\n",
    "src/pkg/by_name.py": "import importlib\nm = importlib.import_module('pkg.two')\n",
    "tests/test_a.py": "import pkg.two.nothing, os\n",
    "two.py": "",
}


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("src/pkg/one.py", {"src/pkg/__init__.py", "src/pkg/two.py", "src/pkg/deep/__init__.py", "src/pkg/deep/three.py"}),
        ("src/pkg/deep/three.py", {"src/pkg/two.py"}),
        ("src/pkg/typed.py", set()),
        ("src/pkg/late.py", {"src/pkg/__init__.py", "src/pkg/one.py"}),
        ("src/pkg/by_name.py", {"src/pkg/two.py"}),
        ("tests/test_a.py", {"src/pkg/__init__.py", "src/pkg/two.py"}),
    ],
)  # fmt: skip
def test_imports_are_found_by_name(tmp_path, file, wanted):
    sources = _written(tmp_path)
    assert wanted <= set(sources.imported(file))
    assert set(sources.imported(file)) - wanted <= {"src/pkg/__init__.py"}


def test_the_closure_follows_imports_and_what_was_seen(tmp_path):
    sources = _written(tmp_path)
    found = sources.closure(["tests/test_a.py"], {"src/pkg/two.py": [("src/pkg/late.py", MODULE)]})
    assert found == {*IMPORTS} - {"src/pkg/typed.py", "src/pkg/by_name.py", "two.py"}


@pytest.mark.parametrize(
    ("added", "wanted"),
    [
        ("src/pkg/one/deep.py", set()),
        ("src/pkg/two/nothing.py", {"tests/test_a.py"}),
        ("src/pkg/deep/three/x.py", {"src/pkg/one.py"}),
        ("lib/os.py", {"tests/test_a.py"}),
        ("importlib/__init__.py", {"src/pkg/by_name.py"}),
        ("lib/pkg/two.py", {"src/pkg/by_name.py", "tests/test_a.py"}),
    ],
)
def test_a_module_that_an_import_may_find_from_now_on_changes_the_importing_one(tmp_path, added, wanted):
    before = _written(tmp_path)
    after = Sources(tmp_path, [*IMPORTS, added])
    assert {
        file for file in IMPORTS if before.digest((file, MODULE)) != after.digest((file, MODULE))
    } == wanted


def test_a_module_that_is_moved_changes_the_importing_ones(tmp_path):
    before = _written(tmp_path)
    after = Sources(tmp_path, {*IMPORTS} - {"src/pkg/deep/three.py"} | {"src/pkg/three.py"})
    assert before.digest(("src/pkg/one.py", MODULE)) != after.digest(("src/pkg/one.py", MODULE))


def _written(folder) -> Sources:
    for name, text in IMPORTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Sources(folder, IMPORTS)


def test_files_and_folders_have_digests(tmp_path):
    (tmp_path / "data").mkdir()
    sources = Sources(tmp_path, [])
    units = [("data", FOLDER), ("data/one", WHOLE), ("lib.py", "f")]
    before = [sources.digest(unit) for unit in units]
    (tmp_path / "data" / "one").write_text("1")
    (tmp_path / "lib.py").write_text("def f():\n    pass\n")
    sources = Sources(tmp_path, ["lib.py"])

    assert all(old != sources.digest(unit) for old, unit in zip(before, units, strict=True))
    assert sources.digest(LOST) == UNKNOWN
    everything = sources.digest(ALL_PYTHON)
    (tmp_path / "lib.py").write_text("def f():\n    return\n")
    assert sources.was_edited("lib.py")
    assert Sources(tmp_path, ["lib.py"]).digest(ALL_PYTHON) != everything


def test_the_digest_of_a_link_is_that_of_its_target(tmp_path):
    link = tmp_path / "now"
    digests = [Sources(tmp_path, []).digest(("now", LINK))]
    for target in ("v1", "v2"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        digests.append(Sources(tmp_path, []).digest(("now", LINK)))
    assert len({*digests}) == 3
