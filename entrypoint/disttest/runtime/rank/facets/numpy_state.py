"""Settings of NumPy."""

from __future__ import annotations

import numpy as np
import numpy.random  # which NumPy leaves to the first who asks: each rank, when it seeds

from disttest.runtime.rank.facets.facet import Setting, settings

FACETS = (
    settings(
        "numpy",
        Setting("error handling", np.geterr, lambda then: np.seterr(**then)),
        Setting("error callback", np.geterrcall, np.seterrcall),
        Setting("print options", np.get_printoptions, lambda then: np.set_printoptions(**then)),
    ),
)
