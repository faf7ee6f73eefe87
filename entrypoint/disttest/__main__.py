"""``python -m disttest`` is the ``disttest`` command."""

from disttest.cli.main import main

main()
