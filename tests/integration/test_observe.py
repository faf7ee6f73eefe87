"""What ``disttest.observe`` sees, as a contract with this version of torch: ``tests/fixtures/zoo``, in real ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.forked_runs

ZOO = Path(__file__).parents[1] / "fixtures" / "zoo" / "test_zoo.py"


@pytest.mark.slow("observes over forty calls")
def test_the_zoo(lab):
    shutil.copy(ZOO, lab.folder)

    ended = lab.run("test_zoo.py")

    assert ended.exit_code == 0, ended.output
    assert len(ended.run.tests) > 40
