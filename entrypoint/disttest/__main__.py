"""``python -m disttest`` is the ``disttest`` command."""

from disttest.cli import main

main()
