"""The rendezvous files of a class whose ranks stay for its tests."""

import tempfile
import unittest

import pytest
from torch.testing._internal import common_distributed

from disttest.plugins.launching_classes.torch_bases import _host_continuous
from disttest.testing import hosting
from disttest.testing.continuous import MultiProcContinuousTest


class Host:
    """Keeps ranks until ``test_b`` has ended, and notes the rendezvous file of each test."""

    def __init__(self):
        self.kept = False
        self.files = []

    def keeps(self, _owner):
        return self.kept

    def keep(self, *_):
        self.kept = True

    def run_kept(self, owner, name):
        self.files.append(owner.rdvz_file)
        self.kept = not name.endswith("test_b")

    def release(self, _owner):
        self.kept = False


def own_base(_host):
    return MultiProcContinuousTest


def torchs_base(host):
    torchs = common_distributed.MultiProcContinuousTest
    copy = type("Copy", (torchs,), {"tearDownClass": torchs.__dict__["tearDownClass"]})
    _host_continuous(copy, host)
    return copy


@pytest.mark.parametrize("base", [own_base, torchs_base])
@pytest.mark.parametrize("names", [["test_a", "test_b", "test_c"], ["test_a", "test_b"]])
def test_each_set_of_ranks_has_one_file_and_none_is_left(base, names, tmp_path, monkeypatch):
    host = Host()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(hosting, "_host", host)
    body = dict.fromkeys(names, lambda _self: None)
    cls = type("Three", (base(host),), {"world_size": 2, "device_type": classmethod(lambda _: "cpu"), **body})
    result = unittest.TestResult()
    unittest.TestSuite(map(cls, names)).run(result)

    assert not result.errors, result.errors
    assert len({*host.files}) == len(names) - 1
    assert [] == [*tmp_path.iterdir()]
