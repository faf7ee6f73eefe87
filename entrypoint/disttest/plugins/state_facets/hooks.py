"""Hook that lists the kinds of state that are restored between tests."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.runtime.rank.facet import Facet, FacetSource

# Library -> module with its facets. State is restored in this order.
AREAS = (
    ("sys", "process_state"),
    ("sys", "monkeypatches"),
    ("sys", "interpreter"),
    ("sys", "libraries"),
    ("numpy", "numpy_state"),
    ("torch", "torch_flags"),
    ("torch.utils._config_module", "torch_config"),
    # Before the groups that a test left are destroyed.
    ("torch.distributed", "dtensor"),
    ("torch.distributed", "process_groups"),
    # Loaded in ranks on GPUs only; elsewhere it would cost time and find nothing.
    ("disttest.plugins.gpus.gpu_state", "cuda_flags"),
    ("sys", "context"),
)


@hookimpl(tryfirst=True)
def disttest_state_facets() -> Sequence[FacetSource]:
    """List one source for each area; the facets of other plugins come after them."""
    from disttest.runtime.rank.facet import FacetSource

    return [FacetSource(library, partial(_facets, area)) for library, area in AREAS]


def _facets(area: str) -> Sequence[Facet]:
    facets: Sequence[Facet] = importlib.import_module(f"disttest.plugins.state_facets.{area}").FACETS
    return facets
