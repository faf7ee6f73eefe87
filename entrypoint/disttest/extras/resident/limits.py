"""Time limits of resident parents and of ``disttest watch``, in seconds."""

from disttest.limits import WORLD_START_S

SAVED_POLL_S = 0.05
"""Time between two scans of the test files; more if a scan takes long."""
RESIDENT_IDLE_S = 15 * 60.0
"""Time without a run after which a parent ends. Its memory is worth saving a second only while the user works."""
RESIDENT_REQUEST_S = 10.0
"""Time from a connection to its request."""
RESIDENT_ANSWER_S = 30.0
"""Time from a request to the answer (milliseconds on an idle machine); then the command runs itself."""
RESIDENT_START_S = WORLD_START_S
"""The same for a parent that has to import torch first."""
