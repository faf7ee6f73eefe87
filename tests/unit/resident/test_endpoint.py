"""Where resident parents are found, and that nobody else can be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttest.errors import UsageError
from disttest.extras.resident.endpoint import (
    ParentEndpoint,
    endpoint_of,
    endpoints,
    make_private,
    private_folder,
)
from disttest.host.proc import this_process


def test_the_folder_is_that_of_the_session_or_one_for_the_user(tmp_path: Path):
    assert tmp_path / "disttest" == private_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert Path("/tmp") == private_folder({"XDG_RUNTIME_DIR": str(tmp_path / "none")}).parent


def test_a_folder_that_cannot_be_made_is_an_error_of_the_system(tmp_path: Path):
    (tmp_path / "disttest").touch()
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "disttest")


@pytest.mark.parametrize("kind", ["open", "link"])
def test_a_folder_that_is_not_private_is_refused(tmp_path: Path, kind: str):
    folder = tmp_path / "disttest"
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o755)
    else:
        (tmp_path / "other").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "other")
    with pytest.raises(UsageError, match="is not a folder of user"):
        make_private(folder)


def test_each_folder_of_tests_has_its_place(tmp_path: Path):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    first, second = endpoint_of(tmp_path, environ), endpoint_of(tmp_path / "x", environ)

    assert first == endpoint_of(tmp_path, environ) != second
    with first.locked():
        assert [first] == endpoints(environ)
        assert 0o700 == first.folder.stat().st_mode & 0o777
        first.remove()
    assert [] == list(tmp_path.iterdir())


def test_a_lock_that_was_removed_is_made_anew(tmp_path: Path):
    endpoint = ParentEndpoint(folder=tmp_path / "disttest", name="x")
    with endpoint.locked():
        endpoint.remove()
        with endpoint.locked():
            assert endpoint.lock.exists()


def test_a_parent_is_the_process_that_was_entered_and_runs(tmp_path: Path):
    endpoint = ParentEndpoint(folder=tmp_path / "disttest", name="x")
    with endpoint.locked():
        assert endpoint.parent() is None
        endpoint.enter(this_process())
        assert this_process() == endpoint.parent()
        endpoint.lock.write_text('{"pid": 1')
        assert endpoint.parent() is None
