"""Writes docs/errors.md from the messages of the core and of each plugin; with --check, only says whether it is up to date."""

from __future__ import annotations

from collections.abc import Iterator

from generated_page import write_or_check
from suite_index import ROOT

HEAD = """# Messages and what to do

Made by `make docs` from `messages.md` of the core and of each plugin; do not edit.

Each message has an id, which never changes. `disttest explain ID` prints its section, such as `disttest explain rank-killed`.
The quotes have `…` and capital letters for the parts that vary. Messages that name their own remedy are not listed. Failures in
the terminal, errors of the command, `disttest launch` and `disttest doctor` name the id. `disttest explain RESULTS` shows the id
of each failure.

`The test failed` means that the run is red: it ends with exit code 1, unless a retry passes. `An infrastructure error` also makes
it red, with exit code 7, or 1 if a test failed too. `A note` and `a warning` change no verdict. `TEST` in a path is the name of
the test's folder, and `results` is the directory of `--results`.
"""
PARTS = (
    *("results", "runtime/controller", "plugins/floors", "plugins/leftovers", "plugins/gpus"),
    *("extras/doctor", "extras/container", "extras/cluster", "extras/shards"),
)
"""Folders below the package, in the order of the page."""


def lines() -> Iterator[str]:
    """The page."""
    package = ROOT / "entrypoint" / "disttest"
    files = [package / part / "messages.md" for part in PARTS]
    if left := set(package.rglob("messages.md")) - set(files):
        raise SystemExit(f"tools/messages_doc.py does not name {', '.join(map(str, left))}")
    yield HEAD
    for file in files:
        yield file.read_text(encoding="utf-8")


def main() -> int:
    """Write or compare the page; the exit code."""
    return write_or_check("errors.md", lines(), __doc__)


if __name__ == "__main__":
    raise SystemExit(main())
