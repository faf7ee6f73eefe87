"""Decorators that skip: what they ask, and that they can be asked before anything runs."""

from __future__ import annotations

import sys
import unittest

import pytest

from disttest.results.exit_codes import TEST_SKIPS
from disttest.testing import skips


@pytest.fixture
def devices(monkeypatch):
    def have(count: int) -> None:
        monkeypatch.setattr(skips, "device_count", lambda: count)

    have(0)
    return have


@pytest.fixture
def runner(monkeypatch):
    def export(backend: str, size: int) -> None:
        monkeypatch.setenv("BACKEND", backend)
        monkeypatch.setenv("WORLD_SIZE", str(size))

    return export


def outcome(decorator) -> str:
    """``ran``, or the key of the table that the rank leaves with; asked early and when called."""
    decorated = decorator(lambda: "ran")
    early = skips.early_skip(decorated)
    try:
        result = decorated()
    except SystemExit as leave:
        key = next(key for key, skip in TEST_SKIPS.items() if skip.exit_code == leave.code)
        assert early is not None
        return key
    assert early is None
    return result


@pytest.mark.covers("HN-042", "HN-002")
@pytest.mark.parametrize(
    ("found", "size", "expected"), [(0, 2, "no_cuda"), (1, 2, "multi-gpu-2"), (2, 2, "ran")]
)
def test_skip_if_no_gpu(devices, runner, found, size, expected) -> None:
    devices(found)
    runner("nccl", size)
    assert outcome(skips.skip_if_no_gpu) == expected


@pytest.mark.covers("HN-043", "HN-001")
@pytest.mark.parametrize(
    ("backend", "size", "expected"), [("gloo", 2, "small_worldsize"), ("gloo", 3, "ran"), ("mpi", 2, "ran")]
)
def test_skip_if_small_worldsize(runner, backend, size, expected) -> None:
    runner(backend, size)
    assert outcome(skips.skip_if_small_worldsize) == expected


@pytest.mark.covers("HN-044")
@pytest.mark.parametrize(
    ("backend", "size", "expected"), [("gloo", 3, "odd_worldsize"), ("gloo", 4, "ran"), ("mpi", 3, "ran")]
)
def test_skip_if_odd_worldsize(runner, backend, size, expected) -> None:
    runner(backend, size)
    assert outcome(skips.skip_if_odd_worldsize) == expected


@pytest.mark.covers("HN-045", "HN-047")
@pytest.mark.parametrize(
    "decorator", [skips.require_n_gpus_for_nccl_backend, lambda n, b: skips.nccl_skip_if_lt_x_gpu(b, n)]
)
@pytest.mark.parametrize(
    ("backend", "found", "expected"), [("nccl", 1, "multi-gpu-2"), ("nccl", 2, "ran"), ("gloo", 0, "ran")]
)
def test_gpus_for_nccl_only(devices, decorator, backend, found, expected) -> None:
    devices(found)
    assert outcome(decorator(2, backend)) == expected


@pytest.mark.covers("HN-046", "HN-038", "HN-024")
@pytest.mark.parametrize(
    ("wanted", "found", "allow_cpu", "expected"),
    [
        (1, 0, False, "multi-gpu-1"),
        (2, 2, False, "ran"),
        (2, 0, True, "ran"),
        (2, 1, True, "multi-gpu-2"),
        (9, 8, False, "generic"),
    ],
)
def test_skip_if_lt_x_gpu(devices, wanted, found, allow_cpu, expected) -> None:
    devices(found)
    assert outcome(skips.skip_if_lt_x_gpu(wanted, allow_cpu=allow_cpu)) == expected


@pytest.mark.covers("HN-046")
def test_a_class_may_handle_the_skip_itself(devices) -> None:
    class Case:
        told = ""

        def _handle_test_skip(self, message: str) -> None:
            self.told = message

        @skips.skip_if_lt_x_gpu(2)
        def test(self) -> None:
            raise AssertionError

    case = Case()
    case.test()
    assert case.told == "Need at least 2 CUDA devices"


@pytest.mark.covers("HN-047a")
def test_an_import_error_of_the_test_itself_is_an_error(monkeypatch) -> None:
    assert outcome(skips.import_transformers_or_skip()) == "importerror"
    fake = type(sys)("transformers")
    fake.AutoModelForMaskedLM = fake.BertConfig = object
    monkeypatch.setitem(sys.modules, "transformers", fake)

    @skips.import_transformers_or_skip()
    def test() -> None:
        raise ImportError("the test's own")

    with pytest.raises(ImportError, match="the test's own"):
        test()


@pytest.mark.covers("HN-047b")
def test_skip_if_rocm(monkeypatch) -> None:
    assert outcome(skips.skip_if_rocm) == "ran"
    monkeypatch.setattr(skips, "_on_rocm", lambda: True)
    assert outcome(skips.skip_if_rocm) == "skipIfRocm"
    assert skips.skip_if_rocm(lambda: None).skip_if_rocm is True


def marked(decorator) -> str:
    """The reason that a decorator marks a test with; empty if it does not."""
    decorated = decorator(lambda: None)
    return (
        getattr(decorated, "__unittest_skip_why__", "")
        if getattr(decorated, "__unittest_skip__", False)
        else ""
    )


@pytest.fixture
def without_nccl(monkeypatch):
    """Whichever build of torch this is."""
    import torch

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "is_nccl_available", lambda: False)


@pytest.mark.covers("HN-050", "HN-051", "HN-053", "HN-054")
def test_requires_a_backend(without_nccl) -> None:
    assert marked(skips.requires_gloo()) == ""
    assert marked(skips.requires_nccl()) == "c10d was not compiled with the NCCL backend"
    assert marked(skips.requires_ucc()) == "c10d was not compiled with the UCC backend"
    assert marked(skips.requires_mpi()) == "c10d was not compiled with the MPI backend"
    assert marked(skips.skip_if_win32()) == ""


@pytest.mark.covers("HN-052")
def test_requires_nccl_version(without_nccl, monkeypatch) -> None:
    import torch

    assert (
        marked(skips.requires_nccl_version((2, 10), "why")) == "c10d was not compiled with the NCCL backend"
    )
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 9))
    reason = marked(skips.requires_nccl_version((2, 10), "why"))
    assert reason == "Requires NCCL version greater than or equal to: 2.10, found: (2, 9), reason: why"
    assert marked(skips.requires_nccl_version((2, 9), "why")) == ""


@pytest.mark.covers("HN-055")
def test_requires_some_backend_of_an_accelerator(without_nccl) -> None:
    assert marked(skips.requires_accelerator_dist_backend()).startswith(
        "No accelerator communication backend"
    )
    assert marked(skips.requires_accelerator_dist_backend(["nccl", "gloo"])) == ""


@pytest.mark.covers("HN-056")
def test_a_required_world_size_is_kept_for_the_harness(devices) -> None:
    assert marked(skips.requires_world_size(3)) == "requires 3 GPUs, found 0"
    devices(3)

    class Case(unittest.TestCase):
        @skips.requires_world_size(3)
        def test_three(self) -> None:
            pass

        def test_any(self) -> None:
            pass

    assert marked(skips.requires_world_size(3)) == ""
    assert skips.get_required_world_size(Case("test_three"), 4) == 3
    assert skips.get_required_world_size(Case("test_any"), 4) == 4


@pytest.mark.covers("HN-057")
def test_predicates(devices) -> None:
    devices(2)
    assert (skips.at_least_x_gpu(2), skips.at_least_x_gpu(3)) == (True, False)
    assert (skips.requires_ddp_rank("cuda"), skips.requires_ddp_rank("cpu")) == (True, False)


@pytest.mark.covers("HN-040", "HN-041")
def test_tables_of_backends() -> None:
    assert skips.DistTestCases.skip_collective["sendrecv anysource"] == {"nccl", "ucc", "xccl"}
    assert skips.DistTestCases.skip_collective["reduce"] == set()
    assert skips.DistTestCases.backend_feature["ddp"] == {"nccl", "gloo", "ucc"}
    assert skips.DistTestCases.backend_feature["plugin"] == set()
