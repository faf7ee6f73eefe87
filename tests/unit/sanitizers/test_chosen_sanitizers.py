"""Which sanitizers are on, as it is written and as it is read."""

from __future__ import annotations

import pytest

from disttest.errors import UsageError
from disttest.sanitizers.choice import NAMES, Chosen, parse_chosen, show_chosen
from disttest.sanitizers.table import SANITIZERS


def test_each_name_has_a_row():
    assert set(NAMES) == set(SANITIZERS)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("order", (Chosen(name="order", fails=True),)),
        ("order:warn", (Chosen(name="order", fails=False),)),
        ("order:warn,order", (Chosen(name="order", fails=True),)),
        ("off", ()),
    ],
)
def test_what_is_chosen(text, chosen):
    assert chosen == parse_chosen(text)
    assert chosen == parse_chosen(show_chosen(chosen))


@pytest.mark.parametrize("text", ["race", "order:fail", "order:", "off,order", ""])
def test_what_is_not_known_is_refused(text):
    with pytest.raises(UsageError, match="is not one of order, order:warn, off"):
        parse_chosen(text)
