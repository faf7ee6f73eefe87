"""Measures the structure of the product, and fails if a figure is worse than tools/structure.json allows.

    python tools/structure.py [--update]

The core is all below entrypoint/disttest but plugins/ and extras/. A figure that becomes better is written into the file by
--update, so that it cannot become worse again; --update refuses to write a worse one.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "entrypoint" / "disttest"
LIMITS = Path(__file__).with_suffix(".json")
RINGS = ("plugins", "extras")
TOLERATED = 100
"""Lines by which the core may grow before the file has to say so: repairs need some."""
FEATURES = re.compile(
    r"chaos|sanitiz|deadlock|replay|kubernetes|slurm|resident|spmd|hypothesis|allure|debugpy|emulated|coverage|xdist"
    r"|masking|deepspeed|gloo_loops|flight[_ ]?recorder",
    re.IGNORECASE,
)
WAITS = re.compile(r"select\.(?:poll|epoll|select)\(|\b(?:Default|Poll|Epoll)Selector\(")
NOUN_CLAUSE = re.compile(r"\s*(?:What|Who|Whose)\b")


def main() -> int:
    """Print each figure and its limit; 1 if one is exceeded."""
    found, limits = figures(), json.loads(LIMITS.read_text())
    worse = {name: value for name, value in found.items() if value > limits[name] + slack(name)}
    for name, value in found.items():
        print(f"{name:60} {value:6} of {limits[name]:6}{'   worse' if name in worse else ''}")
    if worse:
        print(
            f"{LIMITS.relative_to(ROOT)} allows less of: {', '.join(worse)}. Move a feature into a plugin instead."
        )
        return 1
    if "--update" in sys.argv[1:]:
        LIMITS.write_text(
            json.dumps({name: min(value, limits[name]) for name, value in found.items()}, indent=4) + "\n"
        )
    return 0


def slack(name: str) -> int:
    """How much worse a figure may be."""
    return TOLERATED if name == "lines of the core" else 0


def figures() -> dict[str, int]:
    """All figures; less is better."""
    sources = {path.relative_to(PACKAGE): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    core = {path: text for path, text in sources.items() if path.parts[0] not in RINGS}
    return {
        "lines of the core": sum(text.count("\n") for text in core.values()),
        "modules of the core that name a feature": sum(bool(FEATURES.search(text)) for text in core.values()),
        "modules that wait for descriptors by themselves": sum(
            bool(WAITS.search(text)) for text in sources.values()
        ),
        "calls of gc.freeze": sum(text.count("gc.freeze()") for text in sources.values()),
        "docstrings that begin with What, Who or Whose": sum(map(noun_clauses, sources.values())),
    }


def noun_clauses(source: str) -> int:
    """Docstrings of a module that begin with a noun clause."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, owners))
    return sum(bool(text and NOUN_CLAUSE.match(text)) for text in docstrings)


if __name__ == "__main__":
    sys.exit(main())
