"""Which variables of the host a container gets: an allow-list, and never a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from disttest.errors import UsageError

ALLOWED = (
    "CI",
    "DISTTEST_*",
    "FORCE_COLOR",
    "GITHUB_ACTIONS",
    "GITHUB_EVENT_NAME",
    "GITHUB_JOB",
    "GITHUB_OUTPUT",
    "GITHUB_REF",
    "GITHUB_REF_NAME",
    "GITHUB_REPOSITORY",
    "GITHUB_RUN_ATTEMPT",
    "GITHUB_RUN_ID",
    "GITHUB_SERVER_URL",
    "GITHUB_SHA",
    "GITHUB_STEP_SUMMARY",
    "GITHUB_WORKFLOW",
    "GITHUB_WORKSPACE",
    "GLOO_*",
    "NCCL_*",
    "NO_COLOR",
    "PYTEST_ADDOPTS",
    "RUNNER_ARCH",
    "RUNNER_NAME",
    "RUNNER_OS",
    "TORCH_*",
    "TZ",
)
REFUSED = (
    "*TOKEN*",
    "*SECRET*",
    "*PASSWORD*",
    "*CREDENTIAL*",
    "*_KEY",
    "DISTTEST_INPUT_*",
    "DISTTEST_TEST_*",
)
FILES = ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")
"""They name files outside the workspace, which have to be mounted with them."""


def choose_environment(environ: Mapping[str, str], extra: Iterable[str]) -> dict[str, str]:
    """Variables for the container.

    Args:
        environ: the host's variables.
        extra: what the user asks for: ``NAME=VALUE``, or ``NAME`` to hand the host's value on.

    Raises:
        UsageError: ``extra`` has something that is not a variable.
    """
    chosen = {name: value for name, value in environ.items() if is_allowed(name)}
    for entry in extra:
        name, equals, value = entry.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"--env {entry!r} is not NAME or NAME=VALUE")
        if equals:
            chosen[name] = value
        elif name in environ:
            chosen[name] = environ[name]
    return chosen


def is_allowed(name: str) -> bool:
    """Whether it may pass without being asked for."""
    return any(fnmatchcase(name, pattern) for pattern in ALLOWED) and not any(
        fnmatchcase(name, pattern) for pattern in REFUSED
    )
