"""Which readings of a rank's variables happen at import."""

from __future__ import annotations

import ast

import pytest

from disttest.runtime.controller import missing_ranks


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os\nSIZE = os.environ['WORLD_SIZE']", [(2, "WORLD_SIZE")]),
        ("SIZE = int(os.environ.get('WORLD_SIZE', 1))", [(1, "WORLD_SIZE")]),
        ("RANK = getenv('RANK')", [(1, "RANK")]),
        ("if 'LOCAL_RANK' in environ:\n    import x", [(1, "LOCAL_RANK")]),
        ("class A:\n    size = os.getenv('WORLD_SIZE')", [(2, "WORLD_SIZE")]),
        ("@skipif(os.environ.get('RANK') is None)\ndef f(): pass", [(1, "RANK")]),
        ("def f(size=os.environ['WORLD_SIZE']): pass", [(1, "WORLD_SIZE")]),
        ("def f():\n    return os.environ['WORLD_SIZE']", []),
        ("f = lambda: os.environ['WORLD_SIZE']", []),
        ("os.environ['MASTER_ADDR'] = 'localhost'", []),
        ("os.environ.setdefault('MASTER_PORT', '1')", []),
        ("HOME = os.environ['HOME']", []),
        ("sizes = {}\nx = sizes['WORLD_SIZE']", []),
    ],
)
def test_readings_at_import(source: str, expected: list[tuple[int, str]]) -> None:
    assert expected == list(missing_ranks._found_in(ast.parse(source).body))
