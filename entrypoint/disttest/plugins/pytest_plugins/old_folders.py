"""pytest's removal of temporary folders of earlier sessions."""

from __future__ import annotations

import warnings
from collections.abc import Generator

import pytest


class OldFolders:
    """Keeps a warning about them from ending a run.

    Files of worlds are in pytest's temporary folder. At the end pytest removes those of earlier sessions, and warns if another
    process writes into one. With ``-W error`` the pytest process would end there, with exit code 1.
    """

    # The last wrapper, inside of the one in which pytest sets the filters of the user.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        """Ignore the warning."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\(rm_rf\)", pytest.PytestWarning)
            return (yield)
