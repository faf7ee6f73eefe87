"""The user's own project in an image: which of its files go there, and which copy of a package is imported."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from disttest.extras.container import installed_first
from disttest.extras.container.user_project import add_files, files_of


def test_environments_results_and_caches_stay_outside(tmp_path: Path) -> None:
    for name in (
        "a.py",
        ".git/x",
        "env/pyvenv.cfg",
        "env/lib/y",
        "results/events.jsonl",
        "__pycache__/z",
        "b/c",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [str(path) for path in files_of(tmp_path)] == ["a.py", "b/c"]


def test_git_decides_where_there_is_a_repository(tmp_path: Path) -> None:
    for name, text in {"a.py": "", "ignored": "", ".gitignore": "ignored\n"}.items():
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert [str(path) for path in files_of(tmp_path)] == [".gitignore", "a.py"]
    subprocess.run(["git", "-C", tmp_path, "add", "a.py"], check=True)
    (tmp_path / "a.py").unlink()
    assert [str(path) for path in files_of(tmp_path)] == [".gitignore"]


def test_equal_files_make_equal_archives(tmp_path: Path) -> None:
    packed = []
    for time_s in (1, 2_000_000_000):
        (tmp_path / "a").write_text("x")
        (tmp_path / "l").unlink(missing_ok=True)
        (tmp_path / "l").symlink_to("a")
        os.utime(tmp_path / "a", (time_s, time_s))
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            add_files(archive, tmp_path, files_of(tmp_path), "project")
        packed.append(file.getvalue())
    assert packed[0] == packed[1]


def test_compiled_packages_come_from_where_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout that is first on sys.path has the package without its compiled module."""
    site, checkout = tmp_path / "site", tmp_path / "checkout"
    suffix = installed_first.EXTENSION_SUFFIXES[0]
    for folder in (
        site / "mine",
        site / "pure",
        site / "mine-1.dist-info",
        checkout / "mine",
        checkout / "pure",
    ):
        folder.mkdir(parents=True)
    for place in (site, checkout):
        for package in ("mine", "pure"):
            (place / package / "__init__.py").write_text(f"PLACE = {place.name!r}\n")
    (site / "mine" / f"fast{suffix}").touch()
    info = site / "mine-1.dist-info"
    (info / "METADATA").write_text("Name: mine\nVersion: 1\n")
    (info / "direct_url.json").write_text('{"dir_info": {}, "url": "file:///tmp/source"}')
    (info / "RECORD").write_text(f"mine/__init__.py,,\nmine/fast{suffix},,\npure/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(site))
    assert installed_first.compiled_packages("/tmp/source") == {"mine"}
    installed_first.main("/tmp/source")

    program = (
        f"import site; site.addsitedir({str(site)!r})\n"
        f"import sys; sys.path.insert(0, {str(checkout)!r})\nimport mine, pure; print(mine.PLACE, pure.PLACE)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "site checkout\n"
