"""``python -m disttest.extras.emulated_gpus``: build the libraries if necessary, and print their folder."""

from __future__ import annotations

import sys

from disttest.extras.emulated_gpus.build import build_libraries, default_cache
from disttest.options.environment import environment

print(build_libraries(default_cache(environment()), tell=lambda line: print(line, file=sys.stderr)))  # noqa: T201
