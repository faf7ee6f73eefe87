"""What test authors import: the world that a test runs in, and the unittest side under the field's names.

Importing this package does not import torch; a name that needs torch imports it when it is first used.
``docs/testing-api.md`` says what each name does and where it differs from torch's.
"""

from __future__ import annotations

import importlib
from typing import Any

from disttest.testing.world import World, current_world

_HOMES = {
    "skips": (
        "ACCELERATOR_DIST_BACKENDS",
        "DDP_RANK_DEVICES",
        "DistTestCases",
        "at_least_x_gpu",
        "get_required_world_size",
        "import_transformers_or_skip",
        "nccl_skip_if_lt_x_gpu",
        "require_n_gpus_for_nccl_backend",
        "requires_accelerator_dist_backend",
        "requires_ddp_rank",
        "requires_gloo",
        "requires_mpi",
        "requires_nccl",
        "requires_nccl_version",
        "requires_ucc",
        "requires_world_size",
        "skip_if_lt_x_gpu",
        "skip_if_no_gpu",
        "skip_if_odd_worldsize",
        "skip_if_rocm",
        "skip_if_rocm_multiprocess",
        "skip_if_small_worldsize",
        "skip_if_win32",
        "TEST_SKIPS",
        "TestSkip",
    ),
    "helpers": (
        "FILE_SCHEMA",
        "TIMEOUT_DEFAULT",
        "TIMEOUT_OVERRIDE",
        "captured_output",
        "cleanup_temp_dir",
        "create_device",
        "create_tcp_store",
        "find_free_port",
        "get_timeout",
        "has_efa",
        "init_multigpu_helper",
        "initialize_temp_directories",
        "simple_sparse_reduce_tests",
        "tp_transports",
        "verify_ddp_error_logged",
        "with_dist_debug_levels",
        "with_nccl_blocking_wait",
    ),
    "processes": ("DEFAULT_WORLD_SIZE", "DistributedTestBase", "MultiProcessTestCase"),
    "threads": ("MultiThreadedTestCase", "spawn_threads_and_init_comms"),
    "continuous": ("MultiProcContinousTest", "MultiProcContinuousTest"),
    "subtests": ("run_subtests",),
    "modules": ("SaveForwardInputsModel", "SaveForwardInputsModule"),
    "dynamo": (
        "DynamoDistributedMultiProcTestCase",
        "DynamoDistributedSingleProcTestCase",
        "_dynamo_dist_per_rank_init",
    ),
    "rpc": (
        "INIT_METHOD_TEMPLATE",
        "FaultyRpcAgentTestFixture",
        "RpcAgentTestFixture",
        "SpawnHelper",
        "TensorPipeRpcAgentTestFixture",
        "dist_init",
        "generate_tests",
        "get_function_event",
        "get_num_owners_and_forks",
        "initialize_pg",
        "noop",
        "wait_until_node_failure",
        "wait_until_owners_and_forks_on_rank",
        "wait_until_pending_futures_and_users_flushed",
        "worker_name",
    ),
    "barrier": ("Barrier", "file_lock"),
    "hosting": ("RanksFailed",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["World", "current_world", *_HOME_OF]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
