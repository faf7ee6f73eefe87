"""The end of a run by any path: reports on disk, the final lines on the terminal, and the outputs of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from disttest.cli.words import warn, warn_by_plugins
from disttest.errors import ExitCode, PluginError, ReportError
from disttest.options.environment import ci_job
from disttest.plugin_manager import plugin_manager
from disttest.reports.terminal import print_final
from disttest.reports.text import count
from disttest.reports.write import write_reports
from disttest.results.conclusion import Demands, facts_of, final_exit_code
from disttest.results.directory import short_path
from disttest.results.fold import RunResult
from disttest.results.journal import FILE_NAME, record_end


def finish_run(
    run: RunResult,
    results: Path,
    *,
    settings: Mapping[str, Any],
    empty_shard: bool,
    failures: bool,
    environ: Mapping[str, str],
    keep: bool = True,
) -> int:
    """Write the reports and outputs of an ended run; return the exit code of the command.

    Args:
        run: result of the run.
        results: directory of its reports.
        settings: options that only the command reads, by field.
        empty_shard: whether the plan has nothing for this shard, so that an empty run passes.
        failures: whether to print each failure in full; False if that was done during the run.
        environ: the environment of the command.
        keep: whether to keep the results; otherwise those of the previous run are restored.
    """
    demands = msgspec.structs.replace(missed_demands(run, settings), nothing_is_fine=empty_shard)
    # Before the reports are written: they show the exit code of the command, not only that of the tests.
    reason, run = run.reason, conclude_command(run, demands, results)
    lost = write_and_show(run, results, environ)
    plugins = plugin_manager()
    plugins.call("disttest_before_final_lines", run=run, environ=environ)
    # Missed demands follow in full.
    shown = msgspec.structs.replace(run, reason=reason)
    print_final(Console(), shown, results_dir=results, failures=failures)
    demands = msgspec.structs.replace(demands, lost=(*demands.lost, *lost))
    for message in (*demands.lost, *demands.broken, *demands.idle):
        warn(message)
    if keep:
        click.echo(f"disttest: reports and logs in {short_path(results)}")
    else:
        click.echo(f"disttest: no test ran; {short_path(results)} still has the results of the run before")
    # Only now is it known which reports are lost. The journal gets this exit code, too, for later reports and
    # merges.
    conclude_command(run, demands, results)
    code = final_exit_code(run.exit_code, demands)
    plugins.call("disttest_reports_written", results=results)
    warn_by_plugins("disttest_run_finished", run=run, results=results, exit_code=code, environ=environ)
    return code


def missed_demands(run: RunResult, settings: Mapping[str, Any]) -> Demands:
    """Return the demands that a run misses: its own on flaky tests, and those of plugins.

    Args:
        run: result of the run, or of a merge.
        settings: as for :func:`finish_run`.
    """
    hook, flaky = "disttest_check_run", list[str]()
    if run.flaky_fails and run.flaky:
        flaky.append(f"--flaky=fail: {count(len(run.flaky), 'test')} passed only when tried again")
    try:
        missed = [*plugin_manager().named(hook, Demands, run=run, settings=settings).values()]
    # Such a run is not green, and its reports are written all the same.
    except PluginError as error:
        return Demands(lost=[str(error)], broken=flaky)
    return Demands(
        idle=[message for each in missed for message in each.idle],
        broken=[*(message for each in missed for message in each.broken), *flaky],
    )


def conclude_command(run: RunResult, demands: Demands, results: Path) -> RunResult:
    """Return the run as the command ends it; a demand that a green run does not meet is recorded in the journal, too."""
    code = final_exit_code(run.exit_code, demands)
    if code == run.exit_code:
        return run
    reasons = (*demands.lost, *demands.broken, *demands.idle)
    record_end(results / FILE_NAME, at_s=run.ended_at_s, exit_code=code, reasons=reasons)
    return msgspec.structs.replace(run, exit_code=code, reason="; ".join(reasons))


def is_worth_keeping(run: RunResult, environ: Mapping[str, str]) -> bool:
    """Return whether results may replace those of the previous run; later steps of a CI job always read them."""
    found_nothing = run.exit_code in (ExitCode.USAGE, ExitCode.NOTHING_COLLECTED)
    nothing_ran = facts_of(run).empty and not run.collection_errors
    return ci_job(environ) is not None or not (found_nothing and nothing_ran)


def write_and_show(run: RunResult, results: Path, environ: Mapping[str, str]) -> list[str]:
    """Write the reports, and have plugins show the summary; return what could not be written or shown."""
    lost = []
    try:
        write_reports(run, results)
    except ReportError as error:
        lost = [str(error)]
    shown = plugin_manager().items("disttest_show_summary", str, run=run, results=results, environ=environ)
    return [*lost, *(message for _, message in shown)]
