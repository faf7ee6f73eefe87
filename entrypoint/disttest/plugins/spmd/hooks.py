"""Hooks of SPMD mode, in which ranks collect the tests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disttest.errors import UsageError
from disttest.hookspecs import hookimpl, of_pytest
from disttest.model import Invocation, TestCase, WorldKind, WorldShape
from disttest.options.option import Option, of_every_run
from disttest.options.values import WORLD_SIZES

if TYPE_CHECKING:
    import pytest

    from disttest.cli.run_request import RunRequest
    from disttest.options.run import RunOptions
    from disttest.runtime.controller.target_host import TargetHost
    from disttest.runtime.controller.wanted_worlds import OwnWorld
    from disttest.runtime.rank.rank import ProcessMain
    from disttest.runtime.rank.rank_spec import RankSpec
    from disttest.runtime.supervisor.run_supervisor import PytestProcess


SPMD = of_every_run(
    "spmd",
    WORLD_SIZES,
    "Run every test in N ranks, each of which collects by itself, as torchrun -m pytest does; in turn for each N.",
    default=(),
    otherwise="as marked",
    shapes_tests=True,
    common=True,
)
"""Several sizes run one after another, each in a separate pytest process that knows a single size."""


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Return ``--spmd``."""
    return (SPMD,)


@hookimpl(trylast=True)
def disttest_prepare_run(request: RunRequest) -> None:
    """Refuse other machines."""
    if SPMD.of(request.options) and request.place:
        raise UsageError(f"--spmd is for one machine: leave {request.place.option} out")


@hookimpl
def disttest_check_collection(options: RunOptions) -> None:
    """Refuse several sizes."""
    asked = SPMD.of(options)
    if len(asked) > 1:
        sizes = ",".join(map(str, asked))
        raise UsageError(
            f"--spmd {sizes}: the collected tests depend on the size, so a list or plan takes one size: "
            f"give --spmd {asked[0]}"
        )


@hookimpl
def disttest_processes_of_run(options: RunOptions) -> Sequence[PytestProcess] | None:
    """Return one pytest process for each size."""
    from disttest.runtime.supervisor.run_supervisor import PytestProcess

    sizes = SPMD.of(options)
    return [
        PytestProcess(name=f"--spmd {size}", arguments=(f"--disttest-spmd={size}",)) for size in sizes
    ] or None


@hookimpl
def disttest_world_options(test: TestCase, invocation: Invocation) -> Sequence[str] | None:
    """Return the same number of ranks."""
    is_launched = invocation.options.get("spmd") and test.kind is WorldKind.RANKS and test.world
    return ("--spmd", str(test.world.size)) if is_launched and test.world else None


@of_pytest(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Set the variables of rank 0, except those of the rendezvous, in a process that collects for ranks."""
    from disttest.runtime.controller.orders import collecting_order, order_of

    known = early_config.known_args_namespace
    is_asked = known.collectonly or order_of(early_config).is_supervised
    if known.disttest_spmd and is_asked and collecting_order(early_config) is None:
        from disttest.runtime.rank.rank_spec import place_variables

        size = known.disttest_spmd.partition(",")[0].strip()
        # Before conftest files are imported, which often read WORLD_SIZE at their top.
        os.environ.update(place_variables(0, size))  # noqa: TID251


def pytest_configure(config: pytest.Config) -> None:
    """Add the fixture ``worker_id`` to a rank."""
    from disttest.runtime.controller.orders import collecting_order

    if config.getoption("disttest_spmd") and collecting_order(config) is not None:
        from disttest.plugins.spmd import spmd_rank

        # A module, because session fixtures cannot be methods.
        config.pluginmanager.register(spmd_rank, "disttest-worker-id")


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the part of ranks."""
    if config.known_args_namespace.disttest_spmd:
        from disttest.plugins.spmd import spmd_rank  # noqa: F401


@hookimpl
def disttest_set_options(config: pytest.Config, options: RunOptions) -> Mapping[str, Any]:
    """Have ranks collect."""
    from disttest.runtime.controller.orders import collecting_order, order_of

    # A project's setting has no effect under plain pytest: only the command prepares such ranks.
    collects = collecting_order(config) is not None or config.getoption("collectonly")
    sizes = SPMD.of(options) if collects or order_of(config).is_supervised else ()
    # A run has one pytest process for each size, and one journal for all of them.
    return {"ranks_collect": True, "one_world": True, "world_letter": f"w{sizes[0]}."} if sizes else {}


@hookimpl
def disttest_marks_are_foreign(options: RunOptions) -> bool | None:
    """Ignore the marks of tests: each test runs in the same world."""
    return options.ranks_collect or None


@hookimpl
def disttest_world_of(options: RunOptions, host: TargetHost) -> OwnWorld | None:
    """Return a world of N ranks."""
    if not options.ranks_collect:
        return None
    return world_of(options, host)


@hookimpl
def disttest_modify_tests(
    items: list[pytest.Item], config: pytest.Config, options: RunOptions, host: TargetHost
) -> None:
    """Put the world into the ids of tests, and leave hooks of conftest files to the ranks."""
    if options.ranks_collect:
        from disttest.plugins.spmd.spmd_rank import leave_hooks_to_ranks
        from disttest.runtime.controller.orders import collecting_order

        name_worlds(items, world_of(options, host).shape)
        if collecting_order(config) is None:
            leave_hooks_to_ranks(config)


@hookimpl
def disttest_process_main(spec: RankSpec) -> ProcessMain | None:
    """Return the main function of a rank that the suite controls."""
    if not spec.settings.ranks_collect or spec.kind is not WorldKind.RANKS:
        return None
    from disttest.plugins.spmd.spmd_rank import serve_spmd

    return serve_spmd


def world_of(options: RunOptions, host: TargetHost) -> OwnWorld:
    """Return the world of each test."""
    from disttest.runtime.controller.wanted_worlds import OwnWorld

    backend = next(iter(options.backend), host.default_backend())
    shape = WorldShape(size=SPMD.of(options)[0], backend=backend, device=host.device_for(backend))
    return OwnWorld(shape=shape, ranks_may_differ=True)


def name_worlds(items: Iterable[pytest.Item], shape: WorldShape) -> None:
    """Put the world into the ids of tests, as for marked tests; the names of the tests stay."""
    from disttest.runtime.controller.expand import rename

    for item in items:
        nodeid, parameters = item.nodeid, getattr(getattr(item, "callspec", None), "id", "")
        # The world comes before the parameters, as in ids of marked tests, so that `-k 2xgloo` selects
        # both.
        base = nodeid.removesuffix(f"[{parameters}]") if parameters else nodeid
        label = f"{shape}-{parameters}" if parameters else str(shape)
        rename(item, f"{base}[{label}]", collected_as=nodeid)
