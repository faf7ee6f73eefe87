"""Measure the structure and the language of the product; fail if a figure is worse than tools/structure.json allows.

    python tools/structure.py [--update]

The core is all below entrypoint/disttest but plugins/ and extras/. ``--update`` writes each figure that is now better into
the file, so that it cannot become worse again. It never writes a worse one.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "entrypoint" / "disttest"
LIMITS = Path(__file__).with_suffix(".json")
RINGS = ("plugins", "extras")
TOP_PAGES = ("README.md", "CONTRIBUTING.md")
TOLERATED = 100
"""Lines by which the core may grow before the file has to say so: repairs need some."""
FEATURES = re.compile(
    r"chaos|sanitiz|deadlock|replay|kubernetes|slurm|resident|spmd|hypothesis|allure|debugpy|emulated|coverage|xdist"
    # Links to issues are no feature.
    r"|masking|deepspeed|gloo_loops|flight[_ ]?recorder|github(?!\.com)",
    re.IGNORECASE,
)
WAITS = re.compile(r"select\.(?:poll|epoll|select)\(|\b(?:Default|Poll|Epoll)Selector\(")
_PHRASES = (
    r"\bwhat (?:is|was|are|were|has|have|it|they|an?|the|ranks?|tests?|torch|pytest|its|one|another|each)\b",
    r"(?:(?<=[.!?:]\s)|(?<=\n)|^)(?:What|Who|Whoever|Whose)\b(?!\?)[^?.\n]{3,}",
    r"\b(?:[Ww]ho (?:is|has|asks?|gives?|waits?|wants?|did|gave|does|cannot|will)|by whom|whoever)\b",
    r"\b(?:[Ss]omebody|[Nn]obody|[Aa]nybody)\b",
    r"\b(?:(?:is|are|was|were|be|been) told|tells?(?: of| who| what| how| that)|told (?:of|in|by|beside|apart))\b",
    r"\b(?:stands?|stood)\b",
    r"\b(?:comes?|came) to\b",
    r"\bof (?:ours|theirs|its own|their own|one's own)\b",
    r"\b(?:[Bb]eside|anew)\b",
    r"\bby (?:itself|themselves)\b",
    r"\b(?:is|are|was|were) to (?:be|have|go|run|fork|hide|see|do|take|keep|make|pay|end|show|delete|wait)\b",
)
WEAK_PHRASES = re.compile("|".join(_PHRASES))
"""Constructions that a native reader stumbles over; rare in the documentation of Python and pytest."""
FENCED = re.compile(r"```.*?```", re.DOTALL)
COMMENT = re.compile(r"#\s(?!noqa|type:)(.*)$", re.MULTILINE)
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
    """Amount by which a figure may be worse."""
    return TOLERATED if name == "lines of code of the core" else 0


def figures() -> dict[str, int]:
    """Measure everything; less is better."""
    sources = {path.relative_to(PACKAGE): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    core = {path: text for path, text in sources.items() if path.parts[0] not in RINGS}
    return {
        "lines of code of the core": sum(map(lines_of_code, core.values())),
        "modules of the core that name a feature": sum(bool(FEATURES.search(text)) for text in core.values()),
        "modules that wait for descriptors by themselves": sum(
            bool(WAITS.search(text)) for text in sources.values()
        ),
        "calls of gc.freeze": sum(text.count("gc.freeze()") for text in sources.values()),
        "docstrings that begin with What, Who or Whose": sum(
            bool(NOUN_CLAUSE.match(text)) for source in sources.values() for text in docstrings(source)
        ),
        "weak phrases in 10,000 words of the code": weak_phrases("\n".join(map(prose_of, sources.values()))),
        "weak phrases in 10,000 words of the docs": weak_phrases(
            "\n".join(FENCED.sub("", path.read_text()) for path in pages())
        ),
    }


def lines_of_code(source: str) -> int:
    """Count the lines that are neither empty, nor comments, nor docstrings: an explanation must never cost anything."""
    explains: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                explains.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and line.lstrip()[0] != "#" and at not in explains for at, line in lines)


def docstrings(source: str) -> list[str]:
    """Find the docstrings of a module, its classes, its functions and its attributes."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(ast.get_docstring(node) or "")
        body = getattr(node, "body", None)
        for first, second in itertools.pairwise(body if isinstance(body, list) else ()):
            match first, second:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text))):
                    found.append(text)
    return found


def prose_of(source: str) -> str:
    """Join the docstrings and comments of a module."""
    return "\n".join([*docstrings(source), *COMMENT.findall(source)])


def pages() -> list[Path]:
    """List the pages that people read."""
    return [
        *sorted(ROOT.glob("docs/**/*.md")),
        *(path for path in map(ROOT.joinpath, TOP_PAGES) if path.exists()),
    ]


def weak_phrases(prose: str) -> int:
    """Count weak phrases in 10,000 words, rounded up."""
    words = max(1, len(re.findall(r"[A-Za-z]+", prose)))
    return math.ceil(1e4 * len(WEAK_PHRASES.findall(prose)) / words)


if __name__ == "__main__":
    sys.exit(main())
