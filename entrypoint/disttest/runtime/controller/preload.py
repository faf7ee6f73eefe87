"""Imports once, before the fork, what each rank would otherwise import by itself.

torch loads large parts of itself at the first call that may need them: the first step of an optimizer brings
``torch._dynamo``, the first ``assert_close`` brings sympy, what is compiled brings inductor: half a second of CPU and more in
every rank of every fresh world. The sources of the tests tell whether that will happen; a wrong guess costs one import, or
saves none.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from pathlib import Path

from disttest import observe
from disttest.runtime.controller.loaded_sources import sources_below
from disttest.runtime.rank import hygiene

# What a source says, and the module that torch will import for it.
_LAZY = (
    (
        re.compile(r"\bassert_close\b|\bassertEqual\b|\bgradcheck\b"),
        "torch.fx.experimental.symbolic_shapes",
    ),
    (
        re.compile(
            r"\boptim\b|\bcheckpoint\b|\bDDP\b|DistributedDataParallel|FSDP|fully_shard"
            r"|\bdistribute_tensor\b|\bparallelize_module\b|\b_functional_collectives\b|\btorch\.(autograd\.)?profiler\b"
        ),
        "torch._dynamo",
    ),
    (re.compile(r"(?<!\bre)\.compile\b"), "torch._inductor.compile_fx"),
)

LAZY_PARTS = tuple(name for _, name in _LAZY)

# Its words count for nothing; in a text a # hides the rest of the line, which costs an import later.
_COMMENT = re.compile("#.*")


def load_torch() -> None:
    """Import torch once, so that no rank has to; tests that do not need it run without it."""
    if _load("torch.distributed"):
        observe.prepare()
        hygiene.prepare()


def load_what_tests_use(root: Path) -> tuple[str, ...]:
    """Import what the modules below ``root`` that are loaded now will make torch import; returns the names.

    Args:
        root: the root directory of the tests; packages installed below it do not count, save torch's own tests.
    """
    if "torch" not in sys.modules:
        return ()
    waiting = {name for _, name in _LAZY if name not in sys.modules}
    wanted: list[str] = []
    for _, source in sources_below(root):
        found = [name for name in parts_needed(source) if name in waiting]
        waiting.difference_update(found)
        wanted += found
        if not waiting:
            break
    return tuple(name for name in wanted if _load(name))


def parts_needed(source: str) -> tuple[str, ...]:
    """The modules that torch will import for what a source says."""
    code = _COMMENT.sub("", source)
    return tuple(name for pattern, name in _LAZY if pattern.search(code))


def _load(name: str) -> bool:
    """Whether the module is there; one that a torch lacks is simply not preloaded.

    What torch says of itself meanwhile (inductor, fourteen times) is no warning of the tests, nor an error where they want such.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    except Exception:  # noqa: BLE001 - the rank that needs it says what is wrong with it
        return False
    return True
