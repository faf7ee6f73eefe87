"""The small helpers under the field's names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from disttest.testing import barrier, helpers, rpc
from disttest.testing.modules import SaveForwardInputsModel


@pytest.mark.covers("HN-006", "HN-061")
def test_time_limits() -> None:
    assert helpers.get_timeout("module.Case.test_ddp_uneven_inputs") == 400
    assert helpers.get_timeout("module.Case.test_DistributedDataParallel") == 500
    assert helpers.get_timeout("module.Case.test_other") == helpers.TIMEOUT_DEFAULT


@pytest.mark.covers("HN-062")
def test_captured_output() -> None:
    before = sys.stdout
    with helpers.captured_output() as (out, err):
        print("to out")
        print("to err", file=sys.stderr)
    assert (out.getvalue(), err.getvalue()) == ("to out\n", "to err\n")
    assert sys.stdout is before


@pytest.mark.covers("HN-059")
def test_a_store_on_a_taken_port_is_tried_again(monkeypatch) -> None:
    ports = []
    real = dist.TCPStore

    def store(addr, port, *args, **kwargs):
        ports.append(port)
        if len(ports) < 3:
            raise RuntimeError("Address already in use")
        return real(addr, port, *args, **kwargs)

    monkeypatch.setattr(dist, "TCPStore", store)
    monkeypatch.setattr(helpers.tenacity.Retrying, "sleep", lambda self, seconds: None, raising=False)
    created = helpers.create_tcp_store(wait_for_workers=False)
    created.set("key", "value")
    assert created.get("key") == b"value"
    assert len(set(ports)) == 3


@pytest.mark.covers("HN-059")
def test_a_store_that_can_not_be_had_says_so(monkeypatch) -> None:
    def store(*args, **kwargs):
        raise RuntimeError("Address already in use")

    monkeypatch.setattr(dist, "TCPStore", store)
    monkeypatch.setattr(helpers.tenacity.nap.time, "sleep", lambda seconds: None)
    with pytest.raises(RuntimeError, match="Failing after 10 retries with error: Address already in use"):
        helpers.create_tcp_store()


@pytest.mark.covers("HN-059")
def test_another_error_of_the_store_is_not_retried(monkeypatch) -> None:
    calls = []

    def store(*args, **kwargs):
        calls.append(1)
        raise RuntimeError("no such host")

    monkeypatch.setattr(dist, "TCPStore", store)
    with pytest.raises(RuntimeError, match="no such host"):
        helpers.create_tcp_store()
    assert len(calls) == 1


@pytest.mark.covers("HN-060")
def test_create_device() -> None:
    assert helpers.create_device() is not None
    assert helpers.create_device(interface="lo") is not None


@pytest.mark.slow("six variants of sparse tensors for three ranks")
@pytest.mark.covers("HN-063")
@pytest.mark.parametrize("num_inputs", [1, 2])
def test_sparse_inputs_sum_to_what_is_expected(num_inputs) -> None:
    world_size = 3
    per_rank = [
        helpers.simple_sparse_reduce_tests(rank, world_size, num_inputs) for rank in range(world_size)
    ]
    assert len(per_rank[0]) == 6
    for variant in range(6):
        inputs = [tensor for rank in per_rank for tensor in rank[variant][0]]
        outputs = per_rank[0][variant][1]
        assert len(outputs) == num_inputs
        total = sum(tensor.to_dense() for tensor in inputs)
        torch.testing.assert_close(outputs[0].to_dense(), total)
    shapes = [tuple(variant[0][0].shape) for variant in per_rank[0]]
    size = world_size * num_inputs
    assert shapes == [(size,), (size,) * 2, (size,) * 3, (size, 2), (size, 2, 2), (size, 2, 2, 2)]


@pytest.mark.covers("HN-064")
@pytest.mark.parametrize(
    ("found", "expected"),
    [(4, {0: [0], 1: [1]}), (2, {0: [0], 1: [1]}), (1, {0: [], 1: []}), (0, {0: [], 1: []})],
)
def test_init_multigpu_helper(monkeypatch, found, expected) -> None:
    monkeypatch.setattr(helpers, "device_count", lambda: found)
    assert helpers.init_multigpu_helper(2, "nccl") == expected


@pytest.mark.covers("HN-003", "HN-004", "HN-065", "HN-066")
def test_temporary_directories(monkeypatch) -> None:
    monkeypatch.setenv("TEMP_DIR", "")
    monkeypatch.setenv("INIT_METHOD", "")
    helpers.initialize_temp_directories()
    root = Path(os.environ["TEMP_DIR"])
    assert {path.name for path in root.iterdir()} == {"barrier", "test_dir", "init_dir"}
    assert os.environ["INIT_METHOD"] == f"file://{root}/init_dir/shared_init_file"
    helpers.cleanup_temp_dir()
    assert not root.exists()
    helpers.initialize_temp_directories("tcp://somewhere")
    assert os.environ["INIT_METHOD"] == "tcp://somewhere"
    helpers.cleanup_temp_dir()


@pytest.mark.covers("HN-122", "HN-123")
@pytest.mark.parametrize(("code", "transports"), [(0, ["shm", "uv"]), (1, None)])
def test_efa_is_asked_once(monkeypatch, code, transports) -> None:
    calls = []
    monkeypatch.setattr(
        helpers.subprocess,
        "run",
        lambda *args, **kwargs: calls.append(args) or SimpleNamespace(returncode=code),
    )
    helpers.has_efa.cache_clear()
    assert helpers.tp_transports() == transports
    assert helpers.tp_transports() == transports
    assert calls == [(["fi_info", "-p", "efa", "-t", "FI_EP_RDM"],)]
    helpers.has_efa.cache_clear()


@pytest.mark.covers("HN-122")
def test_no_efa_without_its_tool(monkeypatch) -> None:
    def run(*args, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr(helpers.subprocess, "run", run)
    helpers.has_efa.cache_clear()
    assert helpers.has_efa() is False
    helpers.has_efa.cache_clear()


@pytest.mark.covers("HN-008", "HN-048")
@pytest.mark.parametrize(
    "before", [{}, {"TORCH_NCCL_BLOCKING_WAIT": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}]
)
def test_blocking_wait_puts_everything_back(monkeypatch, before) -> None:
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)

    @helpers.with_nccl_blocking_wait
    def test() -> None:
        assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"
        assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ
        raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        test()
    found = {k: v for k, v in os.environ.items() if k.startswith("TORCH_NCCL_")}
    assert found == before


@pytest.mark.covers("HN-007", "HN-049")
def test_debug_levels_are_put_back_after_an_error(monkeypatch) -> None:
    monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG", raising=False)
    seen = []
    monkeypatch.setattr(dist, "barrier", lambda: seen.append("barrier"))

    @helpers.with_dist_debug_levels(["OFF", "DETAIL"])
    def test() -> str:
        seen.append(os.environ["TORCH_DISTRIBUTED_DEBUG"])
        assert dist.get_debug_level().name == os.environ["TORCH_DISTRIBUTED_DEBUG"]
        return "last"

    assert test() == "last"
    assert seen == ["OFF", "barrier", "DETAIL", "barrier"]
    assert "TORCH_DISTRIBUTED_DEBUG" not in os.environ
    assert dist.get_debug_level() == dist.DebugLevel.OFF


@pytest.mark.covers("HN-058")
def test_verify_ddp_error_logged() -> None:
    model = SimpleNamespace(
        _get_ddp_logging_data=lambda: {"iteration": 1, "has_error": 1, "error": "bad thing"}
    )
    helpers.verify_ddp_error_logged(model, "bad\nException raised from somewhere")
    with pytest.raises(AssertionError, match="Did not find expected good"):
        helpers.verify_ddp_error_logged(model, "good")
    with pytest.raises(AssertionError, match="Expected 'iteration'"):
        helpers.verify_ddp_error_logged(SimpleNamespace(_get_ddp_logging_data=dict), "bad")


@pytest.mark.covers("HN-160", "HN-161")
def test_modules_record_their_inputs() -> None:
    inputs: dict = {}
    model = SaveForwardInputsModel(inputs, cast_forward_inputs=True).to(torch.float64)
    x = torch.ones(2, 100, dtype=torch.float32)
    assert model(x).dtype is torch.float64
    assert set(inputs) == {model, model.c1, model.c2}
    assert inputs[model] is x
    assert inputs[model.c2].dtype is torch.float64


@pytest.mark.covers("RU-01", "RU-03", "RU-09", "RU-10")
def test_small_names_of_rpc() -> None:
    assert rpc.INIT_METHOD_TEMPLATE.format(file_name="/x") == "file:///x"
    assert rpc.worker_name(3) == "worker3"
    assert rpc.noop() is None
    events = [SimpleNamespace(name="rpc_sync#add"), SimpleNamespace(name="rpc_sync#mul")]
    assert rpc.get_function_event(events, "rpc_sync") is events[0]
    with pytest.raises(IndexError):
        rpc.get_function_event(events, "nothing")


@pytest.mark.covers("RU-05", "RU-06", "RU-07")
def test_waiting_for_references_ends(monkeypatch) -> None:
    info = {"num_pending_futures": "1", "num_pending_users": "2", "num_owner_rrefs": "3", "num_forks": "4"}
    monkeypatch.setattr(rpc.rpc, "_rref_context_get_debug_info", lambda: info)
    assert rpc.get_num_owners_and_forks() == ("3", "4")
    with pytest.raises(ValueError, match="had 1 pending futures and 2 pending users"):
        rpc.wait_until_pending_futures_and_users_flushed(timeout=0)
    monkeypatch.setattr(rpc.rpc, "rpc_sync", lambda *args, **kwargs: ("3", "4"))
    rpc.wait_until_owners_and_forks_on_rank(3, 4, rank=1)
    with pytest.raises(ValueError, match="for 1 owners and 4 forks on rank"):
        rpc.wait_until_owners_and_forks_on_rank(1, 4, rank=1, timeout=-1)
    info.update(num_pending_futures="0", num_pending_users="0")
    rpc.wait_until_pending_futures_and_users_flushed(timeout=0)


@pytest.mark.covers("RU-04")
def test_waiting_for_a_failure_takes_the_one_that_matches(monkeypatch) -> None:
    errors = iter([None, RuntimeError("something else"), RuntimeError("connection closed")])

    def rpc_sync(*args, **kwargs):
        error = next(errors)
        if error:
            raise error

    monkeypatch.setattr(rpc.rpc, "rpc_sync", rpc_sync)
    monkeypatch.setattr(rpc, "sleep", lambda seconds: None)
    assert rpc.wait_until_node_failure(1, "closed") == "connection closed"


@pytest.mark.covers("HN-011", "RU-20", "RU-21", "RU-22")
def test_agents(monkeypatch) -> None:
    monkeypatch.setattr(rpc, "tp_transports", lambda: None)

    class TensorPipe(rpc.TensorPipeRpcAgentTestFixture):
        file_name = "/x"

    agent = TensorPipe()
    assert agent.world_size == 4
    assert agent.init_method == "file:///x"
    assert agent.rpc_backend.name == "TENSORPIPE"
    assert agent.rpc_backend_options is not agent.rpc_backend_options
    assert agent.rpc_backend_options.init_method == "file:///x"
    monkeypatch.setenv("RPC_INIT_WITH_TCP", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert agent.init_method == "tcp://127.0.0.1:1234"


@pytest.mark.covers("RU-22")
def test_the_faulty_agent() -> None:
    class Faulty(rpc.FaultyRpcAgentTestFixture):
        file_name = "/x"

    agent = Faulty()
    assert agent.rpc_backend.name == "FAULTY_TENSORPIPE"
    options = agent.rpc_backend_options
    assert (options.num_worker_threads, options.num_fail_sends) == (8, 3)
    assert options.messages_to_fail == list(rpc.RETRYABLE_MESSAGES)
    assert options.messages_to_delay == {"PYTHON_CALL": 1.5, "SCRIPT_CALL": 1.5}
    agent.setup_fault_injection(["PYTHON_CALL"], {})
    assert agent.rpc_backend_options.messages_to_fail == ["PYTHON_CALL"]
    assert agent.rpc_backend_options.messages_to_delay == {}


@pytest.mark.covers("RU-24")
def test_generated_classes() -> None:
    class Suite:
        pass

    made = rpc.generate_tests("TensorPipe", rpc.TensorPipeRpcAgentTestFixture, [Suite], "some.module")
    assert list(made) == ["TensorPipeSuite"]
    cls = made["TensorPipeSuite"]
    assert cls.__module__ == "some.module"
    assert cls.__mro__[1:3] == (Suite, rpc.TensorPipeRpcAgentTestFixture)
    assert issubclass(cls, rpc.SpawnHelper)


def test_file_barrier(monkeypatch, tmp_path) -> None:
    # covers: CD-F27 CD-F29
    (tmp_path / "barrier").mkdir()
    monkeypatch.setenv("TEMP_DIR", str(tmp_path))
    (tmp_path / "barrier" / "stale").write_text("7")
    barrier.Barrier.init()
    assert list((tmp_path / "barrier").iterdir()) == []
    barrier.Barrier.sync(wait_for=1)
    with pytest.raises(RuntimeError, match="barrier timeout"):
        barrier.Barrier.sync(wait_for=2, timeout=0)
    barrier.Barrier.init()
