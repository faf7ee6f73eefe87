"""A process that waits for something with a limit of its own waits longer; limits stand in the modules ``limits``."""

import ast
import importlib
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import disttest
from disttest.extras.cluster.option_rows import SILENCE_LIMIT

PACKAGE = Path(disttest.__file__).parent
MODULES = sorted(PACKAGE.rglob("limits.py"))
"""Those of the core, and those of plugins."""


def limits_of(path: Path) -> dict[str, float]:
    """The limits of a module by name."""
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return vars(importlib.import_module(name))


limits = SimpleNamespace(
    **{name: value for path in MODULES for name, value in limits_of(path).items() if name.isupper()}
)

GITHUB_TERM_S = 7.5
"""From GitHub's SIGINT to its SIGTERM."""
GITHUB_KILL_S = GITHUB_TERM_S + 2.5

# In each chain every name is shorter than the one behind it.
CHAINS = {
    "a rank that is ended": ("RANK_TERM_S", "WORLD_TERM_S", "BROKEN_LEAVE_S", "RANKS_LEAVE_S"),
    "the end of an attempt": ("EVIDENCE_POLL_S", "EVIDENCE_S", "MAIN_CANCEL_S", "WORLD_POOL_CANCEL_S"),
    "an isolated process ends its executors": ("EXECUTORS_END_S", "RANKS_LEAVE_S"),
    "a rank that is killed": ("RANK_TERM_S", "KILL_S", "BOUNDED_KILL_S"),
    "a main process ends its own ranks": ("EVIDENCE_S", "MAIN_MARGIN_S", "RANKS_LEAVE_S", "WORLD_SILENCE_S"),
    "evidence over nodes": ("EVIDENCE_S", "EVIDENCE_AGREED_S", "NODE_OVERRUN_S"),
    "cancel": (
        "MAIN_CANCEL_S",
        "WORLD_POOL_CANCEL_S",
        "SUPERVISOR_CANCEL_S",
        "CONTAINER_STOP_S",
        "GITHUB_TERM_S",
    ),
    "cancel of a job": ("SUPERVISOR_CANCEL_S", "AGENT_CANCEL_S", "JOB_CANCEL_S", "SLURM_KILL_S"),
    "a client that looks at its job": ("TICK_S", "CLIENT_STEP_S", "AGENT_GONE_S"),
    "a job beside GitHub": ("AGENT_FLUSH_S", "JOB_CANCEL_S", "GITHUB_KILL_S"),
    "a killed command": ("WORLD_POOL_CANCEL_S", "REAPER_ORDERLY_S"),
    "the run's deadline": (
        "SUPERVISOR_CANCEL_S",
        "DEADLINE_MARGIN_S",
        "CONTAINER_TERM_S",
        "CONTAINER_MARGIN_S",
    ),
    "a container that stays": ("CONTAINER_MARGIN_S", "CONTAINER_LEFT_S", "CONTAINER_LIMIT_S"),
    "a world": ("TICK_S", "IDLE_S", "RANKS_LEAVE_S", "LAST_TEAR_DOWN_S", "WORLD_SILENCE_S", "WORLD_START_S"),
    "a parent of worlds": ("THREAD_REST_S", "WORLD_START_S", "COLLECT_S"),
    "the driver": ("BOUNDED_KILL_S", "DRIVER_STALL_S", "CUDA_ANSWER_S", "DRIVER_TOTAL_S"),
    "a preflight": ("PREFLIGHT_GRACE_S", "PREFLIGHT_CHECK_S", "PREFLIGHT_COLLECTIVE_S", "PREFLIGHT_TOTAL_S"),
    "the start of a preflight": ("PREFLIGHT_COLLECTIVE_S", "PREFLIGHT_START_S", "PREFLIGHT_TOTAL_S"),
    "a GPU": ("DEVICE_POLL_S", "GPU_SLOW_RELEASE_S", "GPU_RELEASE_S", "LEASE_WAIT_S"),
    "a lease": ("LEASE_POLL_S", "LEASE_LONGEST_POLL_S", "LEASE_FRESH_S", "LEASE_LOOK_S"),
    "signs of life": ("TICK_S", "NODE_ALIVE_S", "CLIENT_ALIVE_S", "CLIENT_SILENCE_S"),
    "the start of a job": ("JOB_ARRIVAL_S", "JOB_START_S", "NODES_READY_S", "JOB_LEAST_S"),
    "Slurm": ("SLURM_FIRST_POLL_S", "SLURM_FINAL_S", "SLURM_ANSWER_S", "SLURM_LONGEST_POLL_S"),
    "retries": ("RETRY_FIRST_PAUSE_S", "RETRY_LONGEST_PAUSE_S"),
    "the terminal": ("REDRAW_S", "PROMPT_S", "HEARTBEAT_S", "OUTPUT_STALL_S"),
}

NO_LIMITS = {
    "planning/timings.py": "estimates",
    "extras/shards/shard_plan.py": "the least work that is worth a shard",
    "extras/cluster/allocations.py": "the least work that is worth a lease",
    "results/durations.py": "how far clocks of two machines may differ",
    "reports/aggregates.py": "the least time that counts as slow",
    "reports/junit_case.py": "a time that publishers do not drop",
    "host/descendants.py": "the kernel's unit of time",
    "host/event_loop.py": "the longest wait that poll(2) takes",
    "testing/rpc.py": "torch's own helper",
}


def value(name: str) -> float:
    return globals()[name] if name.startswith("GITHUB") else getattr(limits, name)


@pytest.mark.parametrize("chain", CHAINS)
def test_what_is_inside_is_shorter(chain):
    for inner, outer in itertools.pairwise(CHAINS[chain]):
        assert value(inner) < value(outer), f"{inner} ({value(inner)}) must be less than {outer}"


def test_what_has_to_fit_one_behind_the_other():
    """The sum of what happens in turn is less than what waits for all of it."""
    evidence_and_end = limits.EVIDENCE_S + limits.RANK_TERM_S
    assert evidence_and_end + limits.BROKEN_LEAVE_S < limits.WORLD_POOL_CANCEL_S
    assert limits.MAIN_CANCEL_S + evidence_and_end < limits.WORLD_POOL_CANCEL_S
    assert limits.SUPERVISOR_CANCEL_S + limits.PYTEST_TERM_S + limits.KILL_S < limits.CONTAINER_STOP_S
    assert limits.SUPERVISOR_CANCEL_S + limits.PYTEST_TERM_S < limits.AGENT_CANCEL_S
    assert limits.CONTAINER_STOP_S + limits.CONTAINER_DRAIN_S < GITHUB_KILL_S


def test_a_silent_node_is_one_that_has_missed_several_words():
    assert 3 * limits.NODE_ALIVE_S <= SILENCE_LIMIT.default
    assert 3 * limits.CLIENT_ALIVE_S <= limits.CLIENT_SILENCE_S


@pytest.mark.slow("parses all code")
def test_nobody_has_a_limit_of_his_own():
    own = {
        str(path.relative_to(PACKAGE)): name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if re.search(r"_S$|GRACE|TIMEOUT$", name := node.targets[0].id)
    }
    apart = {path for path in own if Path(path).name != "limits.py"}  # a plugin has those of its feature
    assert set(NO_LIMITS) == apart, own


def test_every_limit_is_used():
    texts = (path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "limits.py")
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    modules = (ast.parse(path.read_text()).body for path in MODULES)
    named = [node.targets[0].id for body in modules for node in body if isinstance(node, ast.Assign)]
    assert [] == [name for name in named if name not in words]
