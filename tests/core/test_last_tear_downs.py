"""Fixtures that outlive the last test of a world that ends early: their failures count."""

import pytest

from disttest.model import Outcome

SUITE = """
    import os
    import signal
    import threading
    import time

    import pytest

    world_size = pytest.mark.world_size(2)
    seen = []

    @pytest.fixture(scope="module")
    def audit():
        yield
        assert not seen, f"the audit found {seen}"

    @pytest.fixture(scope="module")
    def slow_audit():
        yield
        time.sleep(1.5)  # longer than the ranks of a broken world have
        assert not seen, f"the audit found {seen}"

    @pytest.fixture(scope="module")
    def crash():
        yield
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSEGV)

    @pytest.fixture(scope="module")
    def leaves():
        yield
        if os.environ["RANK"] == "1":
            os._exit(3)

    {tests}
"""
LEAVES_A_THREAD = "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()"
ENDS = {
    "a leak": ("audit", "", LEAVES_A_THREAD),
    "a leak before a slow fixture": ("slow_audit", "", LEAVES_A_THREAD),
    "an expected failure": ("audit", "@pytest.mark.xfail", "assert not seen"),
    "an expected failure before a slow fixture": ("slow_audit", "@pytest.mark.xfail", "assert not seen"),
    "a crash after an expected failure": ("crash", "@pytest.mark.xfail", "assert not seen"),
    "an exit after an expected failure": ("leaves", "@pytest.mark.xfail", "assert not seen"),
    "a crash after a leak": ("crash", "", LEAVES_A_THREAD),
}


def suite(fixture: str, mark: str, body: str) -> str:
    tests = f"""
    {mark}
    @world_size
    def test_first(world, {fixture}):
        seen.append("test_first")
        {body}

    @world_size
    def test_second(world):
        pass
"""
    return SUITE.replace("{tests}", tests.strip())


PEERS = """
    import time

    import pytest
    import torch.distributed as dist

    @pytest.fixture(scope="module")
    def waits():
        yield
        dist.barrier()

    @pytest.mark.xfail
    @pytest.mark.world_size(2)
    def test_first(world, waits):
        if world.rank == 1:
            assert not "here"
        time.sleep(3600)

    @pytest.mark.world_size(2)
    def test_second(world):
        pass
"""


OWN = """
    import time
    from pathlib import Path

    import pytest

    @pytest.fixture
    def server(request):
        yield
        time.sleep(0.8)  # longer than peers get after a failure
        Path(f"{request.node.name}-stopped").touch()
        assert 0, "leaked"

    @pytest.mark.world_size(2)
    def test_expected(world, server):
        pytest.xfail("here")

    @pytest.mark.world_size(2)
    def test_failed(world, server):
        assert world.rank == 0
"""
QUIET = """
    import threading
    import time

    import pytest

    @pytest.fixture(scope="module")
    def skips():
        yield
        pytest.skip("an optional clean-up")

    @pytest.mark.world_size(2)
    def test_skip(world, skips):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()

    @pytest.mark.world_size(2)
    def test_follows(world):
        pass
"""
STUCK = """
    import signal
    import sys
    import threading
    import time

    import pytest

    @pytest.fixture(scope="module")
    def waits():
        yield
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        time.sleep(3600)

    @pytest.mark.world_size(1)
    def test_stuck(world, waits):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()

    @pytest.mark.world_size(1)
    def test_follows(world):
        pass
"""


# The world, a fork of this process, waits this long for the test that never tears down.
IMPATIENT = """
    from disttest.runtime.world import world_supervisor

    world_supervisor.LAST_TEAR_DOWN_S = 2.0
"""


@pytest.fixture(scope="module")
def ended(module_lab):
    files = {f"test_{how.replace(' ', '_')}": suite(*parts) for how, parts in ENDS.items()}
    files |= {"test_failed": suite("audit", "", "assert not 'here'"), "test_peers": PEERS, "test_own": OWN}
    files |= {"test_quiet": QUIET, "test_ended": STUCK}
    return module_lab.write(conftest=IMPATIENT, **files).run(".")


@pytest.mark.parametrize("how", ENDS)
def test_a_fixture_that_fails_as_the_world_ends_is_an_error_of_the_last_test(ended, how):
    file = f"test_{how.replace(' ', '_')}.py"

    result = ended.result(f"{file}::test_first[2xgloo]")
    assert result.outcome.is_bad, ended.output
    words = "the audit found" if "audit" in ENDS[how][0] else "after it had finished the test"
    assert words in result.message
    assert Outcome.PASSED is ended.result(f"{file}::test_second[2xgloo]").outcome


def test_it_is_a_note_of_a_test_that_has_failed_already(ended):
    assert "here" in ended.result("test_failed.py::test_first[2xgloo]").message
    assert [each for each in ended.run.notes if "test_failed.py" in each and "the audit found" in each]


def test_a_rank_that_failed_may_tear_down(ended):
    expected = ended.result("test_own.py::test_expected[2xgloo]")
    assert Outcome.ERROR is expected.outcome
    assert "leaked" in expected.message
    assert [*ended.results.parent.glob("test_failed*-stopped")]


def test_a_fixture_that_misses_its_peer_after_an_expected_failure_says_nothing(ended):
    assert Outcome.XFAILED is ended.result("test_peers.py::test_first[2xgloo]").outcome


def test_a_skip_fails_nothing(ended):
    assert Outcome.PASSED is ended.result("test_quiet.py::test_skip[2xgloo]").outcome


def test_a_tear_down_that_does_not_end_is_an_error_of_the_last_test(ended):
    result = ended.result("test_ended.py::test_stuck[1xgloo]")
    assert Outcome.ERROR is result.outcome
    assert "a fixture that outlived this test, or a hook of a conftest, did not end in time" in result.message
