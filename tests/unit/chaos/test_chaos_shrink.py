"""From a fault that breaks a contract to the smallest one that does."""

import pytest

from disttest.extras.chaos.command import parse_fault
from disttest.extras.chaos.command_run import begin_search


def kills(*calls, rank=1):
    return [parse_fault(f"kill:{rank}:{call}") for call in calls]


def searched(search, breaks, rounds=20):
    """The search when it is over, and the calls of each of its rounds."""
    found = []
    for _ in range(rounds):
        tried = search.round()
        if not tried:
            return search, found
        found.append([fault.call for fault in tried])
        search = search.advanced(tried, [fault for fault in tried if breaks(fault.call)])
    raise AssertionError(f"no end: {found}")


def test_nothing_is_searched_where_all_hold():
    assert begin_search(kills(3, 5), []) is None


def test_it_begins_with_the_earliest_and_tries_its_own_kind_and_rank():
    tried = [*kills(7, 20), *kills(9, rank=0), parse_fault("stop:1:3")]
    search = begin_search(tried, [*kills(20), *kills(9, rank=0)])

    assert ("kill:0:9", {9}) == (str(search.fault), search.tried)
    assert {"kill:0"} == {str(fault).rpartition(":")[0] for fault in search.round()}


def test_few_earlier_ones_are_tried_all():
    search, rounds = searched(begin_search(kills(2, 7), kills(7)), lambda call: call >= 5)

    assert [[1, 3, 4, 5, 6]] == rounds
    assert ("kill:1:5", 4) == (str(search.fault), search.tried_before)


def test_a_round_has_eight_calls_spread_evenly():
    (first, *_) = searched(begin_search(kills(81), kills(81)), lambda call: call >= 81)[1]

    assert [6, 16, 26, 36, 46, 56, 66, 76] == first


@pytest.mark.parametrize("smallest", [1, 2, 37, 500, 9_998, 9_999])
def test_where_all_later_ones_break_the_smallest_is_found_in_few_rounds(smallest):
    search, rounds = searched(begin_search(kills(9_999), kills(9_999)), lambda call: call >= smallest)

    assert smallest == search.fault.call
    assert len(rounds) <= 6
    assert max(map(len, rounds)) <= 8


def test_one_that_is_alone_among_those_that_hold_is_the_smallest():
    search, _ = searched(begin_search(kills(1, 2, 3), kills(3)), lambda call: call == 3)

    assert ("kill:1:3", 2) == (str(search.fault), search.tried_before)


def test_what_strikes_during_a_call_goes_on_so():
    during = [parse_fault("kill:1:2:during")]

    assert ["kill:1:1:during"] == [str(fault) for fault in begin_search(during, during).round()]
