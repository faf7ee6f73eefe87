"""The limits of resident parents and of ``disttest watch``, in seconds."""

from disttest.limits import WORLD_START_S

SAVED_POLL_S = 0.05
"""Between two looks at the files of tests, and more where a look takes long."""
RESIDENT_IDLE_S = 15 * 60.0
"""It ends after that long without a run: its memory is worth a second of the next run only while somebody works."""
RESIDENT_REQUEST_S = 10.0
"""From a connection to what is asked."""
RESIDENT_ANSWER_S = 30.0
"""From what is asked to the first word, milliseconds on a machine with time; then the command runs by itself."""
RESIDENT_START_S = WORLD_START_S
"""The same of a parent that has torch to import first."""
