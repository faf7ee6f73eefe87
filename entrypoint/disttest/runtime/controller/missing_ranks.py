"""Report tests that expect ranks where there are none: a green run must not hide that nothing ran distributed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from disttest.model import TestCase
from disttest.planning.backends import CPU
from disttest.runtime.controller.expand import closest_mark, shape_of
from disttest.runtime.controller.loaded_sources import sources_below

_OF_A_RANK = frozenset(
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
)
_READS = re.compile(
    rf"(?:environ|getenv).*\b(?:{'|'.join(_OF_A_RANK)})\b|\b(?:{'|'.join(_OF_A_RANK)})\b.*environ"
)
_DISTRIBUTED = re.compile(
    r"\btorch\.distributed\b|\binit_process_group\b|\bfrom torch import [^#\n]*\bdistributed\b"
)
# A file with one of these starts processes, which may be ranks.
_STARTS_RANKS = re.compile(
    r"\b(?:multiprocessing|torchrun|subprocess)\b|\bos\.fork\b|\btorch\.distributed\.(?:run|launch|launcher|elastic)\b"
)
_NAMED = 5
_MARK = "Mark those that need ranks with @pytest.mark.world_size(2)"


class NoWorlds:
    """Counts tests that are related to ranks, for a run that ends without a world."""

    def __init__(self) -> None:
        # Tests with a world that a hook or an option has deselected.
        self._deselected = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count deselected tests; hooks of other harnesses deselect tests of other world sizes."""
        self._deselected += sum(_asks_for_ranks(item) for item in items)

    def describe(self, pairs: Sequence[tuple[pytest.Item, TestCase]]) -> str:
        """Describe a green run without worlds in one line; empty if no test asked for one."""
        in_one_process = _counted(
            [item for item, test in pairs if not test.world and _is_distributed(item)],
            "with torch.distributed, in one process",
        )
        told = (
            _counted([item for item, test in pairs if test.world], "with a world, skipped"),
            f"{self._deselected} with a world, deselected" if self._deselected else "",
            in_one_process,
        )
        if not any(told):
            return ""
        on_gpus = any(test.world and test.world.device != CPU for _, test in pairs)
        advice = (
            f"{_MARK}; " if in_one_process else "",
            "--device cpu runs tests that lack GPUs on the CPU; " if on_gpus else "",
        )
        return (
            f"no test ran in a world: {'; '.join(filter(None, told))}. "
            f"{''.join(advice)}--min-worlds N fails such a run"
        )


def _counted(items: Sequence[pytest.Item], what: str) -> str:
    if not items:
        return ""
    files = sorted({item.nodeid.partition("::")[0] for item in items})
    more = ", …" if len(files) > _NAMED else ""
    return f"{len(items)} {what} ({', '.join(files[:_NAMED])}{more})"


def _asks_for_ranks(item: pytest.Item) -> bool:
    return shape_of(item) is not None or closest_mark(item, "world_size") is not None


def _is_distributed(item: pytest.Item) -> bool:
    return _asks_for_ranks(item) or _uses_distributed(item.path)


@cache
def _uses_distributed(path: Path) -> bool:
    try:
        source = path.read_text(errors="replace")
    except OSError:
        return False
    return _DISTRIBUTED.search(source) is not None and _STARTS_RANKS.search(source) is None


def reads_at_import(root: Path) -> Iterator[str]:
    """Describe loaded files below ``root`` that read a variable of ranks at import, when none is set."""
    for path, source in sources_below(root):
        # The pattern is a cheap filter. Only a source that matches is parsed.
        if not _READS.search(source):
            continue
        for line, name in sorted(set(_found_in(_parsed(source)))):
            yield (
                f"{path.relative_to(root)}:{line} reads {name} when it is imported, which happens once, before there are "
                "ranks: it gets the value of the run's environment. Read it in a test or a fixture, where each rank has its own"
            )


def _parsed(source: str) -> Sequence[ast.stmt]:
    try:
        return ast.parse(source).body
    # A file that pytest could import may still be too deep for `ast`, or contain null bytes.
    except (SyntaxError, ValueError, RecursionError):
        return ()


def _found_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and variable of each read at import time: bodies of functions do not run then, their defaults do."""
    for node in nodes:
        # The body of a lambda does not run at import either.
        if isinstance(node, ast.Constant | ast.Lambda):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _found_in([*node.decorator_list, node.args])
            continue
        if (name := _variable_read(node)) in _OF_A_RANK:
            yield node.lineno, name  # type: ignore[attr-defined]
        yield from _found_in(ast.iter_child_nodes(node))


def _variable_read(node: ast.AST) -> str:
    """Return the name in ``environ["NAME"]``, ``environ.get("NAME")``, ``getenv("NAME")`` or ``"NAME" in environ``."""
    match node:
        case ast.Subscript(value=where, slice=ast.Constant(value=str(name)), ctx=ast.Load()) if _is(
            where, "environ"
        ):
            return name
        case ast.Call(
            func=ast.Attribute(value=where, attr="get"), args=[ast.Constant(value=str(name)), *_]
        ) if _is(where, "environ"):
            return name
        case ast.Call(func=what, args=[ast.Constant(value=str(name)), *_]) if _is(what, "getenv"):
            return name
        case ast.Compare(left=ast.Constant(value=str(name)), comparators=[where, *_]) if _is(
            where, "environ"
        ):
            return name
    return ""


def _is(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == name) or (
        isinstance(node, ast.Name) and node.id == name
    )
