"""Which sanitizers are on, as it is written and as it is read."""

from __future__ import annotations

import pytest

from disttest.errors import UsageError
from disttest.extras.sanitizers.choice import NAMES, Chosen, parse_chosen, show_chosen
from disttest.extras.sanitizers.running import SANITIZERS


def test_each_name_has_a_row():
    assert set(NAMES) == set(SANITIZERS)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("order", (Chosen(name="order", fails=True),)),
        ("order:warn", (Chosen(name="order", fails=False),)),
        ("order:warn,order", (Chosen(name="order", fails=True),)),
        ("all", tuple(Chosen(name=name, fails=True) for name in NAMES)),
        ("all:warn,order", tuple(Chosen(name=name, fails=name == "order") for name in NAMES)),
        ("off", ()),
        ("race", (Chosen(name="race", fails=True),)),
        (
            "race:nccl:warn,order",
            (Chosen(name="order", fails=True), Chosen(name="race", fails=False, policy="nccl")),
        ),
        ("all:warn", tuple(Chosen(name=name, fails=False) for name in NAMES)),
        (
            "all,race:nccl",
            tuple(Chosen(name=name, fails=True, policy="nccl" * (name == "race")) for name in NAMES),
        ),
    ],
)
def test_what_is_chosen(text, chosen):
    assert chosen == parse_chosen(text)
    assert chosen == parse_chosen(show_chosen(chosen))


@pytest.mark.parametrize(
    "text", ["races", "order:fail", "order:nccl", "order:", "race:nccl:nccl", "off,order", ""]
)
def test_what_is_not_known_is_refused(text):
    with pytest.raises(
        UsageError,
        match="is not one of order, race, values, race:nccl, all, order:warn, race:warn, values:warn, race:nccl:warn, "
        "all:warn, off",
    ):
        parse_chosen(text)
