"""Hooks of supervised ranks for classes that start ranks."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttest.hookspecs import hookimpl, of_pytest
from disttest.model import VerdictRule, WorldKind
from disttest.options.option import Option, of_every_run
from disttest.options.values import SWITCH

if TYPE_CHECKING:
    import pytest

    from disttest.options.run import RunOptions
    from disttest.runtime.controller.target_host import TargetHost
    from disttest.runtime.controller.wanted_worlds import OwnWorld
    from disttest.runtime.rank.rank import ProcessMain
    from disttest.runtime.rank.rank_spec import RankSpec


# Opt-in under plain pytest: a plugin installed for one project must not change the verdicts of another's tests. It
# would also break `python FILE --use-pytest`, where torch is imported before any plugin.
# docs/decisions/0004-installed-changes-nothing.md
HOST = of_every_run(
    "host",
    SWITCH,
    "Run classes that start ranks (torch's, DeepSpeed's) on ranks that disttest forks and supervises.",
    default=False,
    otherwise="true for the command, false under plain pytest",
    by_command="true",
    shapes_tests=True,
)


def hosts_all(config: pytest.Config) -> bool:
    """Return whether classes of other harnesses run on supervised ranks without a mark."""
    from disttest.runtime.controller.orders import collecting_order
    from disttest.runtime.controller.session_options import OPTIONS

    return collecting_order(config) is not None or HOST.of(config.stash[OPTIONS])


_MARK = "hosted: run a class that starts ranks (torch's own, DeepSpeed's) on supervised forks, as --disttest-host does for all"


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Return ``--host``."""
    return (HOST,)


@hookimpl
def disttest_marks() -> Sequence[str]:
    """Return the mark for one class."""
    return (_MARK,)


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the part of main processes."""
    del config
    from disttest.plugins.launching_classes import main_process  # noqa: F401


@of_pytest(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Import files that are scripts, too: torch's test files are started as ``python FILE``, and may end the process."""
    if not hosts_all(collector.config):
        return (yield)
    import pytest

    from disttest.runtime.controller.leaving_imports import report_of, staying

    if isinstance(collector, pytest.Module):
        _find_siblings(collector.path)
    try:
        with staying():
            return (yield)
    except SystemExit as leaving:
        return report_of(collector, leaving)


def _find_siblings(path: Path) -> None:
    """Put the folder of a script first on the path, as ``python FILE`` does."""
    # It stays there, because tests import late.
    folder = str(path.parent)
    # Only scripts import modules next to them: with other files a folder on the path could hide packages.
    if folder not in sys.path and b"__main__" in path.read_bytes():
        sys.path.insert(0, folder)


@hookimpl
def disttest_marks_are_foreign(item: pytest.Item) -> bool | None:
    """Recognise marks of classes like DeepSpeed's, which start the marked number of ranks."""
    return bool(getattr(getattr(item, "cls", None), "is_dist_test", False)) or None


@hookimpl(tryfirst=True)
def disttest_world_of(item: pytest.Item, options: RunOptions, host: TargetHost) -> OwnWorld | None:
    """Return the world of the ranks that the test's class starts."""
    from disttest.plugins.launching_classes.recognise import world_of

    return world_of(item, options, host)


@hookimpl
def disttest_process_main(spec: RankSpec) -> ProcessMain | None:
    """Return the main function of a class's main process."""
    if spec.kind not in (WorldKind.MAIN, WorldKind.THREADS):
        return None
    from disttest.plugins.launching_classes.main_process import serve_main

    return serve_main


@hookimpl
def disttest_ordinary_tests_begin(options: RunOptions) -> None:
    """Judge threads that ordinary tests start as ranks."""
    _judge_threads(options.verdict, torchs=HOST.of(options))


@hookimpl
def disttest_process_configure(spec: RankSpec, config: pytest.Config) -> None:
    """Judge them in the process of an isolated test, too."""
    if spec.kind is WorldKind.PROCESS:
        _judge_threads(spec.settings.verdict, torchs=hosts_all(config))


_THREADED = "torch.testing._internal.distributed.multi_threaded_pg"
_judges_threads = False


def _judge_threads(verdict: VerdictRule, *, torchs: bool) -> None:
    global _judges_threads
    # Both torch's harness and disttest's have imported it, if the tests of this process use them.
    _judges_threads = verdict is VerdictRule.STRICT and _THREADED in sys.modules
    if _judges_threads and torchs:
        from disttest.plugins.launching_classes.torch_bases import report_torchs_threads
        from disttest.testing.hosting import report_rank_threads

        report_torchs_threads(report_rank_threads)


@of_pytest(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Judge the threads of the test by its mark ``ranks_may_differ``."""
    if not _judges_threads:
        return
    from disttest.plugins.launching_classes.torch_bases import judge_threads
    from disttest.runtime.controller.wanted_worlds import ranks_may_differ
    from disttest.testing.hosting import provide_thread_judge

    provide_thread_judge(partial(judge_threads, may_differ=ranks_may_differ(item)))
