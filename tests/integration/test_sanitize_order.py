"""``--sanitize order`` over real ranks: what is found, where it is told, and what it does to the verdict."""

from __future__ import annotations

import pytest

from disttest.model import Cause, Outcome

pytestmark = pytest.mark.forked_runs

TESTS = """
    import pytest, torch, torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    def test_fits(world):
        for _ in range(3):
            dist.all_reduce(torch.ones(4))
        work = dist.all_reduce(torch.ones(4), async_op=True)
        work.wait()
        dist.send(torch.ones(2), 1) if world.is_first else dist.recv(torch.ones(2), 0)

    def test_differs(world):
        dist.all_reduce(torch.ones(4), dist.ReduceOp.SUM if world.is_first else dist.ReduceOp.MAX)

    def test_goes_on_after_an_error(world):
        if world.is_first:
            with pytest.raises(RuntimeError):
                dist.broadcast(torch.ones(1), 7)

    def test_of_one_rank(world):
        if not world.is_first:
            dist.all_reduce(torch.ones(4), async_op=True)

    def test_comes_after_it(world):
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x == 2

    def test_fails(world):
        dist.all_reduce(torch.ones(4), dist.ReduceOp.SUM if world.is_first else dist.ReduceOp.MAX)
        assert False
"""


def kinds(result):
    return [finding.kind for finding in result.findings]


def test_findings_are_warnings_beside_the_verdicts(lab, nothing_left):
    ended = lab.write(test_order=TESTS).run("test_order.py")

    differs = ended.result("test_differs")
    assert (Outcome.PASSED, ["mismatch"]) == (differs.outcome, kinds(differs))
    (finding,) = differs.findings
    assert "rank 0 called all_reduce SUM of float32[4] at test_order.py:" in finding.message
    assert [0, 1] == [order.rank for order in finding.orders]
    assert f"test_order.py:{finding.orders[0].calls[-1].line}: warning: ranks disagree" in ended.output
    assert ["extra"] == kinds(ended.result("test_of_one_rank"))
    for name in ("test_fits", "test_goes_on_after_an_error", "test_comes_after_it"):
        assert (Outcome.PASSED, []) == (ended.result(name).outcome, kinds(ended.result(name))), name
    assert [] == kinds(ended.result("test_fails"))


def test_findings_fail_their_tests_where_that_is_asked_for(lab, nothing_left):
    ended = lab.write(test_order=TESTS).run("test_order.py", "-k", "fits or differs", "--sanitize", "order")

    differs = ended.result("test_differs")
    assert (1, Outcome.FAILED, Cause.TEST) == (ended.exit_code, differs.outcome, differs.cause)
    assert differs.message.startswith("sanitizer order: ranks disagree at collective #1 of group default")
    assert Outcome.PASSED is ended.result("test_fits").outcome
    assert 'type="sanitizer"' in (ended.results / "junit.xml").read_text()


@pytest.mark.parametrize("how", ["command", "plain pytest"])
def test_nothing_is_looked_at_where_it_is_off(lab, how):
    lab.write(test_order=TESTS)
    if how == "command":
        ended = lab.run("test_order.py", "-k", "differs", "--sanitize", "off")
    else:
        ended = lab.pytest("test_order.py", "-k", "differs", "--disttest-sanitize=off")

    assert 0 == ended.exit_code, ended.output
    assert [] == kinds(ended.result("test_differs"))
