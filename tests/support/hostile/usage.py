"""Results of others in the way of a run's own."""

from __future__ import annotations

from lab import Lab

from hostile import Trial

GOOD = """
    import pytest
    @pytest.mark.world_size(2)
    def test_good(world):
        pass
"""


def _foreign_files_stay(lab: Lab) -> None:
    foreign = lab.folder / "results" / "thesis.txt"
    foreign.parent.mkdir()
    foreign.write_text("years of work")

    ended = lab.write(test_good=GOOD).run("test_good.py")

    assert ended.exit_code != 0, "a folder with foreign files was taken"
    assert foreign.read_text() == "years of work"


TRIALS = (
    Trial(
        id="foreign-files-in-results",
        claim="A results directory with files of others is refused, and they stay as they are.",
        run=_foreign_files_stay,
    ),
)
