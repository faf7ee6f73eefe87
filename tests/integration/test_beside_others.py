"""Two runs and a third process on one machine, all of which make shared memory: nothing of others is touched.

One trial of one round; ``make soak`` has more (``--trials``), of ten rounds each. A failure names its seed: ``--seed``
repeats it.
"""

from __future__ import annotations

import pytest
from hostile.state import run_beside_others


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        first, trials = (metafunc.config.getoption(name) for name in ("--seed", "--trials"))
        metafunc.parametrize("seed", range(first, first + (trials or 1)))


@pytest.mark.slow("runs several programs beside each other")
def test_nothing_of_others_is_touched(lab, seed, pytestconfig):
    gone, left = run_beside_others(lab, seed=seed, rounds=10 if pytestconfig.getoption("--trials") else 1)

    assert [] == gone, "files of others were deleted"
    assert [] == left, "what the runs' own tests have left was not removed"


def test_what_is_made_while_a_look_rests_is_noted_before_the_test_ends(lab):
    """Whoever is killed in the middle of a long test leaves files that can be told from those of others."""
    source = """
        import multiprocessing.shared_memory, pathlib, time
        import pytest

        @pytest.mark.world_size(1)
        @pytest.mark.timeout(60)
        def test_makes_many(world):
            ledger = pathlib.Path("results/.shared-memory")
            for _ in range(5):
                made = [multiprocessing.shared_memory.SharedMemory(create=True, size=4096) for _ in range(20)]
                while not (ledger.exists() and all(each.name in ledger.read_text() for each in made)):
                    time.sleep(0.01)
                for each in made:
                    each.close()
                    each.unlink()
    """

    ended = lab.write(test_x=source).run("test_x.py")

    assert ended.exit_code == 0, ended.output
