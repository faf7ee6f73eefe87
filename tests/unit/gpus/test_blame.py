"""From failed checks to broken devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttest.plugins.gpus.preflight.messages import PAIR_CHECK, Check, find_broken


def check(*devices, kind="", passed=False):
    kind = kind or {1: "matmul", 2: PAIR_CHECK}.get(len(devices), "collective_all_reduce")
    names = tuple(f"gpu:{n}" for n in devices)
    return Check(check=kind, devices=names, label=" → ".join(names), passed=passed, message="bad")


def blamed(*checks):
    return set(find_broken(checks))


def test_nothing_failed():
    assert find_broken([check(1, passed=True), check(1, 2, passed=True)]) == {}


def test_a_device_alone():
    assert find_broken([check(1)]) == {"gpu:1": "matmul failed on gpu:1: bad"}


def test_the_first_failure_of_a_device_is_its_reason():
    found = find_broken([check(1, kind="copy"), check(1, kind="matmul")])

    assert found["gpu:1"].startswith("copy failed")


def test_the_common_end_of_failing_pairs():
    assert blamed(check(0, 3), check(1, 3), check(2, 3)) == {"gpu:3"}
    assert blamed(check(0, 1), check(0, 2), check(0, 3)) == {"gpu:0"}


def test_two_bad_devices_among_pairs():
    assert blamed(check(0, 1), check(0, 2), check(3, 4), check(3, 5)) == {"gpu:0", "gpu:3"}


def test_one_failing_pair_costs_one_device():
    assert blamed(check(0, 1)) == {"gpu:1"}


def test_a_pair_with_a_device_known_to_be_bad_accuses_no_other():
    assert blamed(check(0), check(0, 1)) == {"gpu:0"}


def test_a_collective_that_accuses_nobody_condemns_all():
    assert blamed(check(0, 1, 2)) == {"gpu:0", "gpu:1", "gpu:2"}
    assert blamed(check(0, 1, kind="collective_rendezvous")) == {"gpu:0", "gpu:1"}


def test_a_collective_that_is_explained_condemns_only_the_culprit():
    assert blamed(check(1), check(0, 1, 2)) == {"gpu:1"}


@pytest.mark.slow("hypothesis draws many examples")
@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda p: p[0] < p[1]), max_size=28))
def test_every_failing_pair_is_explained_and_not_everybody_is_blamed(pairs):
    found = blamed(*(check(*pair) for pair in pairs))

    assert all({f"gpu:{a}", f"gpu:{b}"} & found for a, b in pairs)
    assert len(found) <= min(len(pairs), 7)
