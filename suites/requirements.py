"""Requirements of whole suites: if torch lacks one, a single skipped test replaces all others.

The modules of such a suite are not even imported, so that there is one skip with a reason and no traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Missing = Callable[[], str]
"""Why the suite cannot run here; empty when it can."""

UNAVAILABLE = "suite_unavailable"
"""Mark of the one test that stands for a suite which cannot run."""


class Unavailable(pytest.Item):
    """Stands for all tests of the suite; always skipped, by a mark."""

    def runtest(self) -> None:
        """Never reached."""
        raise AssertionError("a test with a skip mark was run")

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where it is: the suite, not one of its files."""
        return self.path, 0, self.name


class _ModuleOfSuite(pytest.File):
    """A file of a suite that cannot run; the first one yields the test that says why."""

    reason = ""

    def collect(self) -> Iterator[pytest.Item]:
        """Nothing, or the one skip."""
        if not self.reason:
            return
        item = Unavailable.from_parent(self, name=self.path.parent.name)
        item.add_marker(pytest.mark.skip(reason=self.reason))
        item.add_marker(UNAVAILABLE)
        yield item


def unless_available(missing: Missing) -> Callable[..., pytest.File | None]:
    """Make the ``pytest_pycollect_makemodule`` hook of a suite's conftest."""
    said: set[int] = set()

    def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.File | None:
        reason = missing()
        if not reason:
            return None
        mark = f"{UNAVAILABLE}: stands for all tests of a suite that cannot run here"
        parent.config.addinivalue_line("markers", mark)
        module: _ModuleOfSuite = _ModuleOfSuite.from_parent(parent, path=module_path)
        if id(parent.session) not in said:
            said.add(id(parent.session))
            module.reason = reason
        return module

    return pytest_pycollect_makemodule
