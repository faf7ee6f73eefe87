"""What goes into a layer of the image has the same bytes and times, whenever it was installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from action_files import ROOT

SETTLE = ROOT / "requirements" / "settle"
EPOCH_S = 315532800


def install(folder: Path, at_s: float) -> Path:
    """As pip leaves it: files and bytecode with the time of the build, and a file that is no valid Python."""
    packages = folder / "opt" / "disttest" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "one.py").write_text("NAMES = frozenset({'a', 'b', 'c', 'd'})\nDOC = __file__\n")
    (packages / "template.py").write_text("{{ not python }} ??\n")
    (packages / "__pycache__").mkdir()
    (packages / "__pycache__" / "one.cpython-311.pyc").write_text(f"made at {at_s}")
    (packages / "link").symlink_to("one.py")
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (at_s, at_s), follow_symlinks=False)
    return packages


def content(folder: Path) -> dict[str, tuple[float, bytes]]:
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime,
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in folder.rglob("*")
    }


def test_two_installations_settle_to_the_same(tmp_path: Path) -> None:
    # Bytecode names its source by the path in the image, wherever it was compiled.
    first, second = tmp_path / "first", tmp_path / "another"
    for folder, at_s in ((first, 1e9), (second, 1.5e9)):
        install(folder, at_s)
        subprocess.run([SETTLE, folder], check=True, capture_output=True, timeout=60)
    assert content(first) == content(second)
    assert {time for time, _bytes in content(first).values()} == {EPOCH_S}
    compiled = next(first.rglob("one.*.pyc")).read_bytes()
    assert b"/opt/disttest/lib/python3.11/site-packages/one.py" in compiled
    assert str(first).encode() not in compiled
