"""The random faults that ``tests/mutants/product.py`` plants in the product."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.product import PACKAGE, Verdict, chosen, mutants_of, near_tests, table_of

FILE = Path("x.py")


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("a == b", "(a != b)"),
        ("a < b", "(a <= b)"),
        ("a and b", "(a or b)"),
        ("not a", "(a)"),
        ("a + b", "(a - b)"),
        ("True", "(False)"),
        ("3", "(4)"),
        ("a if b else c", "(a if not b else c)"),
    ],
)
def test_an_expression_has_a_wrong_form_in_its_place(line: str, after: str) -> None:
    source = f'é = "é"\nx = {line}\n'.encode()

    (mutant,) = mutants_of(source, FILE)

    assert (mutant.line, mutant.before, mutant.after) == (2, line, after)
    ast.parse(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])


def test_calls_are_left_out_and_values_not_returned() -> None:
    source = b"def f():\n    g()\n    return h\n"
    assert [(each.before, each.after) for each in mutants_of(source, FILE)] == [
        ("g()", "pass"),
        ("return h", "return None"),
    ]


def test_types_assertions_and_texts_are_left_alone() -> None:
    source = b'"""1 == 2"""\nx: dict[1, 2]\nassert a == b\ny = f"{a == b}"\ndef f(a: 1) -> 2: ...\n'
    assert mutants_of(source, FILE) == []


@pytest.mark.slow("parses a folder of the product and all unit tests")
def test_the_same_seed_gives_the_same_faults_and_each_has_its_tests() -> None:
    faults = chosen(20, 7, "results")
    assert faults == chosen(20, 7, "results") != chosen(20, 8, "results")
    assert all((PACKAGE / fault.file).is_file() for fault in faults)
    assert "tests/unit/results/test_verdict.py" in near_tests(Path("results/verdict.py"))


def test_the_table_counts_each_ring() -> None:
    (mutant,) = mutants_of(b"a == b", FILE)
    of_plugin = mutant._replace(file=Path("plugins/html/render.py"))

    table = table_of([Verdict(mutant, "killed"), Verdict(mutant, "survived"), Verdict(of_plugin, "untested")])

    assert table.splitlines()[2:] == [
        "| core | 2 | 1 | 1 | 0 |",
        "| plugins | 1 | 0 | 0 | 1 |",
        "| extras | 0 | 0 | 0 | 0 |",
        "| all | 3 | 1 | 1 | 1 |",
    ]
