"""The faults of a run as tables, in the terminal and on the page."""

import msgspec
from rendered import render_final
from sample_runs import SampleRun

from disttest.extras.chaos.case import NAME, ChaosCase, Contract, Fault, FaultKind
from disttest.extras.chaos.tables import report_tables
from disttest.model import Outcome, PluginFinding
from disttest.plugins.html.render import render_html

SILENT = PluginFinding(finder=NAME, kind="silent", message="rank 0 passed", effect="", advice="", fails=True)


def case(rank, call):
    fault = Fault(kind=FaultKind.KILL, rank=rank, call=call)
    return {
        "data": {NAME: msgspec.to_builtins(ChaosCase(contract=Contract(), fault=fault))},
        "collected_as": "ddp/test_x.py::test_sum[2xgloo]",
    }


def harmed_run():
    run = SampleRun()
    run.test(name="a", case=case(0, 1))
    run.test(Outcome.FAILED, name="b", case=case(0, 3), findings=(SILENT,), message="chaos: rank 0 passed")
    run.test(Outcome.ERROR, name="c", case=case(1, 2), message="chaos: rank 1 did not come to its call 2")
    return run.finish(1)


def test_a_cell_for_each_call_of_each_rank():
    (table,) = report_tables(harmed_run())

    assert "kill in ddp/test_x.py::test_sum[2xgloo]" == table.title
    assert ["rank 0  · S", "rank 1   ? ", "S silent, ? unreached"] == table.lines()


def test_the_calls_of_a_long_test_are_cut():
    (table,) = report_tables(harmed_run())

    assert "rank 0  · … 1 more" == table.lines(most=2)[0].replace("·  …", "· …")


def test_a_run_without_faults_has_no_table():
    run = SampleRun()
    run.test()

    assert [] == report_tables(run.finish())
    assert "chaos" not in render_final(run.finish())


def test_the_terminal_and_the_page_show_it():
    run = harmed_run()
    text, page = render_final(run), render_html(run)

    assert "chaos: kill in ddp/test_x.py::test_sum[2xgloo]\n  rank 0  · S" in text
    assert 1 == page.count('<td class="kept"')
    assert 2 == page.count('<td class="broken"')
    assert 'aria-label="silent">S</button>' in page
