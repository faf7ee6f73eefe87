"""The circuit breaker: what makes it suspicious, and what it decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttest.model import Cause, Outcome, RankEnd, RankRecord, Slot, TestCase, TestResult
from disttest.plugins.gpus.breaker import (
    Breaker,
    BreakerState,
    Cleared,
    GiveUp,
    Prove,
    QuarantineDecision,
    find_device_sign,
)
from disttest.results.verdict import results_not_run

GPUS = tuple(Slot(name=f"gpu:{n}", device="cuda", index=n, uuid=f"GPU-{n}") for n in range(4))
CPUS = (Slot(name="cpu:0"), Slot(name="cpu:1", index=1))
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def failed(nodeid, message=ECC, **facts):
    return TestResult(nodeid=nodeid, outcome=Outcome.FAILED, message=message, **facts)


def suspicious(*nodeids, slots=GPUS[:2], narrowest=1):
    """A breaker that has seen these tests fail in a suspicious way, and its last answer."""
    breaker = Breaker(GPUS, narrowest=narrowest)
    answers = [breaker.observe(failed(nodeid), slots) for nodeid in nodeids]
    return breaker, answers[-1]


@pytest.mark.parametrize(
    "message",
    [
        ECC,
        "CUDA error: unspecified launch failure",
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "RuntimeError: No CUDA GPUs are available",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:268, unhandled system error",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "pynvml.NVMLError_GpuIsLost: GPU is lost",
        "Failed to initialize NVML: Unknown Error",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm",
        "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
    ],
)
def test_looks_like_the_device(message):
    assert find_device_sign(failed("t", message))


@pytest.mark.parametrize(
    "message",
    [
        "AssertionError: 3 != 4",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        "RuntimeError: CUDA error: device-side assert triggered",
        "ValueError: world size 3 is odd",
        "RuntimeError: [rank1] Timed out waiting 30000ms for recv",
        "ncclInvalidUsage: Duplicate GPU detected",
        "",
    ],
)
def test_looks_like_the_test(message):
    assert find_device_sign(failed("t", message)) == ""


def test_a_passing_test_is_never_suspicious():
    assert find_device_sign(TestResult(nodeid="t", outcome=Outcome.PASSED, message=ECC)) == ""


def test_a_rank_that_the_driver_ended_is_a_sign():
    rank = RankRecord(rank=1, end=RankEnd.SIGNALLED, signal=9)

    assert find_device_sign(failed("t", "rank 1 died", ranks=(rank,))) == "rank 1 was ended by SIGKILL"


def test_a_rank_that_segfaulted_is_the_tests_own():
    rank = RankRecord(rank=1, end=RankEnd.SIGNALLED, signal=11)

    assert find_device_sign(failed("t", "rank 1 died", ranks=(rank,))) == ""


def test_victims_are_not_asked():
    rank = RankRecord(rank=1, end=RankEnd.KILLED, signal=9, message=ECC)

    assert find_device_sign(failed("t", "assert 1 == 2", ranks=(rank,))) == ""


def test_one_test_does_not_trip_it():
    breaker, answer = suspicious("a")

    assert answer is None
    assert BreakerState.CLOSED is breaker.state


def test_the_same_test_twice_does_not_trip_it():
    _, answer = suspicious("a", "a")

    assert answer is None


def test_two_tests_ask_for_proof_of_their_slots():
    breaker, answer = suspicious("a", "b")

    assert isinstance(answer, Prove)
    assert GPUS[:2] == answer.slots
    assert "2 tests failed in a way that looks like the device: a: an uncorrectable" in answer.reason
    assert BreakerState.PROVING is breaker.state


def test_slots_of_both_tests_are_proved():
    breaker = Breaker(GPUS)
    breaker.observe(failed("a"), GPUS[:1])

    answer = breaker.observe(failed("b"), GPUS[3:])

    assert answer is not None
    assert (GPUS[0], GPUS[3]) == answer.slots


def test_failures_while_proving_join_the_case():
    breaker, _ = suspicious("a", "b")

    assert breaker.observe(failed("c"), GPUS[:1]) is None
    assert breaker.proved({"gpu:0": "bad"}) == QuarantineDecision(
        broken={"gpu:0": "bad"}, again=("a", "b", "c")
    )


def test_failures_on_cpu_slots_never_trip_it():
    breaker = Breaker(CPUS)

    assert [breaker.observe(failed(nodeid), CPUS) for nodeid in "abcd"] == [None] * 4


def test_ordinary_failures_never_trip_it():
    breaker = Breaker(GPUS)

    assert [breaker.observe(failed(str(n), "assert 1 == 2"), GPUS) for n in range(100)] == [None] * 100


def test_a_broken_gpu_is_taken_out_and_its_tests_run_again():
    breaker, _ = suspicious("a", "b")

    decision = breaker.proved({"gpu:1": "matmul failed on GPU 1"})

    assert QuarantineDecision(broken={"gpu:1": "matmul failed on GPU 1"}, again=("a", "b")) == decision
    assert (GPUS[0], GPUS[2], GPUS[3]) == breaker.slots
    assert BreakerState.CLOSED is breaker.state


def test_only_tests_of_the_broken_gpu_run_again():
    breaker = Breaker(GPUS)
    breaker.observe(failed("a"), GPUS[:1])
    breaker.observe(failed("b"), GPUS[1:2])

    decision = breaker.proved({"gpu:1": "bad"})

    assert QuarantineDecision(broken={"gpu:1": "bad"}, again=("b",)) == decision


def test_too_few_left_opens_it_for_good():
    breaker, _ = suspicious("a", "b", narrowest=4)

    decision = breaker.proved({"gpu:0": "copy failed on GPU 0 (GPU-0): gave no answer"})

    assert isinstance(decision, GiveUp)
    expected = "not run: copy failed on GPU 0 (GPU-0): gave no answer (3 of 4 needed devices are left)"
    assert expected == decision.reason
    assert BreakerState.OPEN is breaker.state
    assert breaker.observe(failed("c"), GPUS) is None


def test_healthy_devices_clear_it_and_it_suspects_less_easily():
    breaker, _ = suspicious("a", "b")
    assert Cleared() == breaker.proved({})

    answers = [breaker.observe(failed(nodeid), GPUS) for nodeid in "cdef"]

    assert [type(answer) for answer in answers] == [type(None)] * 3 + [Prove]


def test_the_drivers_own_word_needs_no_second_test():
    breaker, answer = suspicious("a")
    assert answer is None

    assert QuarantineDecision(broken={"gpu:1": "GPU is lost"}, again=("a",)) == breaker.lost(
        {"gpu:1": "GPU is lost"}
    )
    assert BreakerState.CLOSED is breaker.state


def test_it_says_nothing_about_other_slots():
    breaker, _ = suspicious("a", slots=GPUS[:1])

    assert () == breaker.lost({"gpu:3": "GPU is lost"}).again
    assert breaker.suspects("a")
    assert isinstance(breaker.observe(failed("b"), GPUS[1:2]), Prove)


def test_a_proof_nobody_asked_for_is_a_bug():
    with pytest.raises(AssertionError, match="while the breaker was closed"):
        Breaker(GPUS).proved({})


def test_the_rest_of_the_run_is_one_error_for_each_suite():
    tests = [
        TestCase(
            nodeid=f"{suite}{n}", slug=f"{suite}{n}", classname="", name="", file="", line=1, suite=suite
        )
        for suite in ("ddp", "rpc")
        for n in range(3)
    ]

    results = list(results_not_run(tests, "not run: GPU 3", at_s=5.0))

    assert [Outcome.ERROR, Outcome.SKIPPED, Outcome.SKIPPED] * 2 == [r.outcome for r in results]
    assert [Cause.INFRASTRUCTURE, None, None] * 2 == [r.cause for r in results]
    assert {"not run: GPU 3"} == {r.message for r in results}


EVENTS = st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.booleans())


@given(st.lists(EVENTS, max_size=60), st.data())
def test_it_never_uses_a_broken_slot_again_and_always_ends_its_proofs(events, data):
    breaker, gone = Breaker(GPUS, narrowest=2), set()
    for nodeid, gpu, bad in events:
        answer = breaker.observe(failed(nodeid) if bad else failed(nodeid, "assert 0"), GPUS[gpu : gpu + 1])
        if answer is not None:
            assert not gone & {slot.name for slot in answer.slots}
            broken = data.draw(st.sets(st.sampled_from([slot.name for slot in answer.slots])))
            decision = breaker.proved(dict.fromkeys(broken, "bad"))
            gone |= broken
            assert isinstance(decision, GiveUp) == (len(GPUS) - len(gone) < 2)
        assert not gone & {slot.name for slot in breaker.slots}
        assert BreakerState.PROVING is not breaker.state
