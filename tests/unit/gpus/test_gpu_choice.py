"""Which free GPUs are taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disttest.model import Slot
from disttest.plugins.gpus.leases.lease import choose_slots
from disttest.plugins.gpus.machine import Gpu, Peer


def machine(count, links, paths=None):
    """GPUs with NVLinks {(i, j): number} and PCIe paths {(i, j): name}."""
    paths = paths or {}

    def peers(index):
        others = (other for other in range(count) if other != index)
        keys = ((other, (min(index, other), max(index, other))) for other in others)
        return tuple(
            Peer(index=other, nvlinks=links.get(key, 0), path=paths.get(key, "system")) for other, key in keys
        )

    return [
        (Slot(name=f"gpu:{n}", device="cuda", index=n, uuid=f"GPU-{n}"), Gpu(index=n, peers=peers(n)))
        for n in range(count)
    ]


def chosen(free, count):
    return [slot.index for slot in choose_slots(free, count)]


def test_in_order_where_all_are_equal():
    assert chosen(machine(4, {}), 2) == [0, 1]


def test_a_bridged_pair():
    assert chosen(machine(4, {(1, 3): 12}), 2) == [1, 3]


def test_one_is_taken_where_it_tears_nothing():
    assert chosen(machine(3, {(0, 1): 12}), 1) == [2]


def test_the_weakest_link_decides():
    """1-2-3 are all linked; 0 has more links to 1, but none to the others."""
    links = {(0, 1): 18, (1, 2): 4, (1, 3): 4, (2, 3): 4}

    assert chosen(machine(4, links), 3) == [1, 2, 3]


def test_pcie_neighbours_where_there_is_no_nvlink():
    paths = {(0, 3): "node", (1, 2): "single"}

    assert chosen(machine(4, {}, paths), 2) == [1, 2]


def test_all_of_them():
    assert chosen(machine(3, {}), 3) == [0, 1, 2]


def test_many_gpus_are_grown_not_weighed():
    """C(24, 8) sets are too many to weigh; islands of eight are found all the same."""
    islands = {(a, b): 4 for a in range(24) for b in range(a + 1, 24) if a % 3 == b % 3}

    assert {index % 3 for index in chosen(machine(24, islands), 8)} == {0}


@given(st.integers(1, 10), st.data())
def test_always_as_many_as_asked_from_those_that_are_free(count, data):
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    links = data.draw(st.dictionaries(pairs, st.integers(0, 18), max_size=20))
    wanted = data.draw(st.integers(1, count))

    picked = chosen(machine(count, links), wanted)

    assert len(set(picked)) == wanted
    assert set(picked) <= set(range(count))
