"""Variables of the host that a container gets: an allow-list without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from disttest.errors import UsageError
from disttest.options.registry import IN_CONTAINER, options_of

ENVIRONMENT = "DISTTEST_ENV"
"""Variables for the container, one ``NAME[=VALUE]`` a line: the input ``env``, which may contain secrets."""

_NAMES = """\
CI FORCE_COLOR NO_COLOR PYTEST_ADDOPTS TZ
GITHUB_ACTIONS GITHUB_EVENT_NAME GITHUB_HEAD_REF GITHUB_JOB GITHUB_OUTPUT GITHUB_REF GITHUB_REF_NAME GITHUB_REPOSITORY
GITHUB_RUN_ATTEMPT GITHUB_RUN_ID GITHUB_SERVER_URL GITHUB_SHA GITHUB_STEP_SUMMARY GITHUB_WORKFLOW GITHUB_WORKSPACE
RUNNER_ARCH RUNNER_NAME RUNNER_OS
GLOO_DEVICE_TRANSPORT GLOO_DISABLE_CONNECTION_RETRIES GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER GLOO_ENABLE_STORE_V2_API
GLOO_LOG_LEVEL GLOO_SOCKET_IFNAME
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT TORCH_COMPILE_DEBUG TORCH_COMPILE_DISABLE
TORCH_CPP_LOG_LEVEL TORCH_CUDA_ARCH_LIST TORCH_CUDA_SANITIZER TORCH_DEVICE_BACKEND_AUTOLOAD TORCH_DISABLE_ADDR2LINE
TORCH_DISTRIBUTED_DEBUG TORCH_DIST_INIT_BARRIER TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD TORCH_FORCE_WEIGHTS_ONLY_LOAD
TORCH_FR_BUFFER_SIZE TORCH_FR_CPP_STACK TORCH_GLOO_LAZY_INIT TORCH_LINALG_PREFER_CUSOLVER TORCH_LOGS
TORCH_LOGS_FORMAT TORCH_LOGS_OUT TORCH_SHOW_CPP_STACKTRACES TORCH_SHOW_DISPATCH_TRACE TORCH_SYMBOLIZE_MODE TORCH_TRACE
TORCH_NCCL_ABORT_IN_DESTROY_PG TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS
TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_COORD_CHECK_MILSEC TORCH_NCCL_CUDA_EVENT_CACHE TORCH_NCCL_DEBUG_INFO_PIPE_FILE
TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DESYNC_DEBUG TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ENABLE_MONITORING
TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_NAN_CHECK
TORCH_NCCL_PROPAGATE_ERROR TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_TRACE_CPP_STACK
TORCH_NCCL_USE_COMM_NONBLOCKING TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC
"""
_ALLOWED = frozenset(_NAMES.split())
"""Names instead of patterns: a prefix would let ``TORCH_AUTH`` or ``DISTTEST_API`` pass."""
_OF_NCCL = re.compile(r"NCCL_(?!.*(TOKEN|SECRET|PASSWORD|CREDENTIAL|AUTH|KEY))[A-Z0-9_]+")
"""The only pattern: NCCL has some 200 variables, more in each version, and no credentials."""
FILES = ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")
"""Variables that name files outside the workspace, which are mounted with them."""


def choose_environment(environ: Mapping[str, str], extra: Iterable[str]) -> dict[str, str]:
    """Choose the variables for the container.

    Args:
        environ: variables of the host.
        extra: additional ones: ``NAME=VALUE``, or ``NAME`` for the value of the host.

    Raises:
        UsageError: an entry of ``extra`` is not a variable.
    """
    chosen = {name: value for name, value in environ.items() if is_allowed(name)}
    for entry in extra:
        name, equals, value = entry.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"--env {entry!r} is not NAME or NAME=VALUE")
        if equals:
            chosen[name] = value
        # A name without a value on the host sets nothing, as `--env NAME` of docker run.
        elif name in environ:
            chosen[name] = environ[name]
    return chosen


def is_allowed(name: str) -> bool:
    """Whether the container gets the variable by default."""
    return name in _ALLOWED or name in _of_options() or _OF_NCCL.fullmatch(name) is not None


@cache
def _of_options() -> frozenset[str]:
    """Return the variables of options that the run inside reads."""
    return frozenset(
        option.variable
        for command in IN_CONTAINER
        for option in options_of(command)
        # A secret always has a variable here: `take_secrets` moves it there from the command line.
        if option.has_variable or option.secret
    )
