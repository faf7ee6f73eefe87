"""Sessions of plain pytest that ask for nothing of disttest look as they do without the plugin."""

from __future__ import annotations

import pytest
from lab import Ended

UNRELATED = """
    import pytest

    @pytest.mark.world_size("big")
    @pytest.mark.timeout("5m")
    def test_of_another_harness():
        pass
"""
MARKED = """
    import pytest

    @pytest.mark.exclusive
    @pytest.mark.timeout(60)
    @pytest.mark.world_size(2)
    def test_in_ranks(world):
        assert world.size == 2
"""


def plain_pytest(lab, *words):
    """Run pytest without any option of disttest."""
    process = lab.start_pytest(*words)
    output, _ = process.communicate(timeout=240)
    return Ended(process.returncode, output, lab.folder / "results")


@pytest.fixture
def strict(lab):
    """A laboratory whose project declares the marks of another harness and refuses all others."""
    (lab.folder / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers\nmarkers =\n  world_size: of another harness\n  timeout: of another plugin\n"
    )
    return lab


def test_foreign_marks_and_terminal_stay_as_they_are(strict):
    strict.write(test_unrelated=UNRELATED)
    ended = plain_pytest(strict, "test_unrelated.py")

    assert 0 == ended.exit_code, ended.output
    assert "disttest 0" not in ended.output
    assert "1 passed" in ended.output


def test_common_names_are_not_declared(strict):
    strict.write(test_typo="import pytest\n\n@pytest.mark.exclusive\ndef test_one():\n    pass\n")
    ended = plain_pytest(strict, "test_typo.py")

    assert "'exclusive' not found in `markers`" in ended.output


def test_tests_that_ask_for_ranks_have_all_marks_and_the_header(strict):
    strict.write(test_marked=MARKED)
    ended = plain_pytest(strict, "-W", "error", "test_marked.py")

    assert 0 == ended.exit_code, ended.output
    assert 1 == ended.output.count("disttest 0")


def test_a_size_that_makes_no_sense_is_an_error_where_the_world_is_ours(lab):
    lab.write(test_wrong="import pytest\n\n@pytest.mark.world_size('2')\ndef test_one(world):\n    pass\n")
    ended = plain_pytest(lab, "test_wrong.py")

    assert 2 == ended.exit_code
    assert "world size '2' is not a whole number" in ended.output
    assert "foreign-marks" in ended.output


def test_the_help_of_pytest_has_no_internal_option(lab):
    assert "(internal)" not in plain_pytest(lab, "--help").output
