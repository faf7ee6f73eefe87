# Which module has which name: for type checkers, and for __init__.py, which imports each when it is first used.
from disttest.results.exit_codes import TEST_SKIPS as TEST_SKIPS, TestSkip as TestSkip
from disttest.testing.barrier import Barrier as Barrier, file_lock as file_lock
from disttest.testing.continuous import (
    MultiProcContinousTest as MultiProcContinousTest,
    MultiProcContinuousTest as MultiProcContinuousTest,
)
from disttest.plugins.deadlock.expect import expect_deadlock as expect_deadlock
from disttest.testing.dynamo import (
    DynamoDistributedMultiProcTestCase as DynamoDistributedMultiProcTestCase,
    DynamoDistributedSingleProcTestCase as DynamoDistributedSingleProcTestCase,
    _dynamo_dist_per_rank_init as _dynamo_dist_per_rank_init,
)
from disttest.testing.helpers import (
    FILE_SCHEMA as FILE_SCHEMA,
    TIMEOUT_DEFAULT as TIMEOUT_DEFAULT,
    TIMEOUT_OVERRIDE as TIMEOUT_OVERRIDE,
    captured_output as captured_output,
    cleanup_temp_dir as cleanup_temp_dir,
    create_device as create_device,
    create_tcp_store as create_tcp_store,
    find_free_port as find_free_port,
    get_timeout as get_timeout,
    has_efa as has_efa,
    init_multigpu_helper as init_multigpu_helper,
    initialize_temp_directories as initialize_temp_directories,
    simple_sparse_reduce_tests as simple_sparse_reduce_tests,
    tp_transports as tp_transports,
    verify_ddp_error_logged as verify_ddp_error_logged,
    with_dist_debug_levels as with_dist_debug_levels,
    with_nccl_blocking_wait as with_nccl_blocking_wait,
)
from disttest.testing.hosting import RanksFailed as RanksFailed
from disttest.testing.modules import (
    SaveForwardInputsModel as SaveForwardInputsModel,
    SaveForwardInputsModule as SaveForwardInputsModule,
)
from disttest.testing.processes import (
    DEFAULT_WORLD_SIZE as DEFAULT_WORLD_SIZE,
    DistributedTestBase as DistributedTestBase,
    MultiProcessTestCase as MultiProcessTestCase,
)
from disttest.testing.rpc import (
    INIT_METHOD_TEMPLATE as INIT_METHOD_TEMPLATE,
    FaultyRpcAgentTestFixture as FaultyRpcAgentTestFixture,
    RpcAgentTestFixture as RpcAgentTestFixture,
    SpawnHelper as SpawnHelper,
    TensorPipeRpcAgentTestFixture as TensorPipeRpcAgentTestFixture,
    dist_init as dist_init,
    generate_tests as generate_tests,
    get_function_event as get_function_event,
    get_num_owners_and_forks as get_num_owners_and_forks,
    initialize_pg as initialize_pg,
    noop as noop,
    wait_until_node_failure as wait_until_node_failure,
    wait_until_owners_and_forks_on_rank as wait_until_owners_and_forks_on_rank,
    wait_until_pending_futures_and_users_flushed as wait_until_pending_futures_and_users_flushed,
    worker_name as worker_name,
)
from disttest.testing.skips import (
    ACCELERATOR_DIST_BACKENDS as ACCELERATOR_DIST_BACKENDS,
    DDP_RANK_DEVICES as DDP_RANK_DEVICES,
    DistTestCases as DistTestCases,
    at_least_x_gpu as at_least_x_gpu,
    get_required_world_size as get_required_world_size,
    import_transformers_or_skip as import_transformers_or_skip,
    nccl_skip_if_lt_x_gpu as nccl_skip_if_lt_x_gpu,
    require_n_gpus_for_nccl_backend as require_n_gpus_for_nccl_backend,
    requires_accelerator_dist_backend as requires_accelerator_dist_backend,
    requires_ddp_rank as requires_ddp_rank,
    requires_gloo as requires_gloo,
    requires_mpi as requires_mpi,
    requires_nccl as requires_nccl,
    requires_nccl_version as requires_nccl_version,
    requires_ucc as requires_ucc,
    requires_world_size as requires_world_size,
    skip_if_lt_x_gpu as skip_if_lt_x_gpu,
    skip_if_no_gpu as skip_if_no_gpu,
    skip_if_odd_worldsize as skip_if_odd_worldsize,
    skip_if_rocm as skip_if_rocm,
    skip_if_rocm_multiprocess as skip_if_rocm_multiprocess,
    skip_if_small_worldsize as skip_if_small_worldsize,
    skip_if_win32 as skip_if_win32,
)
from disttest.testing.subtests import run_subtests as run_subtests
from disttest.testing.threads import (
    MultiThreadedTestCase as MultiThreadedTestCase,
    spawn_threads_and_init_comms as spawn_threads_and_init_comms,
)
from disttest.testing.world import World as World, current_world as current_world
