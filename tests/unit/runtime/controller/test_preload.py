"""What is imported before the fork follows from the sources of the tests."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from disttest.planning.targets import suites_dir
from disttest.runtime.controller import loaded_sources, preload

SUITES = suites_dir()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Loads a test module with this source at this place, and says what was preloaded for it."""
    monkeypatch.setattr(
        preload,
        "_LAZY",
        ((re.compile(r"\bstep\b"), "lazy_part"), (re.compile("absent"), "no_such_part")),
    )
    monkeypatch.setattr(
        loaded_sources, "_TORCHS_TESTS", "torchs/tests.py"
    )  # the real ones may be loaded here
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/lazy_part.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.delitem(sys.modules, "lazy_part", raising=False)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))

    def preloaded(source: str | bytes, place: str = "root/test_it.py") -> tuple[str, ...]:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.encode() if isinstance(source, str) else source)
        module = ModuleType("test_it")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, "test_it", module)
        return preload.load_what_tests_use(tmp_path / "root")

    return preloaded


def test_a_word_in_a_source_loads_the_part(load):
    assert ("lazy_part",) == load("optimizer.step()")
    assert "lazy_part" in sys.modules


def test_what_a_part_says_of_itself_is_no_warning_of_the_tests(load, tmp_path, recwarn):
    (tmp_path / "lib/lazy_part.py").write_text("import warnings\nwarnings.warn('old', DeprecationWarning)")
    warnings.simplefilter("error")

    assert ("lazy_part",) == load("optimizer.step()")
    assert [] == list(recwarn)


def test_a_part_that_is_there_is_not_loaded_again(load):
    load("optimizer.step()")

    assert () == load("optimizer.step()")


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("stepping()", "root/test_it.py"),
        ("pass  # not step(), which is slow", "root/test_it.py"),
        ("step()", "elsewhere/test_it.py"),
        ("step()", "root/.venv/lib/site-packages/test_it.py"),
        ("step()", "root/data.pkl"),
        (b"step()" + bytes(1 << 20), "root/test_it.py"),
    ],
    ids=["another word", "a comment", "outside", "installed", "no source", "data"],
)
def test_nothing_is_loaded_for(load, source, place):
    assert () == load(source, place)
    assert "lazy_part" not in sys.modules


def test_torchs_own_tests_count_wherever_they_are(load):
    assert ("lazy_part",) == load("step()", "site-packages/torchs/tests.py")


def test_bytes_that_are_no_text_do_not_hurt(load):
    assert ("lazy_part",) == load(b"\xff\xfe step()")


def test_a_part_that_torch_lacks_is_left_to_the_rank(load):
    assert () == load("absent")


def test_nothing_happens_without_torch(load, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")

    assert () == load("step()")


def test_the_smoke_suite_is_spared_them():
    sources = [SUITES / "ranks.py", *SUITES.glob("smoke/*.py")]  # what it imports of ours
    assert {path.name: () for path in sources} == {
        path.name: preload.parts_needed(path.read_text()) for path in sources
    }


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("torch.optim.SGD([weight])", ["torch._dynamo"]),
        ("from torch.nn.parallel import DistributedDataParallel", ["torch._dynamo"]),
        ("with torch.profiler.profile() as seen: pass", ["torch._dynamo"]),
        ("with torch.autograd.profiler.profile() as seen: pass", ["torch._dynamo"]),
        ("import torch.distributed._functional_collectives as functional", ["torch._dynamo"]),
        ("distribute_tensor(x, mesh, [Shard(0)])", ["torch._dynamo"]),
        ("parallelize_module(model, mesh, plan)", ["torch._dynamo"]),
        ("torch.autograd.gradcheck(square, x)", ["torch.fx.experimental.symbolic_shapes"]),
        ("torch.compile(step)", ["torch._inductor.compile_fx"]),
        ("model.compile()", ["torch._inductor.compile_fx"]),
        ("PATTERN = re.compile('a+')", []),
    ],
)
def test_parts_are_imported_for_what_brings_them(source, parts):
    assert parts == list(preload.parts_needed(source))
