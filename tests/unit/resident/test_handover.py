"""What a command says to a resident parent without the command's own modules."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import msgspec
import pytest

from disttest.extras.resident import handover, place
from disttest.extras.resident.endpoint import endpoint_of
from disttest.extras.resident.hooks import RESIDENT
from disttest.extras.resident.messages import Answer, ForkEnded, ForkRequest, Started


def test_it_speaks_as_the_messages_have_it():
    described = handover.describe(["run", "."], {"A": "1"}, [0, 1, 2])
    request = msgspec.json.decode(json.dumps({"type": "run", **described}), type=ForkRequest, strict=True)

    assert request == ForkRequest(
        argv=("run", "."),
        environ={"A": "1"},
        executable=sys.executable,
        folder=os.getcwd(),
        descriptors=(0, 1, 2),
    )
    assert {"type": "started"} == json.loads(msgspec.json.encode(Started()))
    assert 0 == json.loads(msgspec.json.encode(ForkEnded(code=0)))["code"]
    assert Started() == msgspec.json.decode(b'{"type": "started"}', type=Answer)


def test_it_finds_the_files_of_the_endpoint(tmp_path: Path):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    endpoint = endpoint_of(tmp_path, environ)

    assert str(endpoint.folder) == place.folder_for(environ)
    assert endpoint.name == place.name_for(str(tmp_path))


@pytest.mark.parametrize(
    ("words", "environ", "may"),
    [
        (["run", "."], {}, False),
        (["run", ".", "--resident"], {}, True),
        (["run", "--resident=true"], {}, True),
        (["run", "."], {RESIDENT.variable: "1"}, True),
    ],
)
def test_only_who_may_want_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], environ: dict[str, str], may: bool
):
    monkeypatch.chdir(tmp_path)
    assert handover._may_be_asked(words, environ) == may


def test_a_project_may_want_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pyproject.toml").write_text("[tool.disttest]\nresident = true\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path / "tests")
    assert handover._may_be_asked(["run", "."], {})


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_nothing_is_sent_into_a_folder_that_others_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    monkeypatch.chdir(tmp_path)
    endpoint = endpoint_of(tmp_path, environ)
    with endpoint.locked():
        endpoint.lock.write_text(json.dumps({"pid": os.getpid()}))
    endpoint.folder.chmod(mode)
    with handover.socket.socket(handover.socket.AF_UNIX, handover.socket.SOCK_SEQPACKET) as listener:
        with place.short(str(endpoint.socket)) as address:
            listener.bind(address)
        listener.listen()
        line = handover._connect(str(endpoint.folder), endpoint.name)
        assert (line is not None) == (mode == 0o700)
        if line is not None:
            line.close()


@pytest.mark.parametrize("content", ["", "{}", "[]", "1", '{"pid": 0}', '{"boot": "\udcff"}'])
def test_a_damaged_lock_file_is_no_parent(tmp_path: Path, content: str):
    endpoint = endpoint_of(tmp_path, {"XDG_RUNTIME_DIR": str(tmp_path)})
    with endpoint.locked():
        endpoint.lock.write_bytes(os.fsencode(content))

    assert handover._connect(str(endpoint.folder), endpoint.name) is None
    assert endpoint.parent() is None
