"""The planted programs (tests/planted) do what they are there for: they hang, or they pass though they are wrong."""

from __future__ import annotations

import collections

import pytest
from lab import Ended, Lab
from planted import GOOD, HANGS, ORDERS, TRAPS, copy_programs, programs_of

from disttest.model import Outcome

HANG_S = 4


def run(folder, modules, *arguments: str, **environ: str) -> Ended:
    folder.mkdir()
    return Lab(folder).run(
        *("run", *copy_programs(folder, modules), "--slots", "16"), *arguments, limit_s=600, **environ
    )


def outcomes(ended: Ended) -> dict[str, tuple[Outcome, str]]:
    """What each test came to, with its message, by the name of its function."""
    return {
        test.test.nodeid.rpartition("::")[2].partition("[")[0]: (test.final.outcome, test.final.message)
        for test in ended.run.tests
    }


def test_half_of_them_follow_reports_of_users():
    for modules in (HANGS, ORDERS):
        programs = programs_of(modules).values()
        reports = collections.Counter(bool(program.report) for program in programs)
        assert reports[True] >= reports[False], modules


def test_every_planted_hang_hangs(tmp_path, nothing_left):
    found = outcomes(run(tmp_path / "hangs", HANGS, "--timeout", str(HANG_S), "--deadlock", "off"))

    assert programs_of(HANGS).keys() == found.keys()
    assert {} == {
        name: message
        for name, (outcome, message) in found.items()
        if outcome is not Outcome.FAILED or not message.endswith(f"(timed out after {HANG_S} s)")
    }


@pytest.mark.parametrize("modules", [TRAPS, ORDERS, GOOD], ids=lambda modules: modules[0])
def test_all_others_pass(tmp_path, nothing_left, modules):
    found = outcomes(run(tmp_path / "others", modules))

    assert programs_of(modules).keys() == found.keys()
    assert {} == {
        name: message
        for name, (outcome, message) in found.items()
        if outcome not in (Outcome.PASSED, Outcome.XFAILED)
    }
