"""The option ``--host``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disttest.options.option import of_every_run
from disttest.options.values import SWITCH

if TYPE_CHECKING:
    import pytest

# Opt-in under plain pytest: a plugin installed for one project must not change the verdicts of another's tests. It
# would also break `python FILE --use-pytest`, where torch is imported before any plugin.
HOST = of_every_run(
    "host",
    SWITCH,
    "Run classes that start ranks (torch's own, DeepSpeed's) on forked ranks, supervised, instead of their own way.",
    default=False,
    otherwise="true for the command, false under plain pytest",
    by_command="true",
    shapes_tests=True,
)


def hosts_all(config: pytest.Config) -> bool:
    """Return whether classes of other harnesses run on supervised ranks without a mark."""
    from disttest.runtime.controller.session_options import OPTIONS

    return bool(config.getoption("disttest_rank")) or HOST.of(config.stash[OPTIONS])
