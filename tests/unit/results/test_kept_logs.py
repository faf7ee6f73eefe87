"""Logs that failures name stay when the run was given no results directory, though not for ever."""

import os
import stat
import tempfile

from disttest.limits import KEPT_LOGS_S
from disttest.results.kept_logs import drop_folder, make_folder


def test_only_folders_of_runs_long_past_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "disttest-other").mkdir()
    old, young = make_folder(), make_folder()
    for folder, age_s in (
        (old, KEPT_LOGS_S * 1.1),
        (young, KEPT_LOGS_S * 0.9),
        (tmp_path / "disttest-other", 1e9),
    ):
        past_s = folder.stat().st_mtime - age_s
        os.utime(folder, (past_s, past_s))
    new = make_folder()

    assert {young, new, tmp_path / "disttest-other"} == set(tmp_path.iterdir())
    assert 0o700 == stat.S_IMODE(new.stat().st_mode)
    drop_folder(new)
    assert not new.exists()
