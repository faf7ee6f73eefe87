"""Plans: pools, shards, selections, the matrix."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import case

from disttest.errors import ExitCode, NotEnoughDevices, UsageError
from disttest.extras.shards.pools import parse_pool, parse_pools
from disttest.extras.shards.shard_plan import (
    check_device,
    check_revision,
    check_unchanged,
    decode_plan,
    encode_plan,
    plan_by_world_size,
    plan_equal_shards,
    plan_shards,
    render_matrix,
    select,
)
from disttest.planning.timings import Sample, Timings

POOLS = parse_pools(["gpu1:1:4", "gpu8:8:2"])


def mixed(count: int = 40):
    return [case(f"t{n}", (1, 2, 4, 8, None)[n % 5]) for n in range(count)]


def test_each_world_size_goes_to_the_cheapest_pool_that_holds_it() -> None:
    plan = plan_shards(mixed(), Timings(), pools=POOLS)

    sizes = {
        pool: {
            test.world.size if test.world else 0 for s in plan.shards if s.pool == pool for test in s.tests
        }
        for pool in ("gpu1", "gpu8")
    }
    assert {"gpu1": {0, 1}, "gpu8": {2, 4, 8}} == sizes
    assert [1, 2, 3, 4, 5, 6] == [shard.number for shard in plan.shards]


def test_the_price_decides_where_more_than_one_pool_fits() -> None:
    cheap_eight = parse_pools(["gpu1:1:1:1.0", "gpu8:8:1:4.0"])

    (shard,) = plan_shards([case("a", 1)], Timings(), pools=cheap_eight).shards

    assert "gpu8" == shard.pool  # eight at once for the price of four


def test_shards_are_split_by_time() -> None:
    tests = [case(f"t{n}", 1) for n in range(5)]
    samples = [
        Sample(test=test.nodeid, duration_s=seconds, size=1, backend="gloo")
        for test, seconds in zip(tests, (10, 4, 3, 2, 1), strict=True)
    ]

    plan = plan_shards(tests, Timings(samples), pools=parse_pools(["gpu1:1:2"]))

    assert [["t0[1xgloo]"], ["t1[1xgloo]", "t2[1xgloo]", "t3[1xgloo]", "t4[1xgloo]"]] == [
        [test.name for test in shard.tests] for shard in plan.shards
    ]
    assert [10.3, 11.2] == [shard.expected_s for shard in plan.shards]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gpu_tests_take_time_too(device: str) -> None:
    tests = [case(f"t{n}", 1, device=device) for n in range(4)]
    samples = [Sample(test=test.nodeid, duration_s=10) for test in tests]

    (shard,) = plan_shards(tests, Timings(samples), pools=parse_pools(["gpu2:2:1"])).shards

    assert 20 < shard.expected_s < 30  # two at once, and the starts of their worlds


def test_a_runner_without_tests_is_no_shard_of_a_pool() -> None:
    assert 1 == len(plan_shards([case("a", 1)], Timings(), pools=POOLS).shards)


def test_equal_shards_are_all_there_even_if_empty() -> None:
    plan = plan_equal_shards([case("a", 1)], Timings(), shards=3)

    assert [1, 2, 3] == [shard.number for shard in plan.shards]
    assert 1 == len(render_matrix(plan)["include"])
    assert () == select(plan, 3, [case("a", 1)]).run


def test_by_world_size_there_is_one_shard_for_each() -> None:
    plan = plan_by_world_size(mixed(10), Timings())

    assert ["world-1", "world-2", "world-4", "world-8"] == [shard.name for shard in plan.shards]
    assert 10 == sum(len(shard.tests) for shard in plan.shards)


def test_a_world_that_no_pool_holds_is_named() -> None:
    with pytest.raises(NotEnoughDevices) as caught:
        plan_shards([case("big", 16), case("a", 1)], Timings(), pools=POOLS)

    assert ExitCode.NOT_ENOUGH_DEVICES == caught.value.exit_code
    assert (
        "no pool holds 16 ranks for tests/test_a.py::big[16xgloo]. The largest is 'gpu8' with 8 GPUs per runner: "
        "add one like --pool gpu16:16:1, or leave these tests out."
    ) == str(caught.value)


def test_equal_shards_with_too_few_slots_are_refused() -> None:
    with pytest.raises(NotEnoughDevices, match="no pool holds 4 ranks"):
        plan_equal_shards([case("a", 4)], Timings(), shards=2, slots=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu8", "cannot be read; write NAME:GPUS:RUNNERS"),
        ("gpu8:8", "cannot be read"),
        ("gpu8:8:2:1:1", "cannot be read"),
        ("../x:8:2", "cannot be read"),
        (":8:2", "cannot be read"),
        ("gpu8:0:2", "GPUs per runner must be a whole number of at least 1, not '0'"),
        ("gpu8:-8:2", "GPUs per runner must be a whole number of at least 1, not '-8'"),
        ("gpu8:8:0", "runners must be a whole number of at least 1, not '0'"),
        ("gpu8:8:-2", "runners must be"),
        ("gpu8:8:two", "runners must be"),
        ("gpu8:8:²", "runners must be"),
        ("gpu8:8:2:nan", "the cost per minute must be a number of at least 0, not 'nan'"),
        ("gpu8:8:2:-1", "the cost per minute must be"),
        ("gpu8:8:2:inf", "the cost per minute must be"),
        ("gpu8:8:2:free", "the cost per minute must be"),
    ],
)
def test_bad_pools_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match="--pool") as caught:
        parse_pool(text)

    assert message in str(caught.value)


def test_two_pools_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two pools are named 'a'"):
        parse_pools(["a:1:1", "a:2:1"])


def test_labels_belong_to_a_pool() -> None:
    assert ("self-hosted", "h100") == parse_pools(["a:1:1"], ["a=self-hosted,h100"])[0].labels
    for bad in ("b=x", "a=", "a", "a=x y", "a=$(id)"):
        with pytest.raises(UsageError, match="cannot be read; write NAME=LABEL,LABEL"):
            parse_pools(["a:1:1"], [bad])


@pytest.mark.parametrize("shards", [0, -1, 257])
def test_bad_numbers_of_shards_are_refused(shards: int) -> None:
    with pytest.raises(UsageError, match=f"--shards must be between 1 and 256, not {shards}"):
        plan_equal_shards([], Timings(), shards=shards)


def test_more_shards_than_a_matrix_holds_are_refused() -> None:
    tests = [case(f"t{n}", 1) for n in range(300)]

    with pytest.raises(UsageError, match="the plan has 300 shards, but a matrix holds 256"):
        plan_shards(tests, Timings(), pools=parse_pools(["gpu1:1:300"]))


def test_a_plan_needs_runners() -> None:
    with pytest.raises(UsageError, match="a plan needs runners"):
        plan_shards([case("a", 1)], Timings(), pools=())


def test_the_matrix_says_what_a_job_needs() -> None:
    plan = plan_shards([case("a", 8)], Timings(), pools=parse_pools(["gpu8:8:2"], ["gpu8=self-hosted,h100"]))

    entry = {
        "name": "gpu8-1",
        "pool": "gpu8",
        "labels": ["self-hosted", "h100"],
        "shard": 1,
        "launcher": "",
        "nodes": 1,
        "gpus": 8,
        "tests": 1,
        "seconds": 1,
        "gpu_minutes": 0.2,
        "no_op": False,
    }
    assert {"include": [entry]} == render_matrix(plan)


def test_the_matrix_is_never_empty() -> None:
    plan = plan_shards([], Timings(), pools=POOLS)

    (entry,) = render_matrix(plan)["include"]

    assert (True, 0) == (entry["no_op"], entry["shard"])
    assert set(entry) == set(render_matrix(plan_shards([case("a", 1)], Timings(), pools=POOLS))["include"][0])
    assert () == select(plan, 0, []).run


def test_a_test_that_appears_after_an_empty_plan_is_not_lost() -> None:
    plan = plan_shards([], Timings(), pools=POOLS)

    assert (case("new").nodeid,) == select(plan, 0, [case("new")]).run


def test_a_selection_says_what_vanished_and_what_is_new() -> None:
    tests = mixed(20)
    plan = plan_equal_shards(tests, Timings(), shards=2)
    gone = plan.shards[0].tests[0]
    now = [*(test for test in tests if test is not gone), case("new", 2)]

    first, last = select(plan, 1, now), select(plan, 2, now)

    assert ((gone.nodeid,), ()) == (first.vanished, first.new)
    assert ((), (case("new", 2).nodeid,)) == (last.vanished, last.new)
    assert {test.nodeid for test in now} == {*first.run, *last.run}
    assert (gone.nodeid, "planned, but no longer exists") in first.notes()
    assert (case("new", 2).nodeid, "not in the plan: run by this shard") in last.notes()


def test_repetitions_run_with_their_test() -> None:
    tests = mixed(20)
    plan = plan_equal_shards(tests, Timings(), shards=2)
    twins = [
        msgspec.structs.replace(test, nodeid=f"{test.nodeid}#2", collected_as=test.nodeid) for test in tests
    ]

    for shard in plan.shards:
        selection = select(plan, shard.number, [*tests, *twins])
        mine = {test.nodeid for test in shard.tests}
        assert (mine | {f"{nodeid}#2" for nodeid in mine}, ()) == ({*selection.run}, selection.new)


def test_the_last_shard_has_the_most_gpus() -> None:
    plan = plan_shards(mixed(), Timings(), pools=parse_pools(["a8:8:1", "z1:1:1:0.01"]))

    assert ["z1", "a8"] == [shard.pool for shard in plan.shards]
    assert () == select(plan, 1, [case("new", 8)]).new
    assert (case("new", 8).nodeid,) == select(plan, 2, [case("new", 8)]).new


@pytest.mark.parametrize("number", [0, -1, 4])
def test_a_shard_out_of_range_is_refused(number: int) -> None:
    plan = plan_equal_shards(mixed(), Timings(), shards=3)

    with pytest.raises(UsageError, match=f"shard {number} is not in the plan, which has 1 to 3"):
        select(plan, number, [])


def test_a_plan_survives_the_file() -> None:
    for plan in (
        plan_shards(mixed(), Timings(), pools=POOLS, revision="abc"),
        plan_equal_shards(mixed(1), Timings(), shards=3),  # empty shards take 0 seconds
    ):
        assert plan == decode_plan(encode_plan(plan))
        assert not decode_plan(encode_plan(plan)).is_changed


def test_equal_input_gives_equal_bytes() -> None:
    plans = {encode_plan(plan_shards(mixed(), Timings(), pools=POOLS)) for _ in range(3)}

    assert 1 == len(plans)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"version": 1}', b'{"version": "new"}'])
def test_what_is_no_plan_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"p\.json is not a plan"):
        decode_plan(data, "p.json")


def test_a_plan_of_another_version_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"p\.json is a plan of version 99, and this disttest reads version 1"
    ):
        decode_plan(b'{"version": 99, "shards": "whatever"}', "p.json")


def test_a_plan_of_another_state_is_refused() -> None:
    plan = plan_shards(mixed(), Timings(), pools=POOLS, revision="abc")

    check_revision(plan, "abc")
    check_revision(plan, "")
    with pytest.raises(UsageError, match="the plan was made for abc, not for def"):
        check_revision(plan, "def")


def test_a_plan_with_two_shards_of_one_number_is_refused() -> None:
    plan = plan_equal_shards(mixed(), Timings(), shards=2)
    raw = json.loads(encode_plan(plan))
    raw["shards"][1]["number"] = 1

    with pytest.raises(UsageError, match="lists shard 1 twice"):
        decode_plan(json.dumps(raw).encode())


def test_a_plan_with_a_test_in_two_shards_or_with_masked_names_is_not_run() -> None:
    plan = plan_equal_shards(mixed(), Timings(), shards=2)
    twice = msgspec.structs.replace(
        plan, shards=(plan.shards[0], msgspec.structs.replace(plan.shards[1], tests=plan.shards[0].tests))
    )

    masked = encode_plan(plan).replace(plan.shards[0].tests[0].nodeid.encode(), b"***")

    check_unchanged(decode_plan(encode_plan(plan)), Path("p.json"))
    for changed in (encode_plan(twice), masked):
        with pytest.raises(UsageError, match=r"p\.json was changed since it was written"):
            check_unchanged(decode_plan(changed), Path("p.json"))


Drawn = st.lists(
    st.tuples(st.sampled_from([None, 1, 2, 3, 8]), st.booleans(), st.integers(0, 3)), max_size=40
)


@given(drawn=Drawn, shards=st.integers(1, 9), lost=st.sets(st.integers(0, 39)), added=st.integers(0, 3))
def test_all_shards_together_run_every_test_once(drawn: list, shards: int, lost: set, added: int) -> None:
    """However a plan was made and whatever became of the tests since: none lost, none twice."""
    tests = [case(f"t{n}", size, warm=warm, file=f"f{f}.py") for n, (size, warm, f) in enumerate(drawn)]
    now = [test for n, test in enumerate(tests) if n not in lost] + [case(f"n{n}", 2) for n in range(added)]
    for plan in (
        plan_equal_shards(tests, Timings(), shards=shards),
        plan_by_world_size(tests, Timings()),
        plan_shards(tests, Timings(), pools=POOLS),
    ):
        numbers = [entry["shard"] for entry in render_matrix(plan)["include"]]
        run = [nodeid for number in numbers for nodeid in select(plan, number, now).run]
        assert sorted(test.nodeid for test in now) == sorted(run)


def gpu_case(name: str, size: int = 2, backend: str = "nccl", device: str = "cuda"):
    return case(name, size, backend=backend, device=device)


@pytest.mark.parametrize(
    ("planned", "here", "device"),
    [
        ([gpu_case("a")], [gpu_case("a")], "cuda"),
        ([gpu_case("a", backend="gloo")], [gpu_case("a", backend="gloo")], "cuda"),  # MIG slices
        ([case("a")], [case("a")], "cpu"),
        ([gpu_case("gone")], [], "cuda"),
        ([case("gone")], [], "cpu"),
        ([case("on_cpu")], [case("on_cpu")], "cuda"),  # device("cpu"): it computes there on GPU runners, too
        ([case("on_cpu"), case("gone")], [case("on_cpu")], "cuda"),
        ([gpu_case("a"), case("on_cpu")], [gpu_case("a"), case("on_cpu")], "cuda"),
        ([case("ordinary", None)], [], "cuda"),
        ([], [gpu_case("new")], "cuda"),
    ],
)
def test_a_shard_for_machines_like_this_one_is_taken(planned: list, here: list, device: str) -> None:
    plan = plan_equal_shards(planned, Timings(), shards=1)

    check_device(plan, 1, select(plan, 1, here), device)


def test_a_shard_for_gpus_is_refused_where_there_are_none() -> None:
    plan = plan_shards([gpu_case("a", 8), case("b", None)], Timings(), pools=POOLS)
    wide = next(shard for shard in plan.shards if shard.pool == "gpu8")
    selection = select(plan, wide.number, [case("a", 8), case("b", None)])

    with pytest.raises(NotEnoughDevices, match=r"worlds on GPUs \(8xnccl\).*a runner of the pool 'gpu8'"):
        check_device(plan, wide.number, selection, "cpu")


def test_a_shard_for_the_cpu_is_refused_on_gpus() -> None:
    plan = plan_equal_shards([case("a"), case("b")], Timings(), shards=1)
    selection = select(plan, 1, [gpu_case("a"), gpu_case("b")])

    with pytest.raises(UsageError, match=r"planned for the CPU \(2xgloo\).*plan with --device cuda"):
        check_device(plan, 1, selection, "cuda")


def test_shards_for_gpus_are_expected_to_take_as_long_as_others() -> None:
    """Four tests of 10 s on two GPUs, two at once; a world on the CPU of 25 s beside them takes no GPU."""
    tests = [gpu_case(f"t{n}", 1) for n in range(4)]
    samples = [Sample(test=test.nodeid, duration_s=10, size=1, backend="nccl") for test in tests]
    wide = case("wide", 4)
    samples.append(Sample(test=wide.nodeid, duration_s=25, size=4, backend="gloo"))

    (shard,) = plan_equal_shards(tests, Timings(samples), shards=1, slots=2).shards
    (both,) = plan_equal_shards([*tests, wide], Timings(samples), shards=1, slots=2).shards

    assert 26 == shard.expected_s  # two after another, each with the start of a world on GPUs (3 s)
    assert 26 == both.expected_s
    assert pytest.approx(26 / 60 * 2) == both.gpu_minutes


def test_worlds_on_the_cpu_take_no_gpu_of_a_pool() -> None:
    """They go to the cheapest runners, where each counts as one; only where all compute on the CPU is it the slots."""
    beside = plan_shards([gpu_case("a", 8), case("b", 16)], Timings(), pools=POOLS)

    assert {"gpu1": ["b[16xgloo]"], "gpu8": ["a[8xnccl]"]} == {
        shard.pool: [test.name for test in shard.tests] for shard in beside.shards
    }
    with pytest.raises(NotEnoughDevices, match="no pool holds 16 ranks"):
        plan_shards([case("b", 16)], Timings(), pools=POOLS)
