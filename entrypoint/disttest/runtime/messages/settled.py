"""What plugins of others have settled in the controller, and all ranks have to share."""

from __future__ import annotations

from disttest.model import Frozen


class CoverageOrder(Frozen):
    """What ranks measure."""

    config: str
    """The controller's configuration, as coverage hands it to processes of its own."""
    by_test: bool = False
    """Whether the test that ran a line is kept too (``--cov-context=test``)."""


class Settled(Frozen):
    """What ranks share with their controller."""

    coverage: CoverageOrder | None = None
    """None: nothing is measured."""
