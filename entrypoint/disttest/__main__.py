"""``python -m disttest`` is the ``disttest`` command."""

from __future__ import annotations

import gc
import os
import sys

from disttest.extras.resident.handover import run_by_parent


def main() -> None:
    """Be the command: by a fork of a resident parent, if one is there for it, else in this process."""
    code = run_by_parent(sys.argv[1:], os.environ)  # noqa: TID251 - its reader imports more than this way takes
    if code is not None:
        sys.exit(code)  # noqa: TID251
    try:
        _command()
    finally:
        gc.freeze()  # the interpreter's last collections would look through all that was imported


def _command() -> None:
    """Be the command in this process; a plugin that cannot be loaded is told in one line."""
    from disttest.errors import PluginError

    try:
        from disttest.cli.main import main as command
    except PluginError as error:
        sys.stderr.write(f"disttest: {error}\n")
        sys.exit(error.exit_code)  # noqa: TID251
    command()


if __name__ == "__main__":
    main()
