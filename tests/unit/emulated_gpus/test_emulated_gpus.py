"""Which emulated devices can be asked for, and what is said where they cannot be built."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from disttest.errors import UsageError
from disttest.extras.cluster.option_rows import RUN_OPTIONS
from disttest.extras.cluster.place import choose_nodes
from disttest.extras.emulated_gpus import build
from disttest.extras.emulated_gpus.gpu_environment import emulated_environment, emulated_gpus
from disttest.options.run import RunOptions


def test_a_device_and_how_many_of_them():
    assert [emulated_gpus(text) for text in ("emulated-cuda:4", "cuda", "auto")] == [4, 0, 0]


@pytest.mark.parametrize(
    "text", ["emulated-cuda", "emulated-cuda:0", "emulated-cuda:17", "emulated-cuda:two"]
)
def test_a_number_that_cannot_be_emulated(text):
    with pytest.raises(UsageError, match=f"'{text}' is not emulated-cuda:N with N from 1 to 16"):
        emulated_gpus(text)


def test_gpus_of_other_machines_are_not_emulated():
    with pytest.raises(UsageError, match="is a device of this machine only; leave out --launcher"):
        choose_nodes(
            SimpleNamespace(
                settings={row.field: row.default for row in RUN_OPTIONS} | {"launcher": "slurm"},
                given_settings=(),
                selection=SimpleNamespace(grant=None),
                options=RunOptions(device="emulated-cuda:2"),
                setup=None,
            )
        )


def test_torch_without_cuda_cannot_be_given_emulated_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(UsageError, match="runs torch's CUDA build for CUDA 13, which is not installed here"):
        build.build_libraries(tmp_path)


def test_without_a_compiler_it_says_what_to_install(tmp_path, monkeypatch):
    installed = build.TorchInstallation(
        torch=tmp_path, cuda=tmp_path, nccl=tmp_path, versions=("torch 2.13.0",)
    )
    monkeypatch.setattr(build, "find_torch", lambda: installed)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)

    with pytest.raises(UsageError, match=r"there is no g\+\+ here.*apt-get install g\+\+"):
        build.build_libraries(tmp_path)


def test_what_was_preloaded_and_on_the_path_before_stays():
    environ = {"LD_PRELOAD": "/lib/own.so", "PYTHONPATH": "/own"}

    added = emulated_environment(Path("/made"), 3, environ)

    assert added["LD_PRELOAD"].split(":")[0] == "/made/libcudart.so.13"
    assert added["LD_PRELOAD"].endswith(":/lib/own.so")
    assert added["PYTHONPATH"] == "/made/python:/own"
    assert added["EMULATED_CUDA_DEVICES"] == "3"
