"""Entry point of ``python -m disttest``, which is the ``disttest`` command."""

from __future__ import annotations

import gc
import importlib
import os
import sys


def main() -> None:
    """Run the command: elsewhere if an extra takes it over early, otherwise in this process."""
    code = _run_early()
    if code is not None:
        sys.exit(code)  # noqa: TID251
    try:
        _command()
    finally:
        # The last collections of the interpreter would look through everything that was imported.
        gc.freeze()


def _run_early() -> int | None:
    """Ask each extra that has a module ``early``; return the exit code of the first one that ran the command."""
    # The modules are found by their files: loading all plugins takes 0.08 s, a third of the command that such an
    # extra speeds up. No pathlib here: importing it costs every such command 10 ms.
    extras = f"{os.path.dirname(__file__)}/extras"  # noqa: PTH120
    for name in sorted(os.listdir(extras)):  # noqa: PTH208
        if not os.path.isfile(f"{extras}/{name}/early.py"):  # noqa: PTH113
            continue
        early = importlib.import_module(f"disttest.extras.{name}.early")
        code: int | None = early.run_early(sys.argv[1:], os.environ)  # noqa: TID251
        if code is not None:
            return code
    return None


def _command() -> None:
    """Run the command in this process; a plugin that cannot be loaded is one line on standard error."""
    from disttest.errors import PluginError

    try:
        from disttest.cli.main import main as command
    except PluginError as error:
        sys.stderr.write(f"disttest: {error}\n")
        sys.exit(error.exit_code)  # noqa: TID251
    command()


if __name__ == "__main__":
    main()
