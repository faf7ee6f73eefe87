"""Facts about its commit that a run records."""

from __future__ import annotations

from pathlib import Path

import msgspec

from disttest.cli.run_tests import RunRequest
from disttest.extras.history.git_facts import CommitFacts, facts_of_ci, facts_of_git
from disttest.extras.history.option_rows import FILE
from disttest.options.environment import environment


def facts_of(request: RunRequest) -> CommitFacts | None:
    """Return the facts; None outside of CI in a run without a history, which must not wait for git."""
    file: Path | None = request.settings[FILE.field]
    facts = facts_of_ci(environment())
    if file is None:
        return facts
    found = facts or facts_of_git(Path.cwd())
    return msgspec.structs.replace(found, file=str(file.absolute()))
