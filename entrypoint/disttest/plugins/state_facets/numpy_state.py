"""Settings of NumPy."""

from __future__ import annotations

import numpy as np

# NumPy imports it on first use, so each rank would import it when it seeds.
import numpy.random

from disttest.runtime.rank.facet import Setting, settings

FACETS = (
    settings(
        "numpy",
        Setting("error handling", np.geterr, lambda then: np.seterr(**then)),
        Setting("error callback", np.geterrcall, np.seterrcall),
        Setting("print options", np.get_printoptions, lambda then: np.set_printoptions(**then)),
    ),
)
