"""Waits that a process outside of the world ends: none of them is a deadlock, however long all ranks are still."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from disttest.limits import TICK_S

_LONGER_THAN_A_PROOF_S = 15 * TICK_S

TEST = """
import datetime
import pytest
import torch
import torch.distributed as dist

@pytest.mark.world_size(2)
def test_a_file_has_the_key(world):
    store = dist.FileStore({path!r}, 3)
    store.set(f"waits/{{world.rank}}", "1")
    store.wait(["outside"], datetime.timedelta(seconds=600))  # longer than the limit of the test

@pytest.mark.fresh_world
@pytest.mark.world_size(2)
def test_a_limit_is_set_later(world):
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=4))
    own = dist.new_group(timeout=datetime.timedelta(seconds=4))
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1), group=own if world.rank else None)
"""


def set_the_key(path: Path) -> None:
    """Set the key when both ranks have waited for longer than a proof takes."""
    store = dist.FileStore(str(path), 3)
    store.wait(["waits/0", "waits/1"], timedelta(seconds=120))
    time.sleep(_LONGER_THAN_A_PROOF_S)  # the ranks must be still for a while, which is no event
    store.set("outside", "1")


def test_all_pass(lab, tmp_path):
    path = tmp_path / "store"
    outsider = threading.Thread(target=set_the_key, args=(path,), daemon=True)
    outsider.start()
    ended = lab.write(test_outside=TEST.format(path=str(path))).run("run", "test_outside.py")
    outsider.join(timeout=1)

    assert ended.exit_code == 0, ended.output
    assert [test.final.outcome.value for test in ended.run.tests] == ["passed"] * 2
