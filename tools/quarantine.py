"""Names repeated tests, read from standard input, as FLAKY; with the cause of those in tests/quarantine.toml.

python tools/quarantine.py [FILE] <LEDGER
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

USUAL = Path(__file__).resolve().parents[1] / "tests" / "quarantine.toml"


def main() -> None:
    """Print a line for each test."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else USUAL
    known = {entry["id"]: entry for entry in tomllib.loads(path.read_text()).get("test", [])}
    for test in filter(None, map(str.strip, sys.stdin)):
        entry = known.get(test)
        why = (
            f"known, until {entry['expires']}, {entry['owner']}: {entry['cause']}"
            if entry
            else "failed once, passed by itself"
        )
        print(f"FLAKY ({why}): {test}")


if __name__ == "__main__":
    main()
