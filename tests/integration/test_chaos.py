"""``disttest chaos`` over real ranks: what is found in the planted programs, and what the command tells."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest
from lab import Ended, Lab
from planted import LOSSES, SILENCES, SURVIVORS, copy_programs, harmed_results_of, programs_of
from thorough import is_wanted
from typed import check_page

from disttest.model import Outcome, RankEnd

TESTS = """
    import pytest, torch, torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_swallows(world):
        for _ in range(2):
            try:
                dist.all_reduce(torch.ones(2))
            except RuntimeError:
                pass

    def test_of_one_process():
        pass
"""


def run(folder: Path, modules: tuple[str, ...], *arguments: str) -> Ended:
    return Lab(folder).run("chaos", *copy_programs(folder, modules), *arguments, limit_s=1200)


def unfound(ended: Ended, modules: tuple[str, ...]) -> dict[str, str]:
    results = harmed_results_of(ended.run)
    programs = programs_of(modules)
    return {name: why for name, program in programs.items() if (why := program.check_breach(results[name]))}


@pytest.mark.slow("runs each test once for each fault and call")
@pytest.mark.parametrize("title", ["A loss that goes unnoticed", "The contract"])
def test_the_examples_say_what_the_page_shows(lab, title):
    check_page("docs/chaos.md", title, lab)


def test_half_of_them_follow_reports_of_users():
    programs = programs_of((*LOSSES, *SILENCES)).values()
    reports = collections.Counter(bool(program.report) for program in programs)

    assert len(programs) >= 20
    assert reports[True] >= reports[False]


@pytest.fixture
def planted_memory(nothing_left):
    """What the programs leave in shared memory when they are killed before anybody could see who has made it."""
    yield
    for path in Path("/dev/shm").glob("planted-*"):
        path.unlink()


@pytest.mark.slow("runs each test once for each fault and call")
def test_what_goes_wrong_when_a_peer_is_killed_is_found(tmp_path, planted_memory):
    ended = run(tmp_path, LOSSES, "--kinds", "kill", "--group-timeout", "1")

    assert {} == unfound(ended, LOSSES)


@pytest.mark.slow("runs each test once for each fault and call")
def test_what_goes_wrong_when_a_peer_is_silent_is_found(tmp_path, nothing_left):
    ended = run(tmp_path, SILENCES, "--kinds", "stop,raise", "--group-timeout", "1")

    assert {} == unfound(ended, SILENCES)


@pytest.mark.slow("runs each test once for each fault and call")
@pytest.mark.parametrize("when", ["before", "during"])
def test_nothing_is_found_in_programs_that_keep_their_contract(tmp_path, nothing_left, when):
    sampled = [] if is_wanted() else ["--samples", "3", "--seed", "1"]  # of each program's faults
    ended = run(tmp_path, SURVIVORS, *sampled, *(["--during"] if when == "during" else []))

    found = {
        test.test.nodeid: test.final.message
        for test in ended.run.tests
        if test.final.outcome is not Outcome.PASSED
    }
    assert {} == found
    assert programs_of(SURVIVORS).keys() == harmed_results_of(ended.run).keys()


def test_a_broken_contract_is_told_with_the_command_that_repeats_it(lab, nothing_left):
    ended = lab.write(test_step=TESTS).run(
        "chaos", "test_step.py", "--fault", "kill:1:2", "--fault", "delay:0:1"
    )

    assert 1 == ended.exit_code
    broken = ended.result("test_swallows[2xgloo-kill:1:2]")
    assert Outcome.PASSED is ended.result("test_swallows[2xgloo-delay:0:1]").outcome
    assert "rank 0 passed, though all_reduce at test_step.py:8 had raised" in broken.message
    assert "disttest chaos 'test_step.py::test_swallows[2xgloo]' --fault kill:1:2" in ended.output
    assert "chaos: test_step.py::test_swallows[2xgloo]: 2 faults" in ended.output
    assert "test_of_one_process" not in {test.test.name for test in ended.run.tests}


def test_a_broken_contract_of_a_test_in_quarantine_is_shown(lab, nothing_left):
    (lab.folder / "flaky.toml").write_text(
        '[[test]]\ntest = "test_step.py::test_swallows"\nowner = "ann"\nreason = "races"\nexpires = 2999-01-01\n'
    )
    ended = lab.write(test_step=TESTS).run("chaos", "test_step.py", "--fault", "kill:1:2")

    assert ended.exit_code == 0, ended.output
    assert "S silent" in ended.output


def test_a_rank_that_was_stopped_is_told_in_the_phase_in_which_it_stood(lab, nothing_left):
    ended = lab.write(test_step=TESTS).run("chaos", "test_step.py", "--fault", "stop:1:2")

    stopped = ended.result("test_swallows[2xgloo-stop:1:2]").ranks[1]
    assert (RankEnd.KILLED, "call") == (stopped.end, stopped.phase)
    assert "still running in call, ended by disttest" in ended.output


def test_a_sample_names_its_seed(lab):
    ended = lab.write(test_step=TESTS).run(
        "chaos", "test_step.py", "--samples", "3", "--seed", "7", "--kinds", "delay"
    )

    assert "3 of 4 faults, drawn with --seed 7" in ended.output
    assert 3 == len(ended.run.tests)


def test_no_fault_is_injected_if_a_test_fails_without_faults(lab):
    lab.write(test_step=TESTS.replace("for _ in", "assert False\n        for _ in"))

    for _ in range(2):  # the second is not refused for what the first has left
        ended = lab.run("chaos", "test_step.py")

        assert 1 == ended.exit_code, ended.output
        assert "no fault was tried, since not all tests pass without faults" in ended.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fault", "kill:7:1"], "has no rank 7"),
        (["--fault", "crash:1:1"], "is not a fault"),
        (["--delay", "3"], "treated as hung"),
    ],
)
def test_what_makes_no_sense_is_refused(lab, arguments, said):
    ended = lab.write(test_step=TESTS).run("chaos", "test_step.py", *arguments)

    assert 2 != ended.exit_code != 0
    assert said in ended.output


LATE = """
    import pytest, torch, torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_late(world):
        for step in range(1, 13):
            try:
                dist.all_reduce(torch.ones(2))
            except RuntimeError:
                if step < 5:
                    raise
"""


@pytest.mark.slow("runs each test once for each fault and call")
def test_from_a_sampled_fault_the_smallest_is_searched(lab, nothing_left):
    ended = lab.write(test_late=LATE).run(
        "chaos", "test_late.py", "--samples", "1", "--seed", "1", "--kinds", "kill"
    )

    assert 1 == ended.exit_code
    assert ["test_late[2xgloo-kill:1:12]"] == [test.test.name for test in ended.run.tests]
    assert "chaos: kill:1:5 is the smallest that breaks test_late.py::test_late[2xgloo]" in ended.output
    assert "(4 of 4 earlier calls of rank 1 tried)" in ended.output
    assert "disttest chaos 'test_late.py::test_late[2xgloo]' --fault kill:1:5" in ended.output
    rounds = sorted(path.name for path in ended.results.glob("smaller-*"))
    assert ["smaller-1", "smaller-2"] == rounds
    assert all((ended.results / name / "report.html").is_file() for name in rounds)
