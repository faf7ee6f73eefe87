"""What a test has recorded, in words that can be compared."""

from __future__ import annotations

import torch

from disttest.extras.chaos.in_rank import numbers_of


def _words(value: object) -> str:
    return numbers_of([("loss", value)])["loss"]


def test_a_few_numbers_are_shown_and_many_told_by_their_digest() -> None:
    many = torch.arange(100.0)

    assert _words(torch.tensor([1.0, 0.5])) == "[1.0, 0.5]"
    assert _words(many).startswith("float32[100] with digest ")
    assert _words(many) == _words(many.clone())
    assert _words(many) != _words(many + 1e-5)


def test_a_tensor_is_its_values_however_they_lie() -> None:
    square = torch.arange(100.0).reshape(10, 10)

    assert _words(square.t()) == _words(square.t().contiguous()) != _words(square)
    assert _words(square.to_sparse()) == _words(square)


def test_a_value_that_cannot_be_told_says_so() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no words")

    assert _words(Broken()) == "<Broken whose repr raises ValueError>"
