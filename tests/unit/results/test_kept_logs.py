"""Logs that failures name stay when the run was given no results directory, though not for ever."""

import os
import stat
import tempfile

from disttest.limits import KEPT_LOGS_S
from disttest.results.directory import drop_log_folder, make_log_folder


def test_only_folders_of_runs_long_past_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = tmp_path / "disttest-other", tmp_path / "disttest-logs-of-somebody"
    for folder in others:
        folder.mkdir()
    old, young = make_log_folder(), make_log_folder()
    for folder, age_s in (
        (old, KEPT_LOGS_S * 1.1),
        (young, KEPT_LOGS_S * 0.9),
        *((folder, 1e9) for folder in others),
    ):
        past_s = folder.stat().st_mtime - age_s
        os.utime(folder, (past_s, past_s))
    new = make_log_folder()

    assert {young, new, *others} == set(tmp_path.iterdir())
    assert 0o700 == stat.S_IMODE(new.stat().st_mode)
    drop_log_folder(new)
    assert not new.exists()
