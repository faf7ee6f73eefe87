"""Frames of the harness are told from those of users by their paths: wherever its modules are."""

import pytest

from disttest import plugin_manager
from disttest.extras.chaos import in_rank
from disttest.plugins.flight_recorder import recorder
from disttest.plugins.launching_classes import rank_host
from disttest.results import hang_findings, narrative
from disttest.runtime.rank import rank
from disttest.runtime.world import world_supervisor


@pytest.mark.parametrize("module", [rank, rank_host, world_supervisor, plugin_manager, in_rank])
def test_they_are_nobodys_code(module):
    path = module.__file__

    assert hang_findings._LIBRARY.search(path)
    assert narrative._RUNNER.search(f'File "{path}", line 1 in f')
    assert any(part in path for part in recorder._INTERNAL)
