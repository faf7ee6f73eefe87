"""A rank: runs tests when its world says so, and sends up what pytest reports. An island below the world.

A rank is either forked from a process that has collected the tests, or (where forking is unsafe) a
fresh interpreter that collected them itself; from :func:`serve` on the two are the same.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import pytest

from disttest.host.process import STACKS_SIGNAL, die_with_parent, leave
from disttest.model import Frozen, Outcome, WorldShape
from disttest.results.verdict import STRICT_XPASS
from disttest.running import hygiene
from disttest.running.protocol import (
    Channel,
    Leave,
    PhaseBegan,
    PhaseEnded,
    RankReady,
    RunTest,
    TestDone,
    clean_text,
)
from disttest.testing.world import World, provide_world

_DETAILS_LIMIT = 256 * 1024
_REPORT_LIMIT = 4 * 1024 * 1024
_HIGH_FD = 200
"""Descriptors of ours are kept above this, out of the way of tests that close or count low ones."""


class RankSpec(Frozen):
    """Who this rank is; told by its world when it starts."""

    rank: int
    shape: WorldShape
    world_id: str
    world_pid: int
    master_port: int
    """0: the world hosts no store."""
    devices: tuple[str, ...]
    stacks: Path
    scratch: Path
    """Base of this rank's ``tmp_path`` directories."""
    log: Path
    """Where output goes until the first test names its own log."""
    seed: int
    threads: int

    def environment(self) -> dict[str, str]:
        """torchrun's contract, and nothing but loopback for worlds on the CPU."""
        size = str(self.shape.size)
        variables = {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": size,
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.master_port),
            "TORCHELASTIC_USE_AGENT_STORE": str(bool(self.master_port)),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": self.world_id,
            "CUDA_VISIBLE_DEVICES": ",".join(self.devices),
            "OMP_NUM_THREADS": str(self.threads),
        }
        # All ranks are on this machine: gloo and TensorPipe need no name resolution and no real network.
        for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            variables[name] = os.environ.get(name, "lo")  # noqa: TID251
        return variables


class _Session:
    """The state of this rank between messages; one per process."""

    def __init__(self, spec: RankSpec, channel: Channel, config: pytest.Config) -> None:
        self.spec = spec
        self.channel = channel
        self.config = config
        self.order: RunTest | None = None
        self.pristine = hygiene.read_facts()
        self.facts_before: hygiene.Facts = {}
        self.facts_at_call: hygiene.Facts = {}

    def scratch(self) -> Path:
        """The directory that the ranks of the running test share."""
        return Path(self.running().scratch)

    def running(self) -> RunTest:
        """The order of the running test."""
        if self.order is None:
            raise LookupError("no test is running in this rank")
        return self.order

    def world(self) -> World:
        """The world of the running test, its process group initialised."""
        self.join_group(self.running())
        shape = self.spec.shape
        return World(
            rank=self.spec.rank,
            size=shape.size,
            local_rank=self.spec.rank,
            backend=shape.backend,
            device_type=shape.device,
            tmp_path=self.scratch(),
        )

    def join_group(self, order: RunTest) -> None:
        """Make the default process group, unless the last test left it in place."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized():
            return
        shape = self.spec.shape
        device_id = None
        if shape.device != "cpu":
            device_id = torch.device(shape.device, self.spec.rank % torch.accelerator.device_count())
            torch.accelerator.set_device_index(device_id.index)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", self.spec.master_port, is_master=False
        )
        dist.init_process_group(
            shape.backend,
            store=dist.PrefixStore(f"disttest/{order.generation}", store),  # type: ignore[attr-defined]
            rank=self.spec.rank,
            world_size=shape.size,
            device_id=device_id if shape.backend == "nccl" else None,
        )
        self.facts_before = hygiene.with_own_groups(self.facts_before)


def serve(
    spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]
) -> None:
    """Run tests until told to leave or until the world is gone. Never returns."""
    die_with_parent(spec.world_pid)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    channel = _out_of_the_way(channel)
    os.environ.update(spec.environment())  # noqa: TID251
    _redirect_output(session.config, spec.log)
    _register_stacks(spec.stacks)
    _prepare_libraries(spec)
    state = _Session(spec, channel, session.config)
    provide_world(state.world, state.scratch)
    _take_over_reporting(session.config, _Bridge(state))
    _own_tmp_path(session.config, spec.scratch)
    channel.send(RankReady())
    while (message := _next_order(channel)) is not None:
        _run(state, message, session, items)
    _tear_down_rest(session)
    _destroy_accelerator_group(spec.shape)
    leave(0)


def _next_order(channel: Channel) -> RunTest | None:
    while not channel.closed_by_peer:
        for message in channel.receive():
            if isinstance(message, RunTest):
                return message
            if isinstance(message, Leave):
                return None
    return None


def _run(state: _Session, order: RunTest, session: pytest.Session, items: Mapping[str, pytest.Item]) -> None:
    item = items[order.nodeid]
    following = items.get(order.next_nodeid) if order.next_nodeid else None
    _redirect_output(session.config, Path(order.log))
    _register_stacks(state.spec.stacks)
    state.order = order
    state.facts_before = state.facts_at_call = hygiene.read_facts()
    hygiene.reseed(zlib.crc32(order.nodeid.encode()) ^ state.spec.seed)
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    cleanup = hygiene.clean_up(
        state.facts_before,
        state.facts_at_call,
        pristine=state.pristine,
        shared_fixtures=_shared_fixtures(session),
    )
    sys.stdout.flush()
    sys.stderr.flush()
    state.channel.send(TestDone(leaks=tuple(map(clean_text, cleanup.leaks)), retire=cleanup.retire))


class _Bridge:
    """The pytest plugin of a rank: the only receiver of reports here."""

    def __init__(self, state: _Session) -> None:
        self._state = state
        self._ended_at_s = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._state.channel.send(PhaseBegan(phase="setup"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        self._state.facts_at_call = hygiene.read_facts()
        self._state.channel.send(PhaseBegan(phase="call"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        self._state.channel.send(PhaseBegan(phase="teardown"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        # Stamped before the traceback is formatted, so that ranks are compared by when they failed.
        self._ended_at_s = time.monotonic()
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._state.channel.send(_phase_ended(report, self._state, self._ended_at_s))


def _phase_ended(report: pytest.TestReport, state: _Session, ended_at_s: float) -> PhaseEnded:
    outcome = outcome_of(report)
    data = _serialisable(report, state.config)
    return PhaseEnded(
        phase=report.when,
        outcome=outcome,
        partial=data.get("_report_type") == "SubTestReport",
        duration_s=report.duration,
        ended_at_s=ended_at_s,
        message=clean_text(message_of(report))[:2000],
        details=clean_text(_details(report, outcome)),
        report=_as_json(data, report),
    )


def outcome_of(report: pytest.TestReport) -> Outcome:
    """A report in our words; a strict xfail that passed counts as such, not as a failure of its own."""
    if hasattr(report, "wasxfail"):
        return Outcome.XFAILED if report.skipped else Outcome.XPASSED
    if report.failed:
        if str(report.longrepr).startswith(STRICT_XPASS):
            return Outcome.XPASSED
        return Outcome.FAILED if report.when == "call" else Outcome.ERROR
    return Outcome.SKIPPED if report.skipped else Outcome.PASSED


def message_of(report: pytest.TestReport) -> str:
    """One line for the whole report."""
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):
        return longrepr[2].removeprefix("Skipped: ")
    crash = getattr(longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(longrepr or "")
    return text.strip().split("\n", 1)[0]


def _details(report: pytest.TestReport, outcome: Outcome) -> str:
    if not outcome.is_bad:
        return ""
    sections = (f"----- {title} -----\n{content}" for title, content in report.sections)
    text = "\n".join([report.longreprtext, *sections])
    if len(text) <= _DETAILS_LIMIT:
        return text
    half = _DETAILS_LIMIT // 2
    return f"{text[:half]}\n\n[disttest: {len(text) - 2 * half} characters cut]\n\n{text[-half:]}"


def _serialisable(report: pytest.TestReport, config: pytest.Config) -> dict[str, Any]:
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    return cast("dict[str, Any]", data)


def _as_json(data: dict[str, Any], report: pytest.TestReport) -> str:
    """The report as ASCII JSON; one that is too long loses its traceback, not its outcome."""
    text = json.dumps(data, default=repr)
    if len(text) > _REPORT_LIMIT:
        text = json.dumps({**data, "longrepr": message_of(report), "sections": []}, default=repr)
    return text


def _out_of_the_way(channel: Channel) -> Channel:
    import fcntl
    import socket

    fd = fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    channel.close()
    return Channel(socket.socket(fileno=fd))


_captured_fds: list[int] = []


def _redirect_output(config: pytest.Config, log: Path) -> None:
    """Point fds 1 and 2 (and whatever pytest captured output into) at the log, from here on."""
    log.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    targets = {1, 2, *_stop_capture(config)}
    for target in targets:
        os.dup2(fd, target, inheritable=target in (1, 2))
    if fd not in targets:
        os.close(fd)
    if sys.stdin is None or not sys.stdin.closed:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        if null:
            os.close(null)
    sys.stdout = _text_stream(1)
    sys.stderr = _text_stream(2)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc,assignment]
    faulthandler.enable(2)


def _text_stream(fd: int) -> IO[str]:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _stop_capture(config: pytest.Config) -> list[int]:
    """Turn pytest's capturing into ``-s`` for this process; return the descriptors it wrote to.

    The parent's capture objects are left as they are, neither closed nor flushed: they are shared with it.
    """
    manager = config.pluginmanager.getplugin("capturemanager")
    if manager is None or manager._method == "no":  # noqa: SLF001
        return _captured_fds
    from _pytest.capture import _get_multicapture

    parent = manager._global_capturing  # noqa: SLF001
    for side in (parent.out, parent.err) if parent is not None else ():
        with contextlib.suppress(AttributeError, OSError, ValueError):
            _captured_fds.append(side.tmpfile.fileno())
    _kept_alive.append(parent)
    manager._method = "no"  # noqa: SLF001
    manager._global_capturing = _get_multicapture("no")  # noqa: SLF001
    manager._global_capturing.start_capturing()  # noqa: SLF001
    return _captured_fds


_kept_alive: list[Any] = []
"""Objects of the parent whose finalizers must not run in this process."""


def _register_stacks(path: Path) -> None:
    """Answer the stacks signal; the file appears only when it is safe to send it."""
    if path.exists():
        return
    pending = path.with_suffix(".pending")
    file = pending.open("ab", buffering=0)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
    _kept_alive.append(file)
    pending.rename(path)


def _prepare_libraries(spec: RankSpec) -> None:
    """Renew what a fork copied: thread counts, cached device counts, log streams."""
    for handler in _stream_handlers():
        handler.setStream(sys.stderr)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(spec.threads)
        if hasattr(torch.cuda, "_cached_device_count"):
            torch.cuda._cached_device_count = None  # noqa: SLF001


def _stream_handlers() -> Iterator[logging.StreamHandler[Any]]:
    for name in (None, *logging.root.manager.loggerDict):
        for handler in logging.getLogger(name).handlers:
            if type(handler) is logging.StreamHandler:
                yield handler


def _take_over_reporting(config: pytest.Config, bridge: _Bridge) -> None:
    """Silence every reporter of the parent in this process, and become the only one."""
    for name in ("pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish"):
        hook = getattr(config.hook, name)
        for implementation in list(hook.get_hookimpls()):
            hook._remove_plugin(implementation.plugin)  # noqa: SLF001  # pluggy has no public way per hook
    config.pluginmanager.register(bridge, "disttest-rank")


def _own_tmp_path(config: pytest.Config, base: Path) -> None:
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        base.mkdir(parents=True, exist_ok=True)
        factory._basetemp = base  # noqa: SLF001


def _shared_fixtures(session: pytest.Session) -> bool:
    """Whether fixtures of a wider scope than one test are set up (each node has one finalizer of its own)."""
    stack = session._setupstate.stack  # noqa: SLF001
    return any(len(finalizers) > 1 for finalizers, _ in stack.values())


def _tear_down_rest(session: pytest.Session) -> None:
    """Undo the fixtures that a world which ends early has left set up; errors go to the log."""
    try:
        session._setupstate.teardown_exact(None)  # noqa: SLF001
    except BaseException:  # noqa: BLE001
        import traceback

        traceback.print_exc()


def _destroy_accelerator_group(shape: WorldShape) -> None:
    """NCCL wants its group destroyed; on gloo the end of the process is cheaper (20 ms) and as good."""
    dist = sys.modules.get("torch.distributed")
    if shape.device != "cpu" and dist is not None and dist.is_initialized():
        dist.destroy_process_group()
