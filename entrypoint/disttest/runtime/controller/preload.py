"""Import once, before the fork, the parts of torch that each rank would otherwise import.

torch imports large parts on first use: the first step of an optimizer imports ``torch._dynamo`` (1.6 s of CPU), the
first ``assert_close`` imports sympy (0.6 s), a compiled function imports inductor, in every rank of every fresh world.
Words in the sources of the tests predict it. A wrong guess costs one import, or saves none. Learning it from the ranks
would need no guess, but the controller would have to import while worlds wait for it.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from pathlib import Path

from disttest import observe
from disttest.runtime.controller.loaded_sources import sources_below
from disttest.runtime.rank import state_snapshot

# Pattern in a source, and the module that torch will import for it.
# docs/decisions/0038-speed-ups-have-to-pay.md
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
    # `torch.compile` and `model.compile`, and not `re.compile`.
    (re.compile(r"(?<!\bre)\.compile\b"), "torch._inductor.compile_fx"),
)

LAZY_PARTS = tuple(name for _, name in _LAZY)

# Words in comments do not count. A # inside a string hides the rest of its line, which costs a later import.
_COMMENT = re.compile("#.*")


def load_torch() -> None:
    """Import torch once, so that no rank has to; tests that do not need torch run without it."""
    if _load("torch.distributed"):
        observe.prepare()
        state_snapshot.prepare()


def load_what_tests_use(root: Path) -> tuple[str, ...]:
    """Import the parts of torch that the loaded modules below ``root`` will need; return their names.

    Args:
        root: root directory of the tests; packages installed below it do not count, except torch's own tests.
    """
    if "torch" not in sys.modules:
        return ()
    # Parts that an import has loaded already need no search.
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
    """List the modules that torch will import for a source."""
    code = _COMMENT.sub("", source)
    return tuple(name for pattern, name in _LAZY if pattern.search(code))


def _load(name: str) -> bool:
    """Import a module if it exists; a part that this torch lacks is not preloaded.

    Warnings of torch during the import (inductor emits fourteen) are not warnings of the tests, nor errors if they turn
    warnings into errors.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    except Exception:  # noqa: BLE001 - the rank that needs it says what is wrong with it
        return False
    return True
