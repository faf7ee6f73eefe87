"""Drift shows: the public names of the installed torch's module, against ours."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import types

import pytest
from torch.testing._internal import common_distributed, dist_utils
from torch.testing._internal.distributed.rpc import (
    faulty_rpc_agent_test_fixture,
    rpc_agent_test_fixture,
    tensorpipe_rpc_agent_test_fixture,
)

from disttest import testing
from disttest.results.exit_codes import TEST_SKIPS

NOT_OURS = {
    "C10dTorchCommsTestBase": "torchcomms is out of scope",
    "setup_torchcomms_pg": "torchcomms is out of scope",
    "IS_SANDCASTLE": "another company's CI",
    "HAS_ACCELERATOR": "a constant of the machine at import; ask torch.accelerator",
    "PLATFORM_SUPPORTS_SYMM_MEM": "a property of a GPU, not of a harness",
    "evaluate_platform_supports_symm_mem": "a property of a GPU, not of a harness",
    "requires_multicast_support": "a property of a GPU, not of a harness",
    "requires_nccl_shrink": "requires_nccl_version((2, 27), ...) says the same",
    "sm_is_or_higher_than": "a property of a GPU, not of a harness",
    "skip_if_rocm_arch_multiprocess": "a property of a GPU, not of a harness",
    "skip_if_rocm_ver_lessthan_multiprocess": "a property of a GPU, not of a harness",
    "retrieve_result_from_completion_queue": "results arrive as messages here, there is no queue",
    "tmp_dir": "the directory is exported as TEMP_DIR",
    "logger": "not a name for test authors",
    "trace_log": "not a name for test authors",
    "TORCHCOMM_HAS_GLOO": "torchcomms is out of scope",
    "TORCHCOMM_HAS_NCCL": "torchcomms is out of scope",
    "TORCHCOMM_HAS_NCCLX": "torchcomms is out of scope",
    "TORCHCOMM_HAS_RCCL": "torchcomms is out of scope",
    "TORCHCOMM_HAS_RCCLX": "torchcomms is out of scope",
    "TORCHCOMM_HAS_XCCL": "torchcomms is out of scope",
    "retryable_message_types": "rpc.RETRYABLE_MESSAGES",
    "default_messages_to_delay": "the defaults of FaultyRpcAgentTestFixture",
}
NOT_TORCHS = {
    "World",
    "current_world",
    "Barrier",
    "file_lock",
    "RanksFailed",
    "find_free_port",
    "FILE_SCHEMA",
    "expect_deadlock",
}
NOT_TORCHS |= {"SpawnHelper", "generate_tests"}  # torch has them in rpc_utils, which imports every suite
NOT_TORCHS |= {"skip_if_rocm", "MultiProcContinousTest"}  # older torch

SOURCES = (
    common_distributed,
    dist_utils,
    rpc_agent_test_fixture,
    tensorpipe_rpc_agent_test_fixture,
    faulty_rpc_agent_test_fixture,
)


def own_names(module: types.ModuleType) -> set[str]:
    """Names that the module defines: functions, classes, and constants that it assigns by itself."""
    source = inspect.getsource(module)
    found = set()
    for name, value in vars(module).items():
        if name.startswith("_") or isinstance(value, types.ModuleType):
            continue
        home = getattr(value, "__module__", None)
        assigned = f"\n{name} = " in source or f"\n{name}: " in source or f"\n    {name} = " in source
        if home == module.__name__ or (assigned and not inspect.isroutine(value)):
            found.add(name)
    return found


TORCHS = set().union(*(own_names(module) for module in SOURCES))


def test_we_have_every_name_of_the_installed_torch_or_a_reason() -> None:
    missing = TORCHS - set(testing.__all__) - set(NOT_OURS)
    assert missing == set(), "torch has new names: take them into disttest.testing, or give the reason here"


def test_no_name_of_ours_has_gone_from_torch() -> None:
    gone = set(testing.__all__) - TORCHS - NOT_TORCHS - {"_dynamo_dist_per_rank_init"}
    assert gone == set(), "torch has dropped these names: say so in docs/testing-api.md and here"


@pytest.mark.parametrize("name", sorted(NOT_OURS))
def test_every_reason_is_still_about_a_name_of_torch(name) -> None:
    assert name in TORCHS or any(hasattr(module, name) for module in SOURCES)


@pytest.mark.covers("HN-020")
def test_the_skip_table_is_torchs() -> None:
    theirs = {key: tuple(skip) for key, skip in common_distributed.TEST_SKIPS.items()}
    assert {key: tuple(skip) for key, skip in TEST_SKIPS.items()} == theirs


CALLABLES = sorted(
    name
    for name in TORCHS & set(testing.__all__)
    if inspect.isfunction(next(getattr(m, name) for m in SOURCES if hasattr(m, name)))
)


@pytest.mark.parametrize("name", CALLABLES)
def test_functions_take_what_torchs_take(name) -> None:
    theirs = inspect.signature(next(getattr(m, name) for m in SOURCES if hasattr(m, name))).parameters
    ours = inspect.signature(getattr(testing, name)).parameters
    single = len(theirs) == 1  # a decorator's or a helper's only argument may have another name
    assert single or [n for n in theirs if n not in ours] == []


MEMBERS = {
    "MultiProcessTestCase": """world_size destroy_pg_upon_exit run_test _run _spawn_processes _join_processes
        join_or_run
        is_master _current_test_name setUp tearDown MAIN_PROCESS_RANK TEST_ERROR_EXIT_CODE _should_stop_test_suite""",
    "DistributedTestBase": "backend create_pg rank_to_device",
    "MultiThreadedTestCase": """world_size perThreadSetUp perThreadTearDown _spawn_threads _run
        run_test_with_threaded_pg
        assertEqualOnRank assertNotEqualOnRank MAIN_THREAD_RANK _current_test_name""",
    "MultiProcContinuousTest": """backend_str device_type opts _init_pg _run_test_given_id setUpClass tearDownClass
        timeout world_size rank rdvz_file MAIN_PROCESS_RANK""",
}


@pytest.mark.covers("HN-074", "HN-077")
@pytest.mark.parametrize(("name", "members"), MEMBERS.items())
def test_bases_have_the_members_that_subclasses_use(name, members) -> None:
    for member in members.split():
        assert hasattr(getattr(common_distributed, name), member), f"torch's {name} has lost {member}"
        assert hasattr(getattr(testing, name), member), f"our {name} lacks {member}"


def test_no_torch_until_it_is_needed() -> None:
    code = "import sys, disttest.testing as t; print('torch' in sys.modules, t.skip_if_lt_x_gpu.__name__)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    output = subprocess.check_output([sys.executable, "-c", code], text=True, env=env)
    assert output == "False skip_if_lt_x_gpu\n"
