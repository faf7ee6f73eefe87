"""Limits of the shell that are too small: one line that names the limit, its value and what is needed."""

from __future__ import annotations

import pytest
from lab import Lab

from disttest.model import Cause, Outcome

SUITE = """
    import pytest

    @pytest.mark.world_size(2, 24)
    def test_ranks(world):
        pass
"""


def under(limit: str) -> list[str]:
    return ["bash", "-c", f'ulimit {limit} && exec "$@"', "bash"]


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("-n 12", "the limit on open files is 12, and a run needs 64: raise it with `ulimit -n 64`"),
        ("-n 32", "the limit on open files is 32, and a run needs 64: raise it with `ulimit -n 64`"),
        ("-f 0", "the limit on the size of files in bytes is 0, and a run needs 16,777,216: "),
        ("-f 8", "the limit on the size of files in bytes is 8,192, and a run needs 16,777,216: "),
    ],
)
def test_a_run_is_refused_in_one_line(lab: Lab, limit: str, message: str) -> None:
    ended = lab.write(test_ranks=SUITE).run("test_ranks.py", wrapper=under(limit))

    (line,) = ended.output.splitlines()
    assert line.startswith(f"disttest: {message}")
    assert 7 == ended.exit_code


def test_a_world_with_more_ranks_than_open_files_allow_says_so_and_others_run(lab: Lab) -> None:
    ended = lab.write(test_ranks=SUITE).run("test_ranks.py", wrapper=under("-n 96"))

    refused = ended.result("test_ranks[24xgloo]")
    assert (Outcome.ERROR, Cause.INFRASTRUCTURE) == (refused.outcome, refused.cause)
    assert (
        "the limit on open files is 96, and a world of 24 ranks needs 120: raise it with `ulimit -n 120`"
        == (refused.message)
    )
    assert Outcome.PASSED is ended.result("test_ranks[2xgloo]").outcome
    assert "Traceback" not in ended.output
    assert 7 == ended.exit_code
