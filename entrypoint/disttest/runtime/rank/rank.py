"""A rank: runs tests when its world says so, and sends up what pytest reports. An island below the world.

A rank is either forked from a process that has collected the tests, or (where forking is unsafe) a
fresh interpreter that collected them itself; from :func:`serve` on the two are the same.
"""

from __future__ import annotations

import os
import signal
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from disttest.host.oom import volunteer_for_oom
from disttest.host.process import die_with_parent, leave
from disttest.model import Frozen, Kind, VerdictRule, WorldShape
from disttest.running import flight, hygiene
from disttest.running.bridge import Bridge
from disttest.running.child import (
    belong_to_this_process,
    out_of_the_way,
    redirect_output,
    register_stacks,
    renew_libraries,
)
from disttest.running.log_capture import hasten_log_capture
from disttest.running.phases import PhaseCell
from disttest.running.protocol import Channel, Leave, NodeShare, RankReady, RunTest, TestDone, clean_text
from disttest.testing.world import World, provide_world


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
    questions: Path
    """Named pipe: whoever writes a path into it gets this rank's collectives there."""
    phases: Path
    """The board on which this rank writes its phase."""
    scratch: Path
    """Base of this rank's ``tmp_path`` directories."""
    log: Path
    """Where output goes until the first test names its own log."""
    seed: int
    threads: int
    results: Path = Path()
    """The results directory; what follows is for those that supervise ranks of their own."""
    log_limit: int = 8 * 1024 * 1024
    grace_s: float = 0.3
    verdict: VerdictRule = VerdictRule.STRICT
    native_stacks: bool = False
    kind: Kind = Kind.RANKS
    share: NodeShare | None = None
    """None: the whole world is on this machine."""

    @property
    def place(self) -> int:
        """Its place among the processes that its world has started."""
        return self.local_rank if self.kind is Kind.RANKS else 0

    @property
    def local_rank(self) -> int:
        """Rank among those of this machine."""
        return self.rank - (self.share.first_rank if self.share else 0)

    @property
    def master_address(self) -> str:
        """Where the rendezvous is."""
        return self.share.address if self.share else "127.0.0.1"

    def environment(self) -> dict[str, str]:
        """torchrun's contract, and nothing but loopback for worlds on the CPU of one machine."""
        size, share = str(self.shape.size), self.share
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": str(share.ranks) if share else size,
            "GROUP_RANK": str(share.node) if share else "0",
            "GROUP_WORLD_SIZE": str(share.nodes) if share else "1",
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": size,
            "ROLE_NAME": "default",
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
            "TORCHELASTIC_USE_AGENT_STORE": str(bool(self.master_port)),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": self.world_id,
            **self.machine_environment(),
        }

    def machine_environment(self) -> dict[str, str]:
        """What every process of a world gets, main processes too."""
        variables = {"CUDA_VISIBLE_DEVICES": self._visible(), "OMP_NUM_THREADS": str(self.threads)}
        # Ranks that are all on this machine need no real network; those that are not need the one that connects
        # them. Naming it spares gloo and TensorPipe the look-up of the host's name.
        interface = self.share.interface if self.share else "lo"
        defaults = {"GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface, **flight.ENVIRONMENT}
        for name, value in defaults.items():
            variables[name] = os.environ.get(name, value)  # noqa: TID251
        return variables

    def _visible(self) -> str:
        """All of the world's GPUs; of MIG slices its own one, since CUDA shows a process no more than one."""
        slices = any(name.startswith("MIG-") for name in self.devices)
        return self.devices[self.rank % len(self.devices)] if slices else ",".join(self.devices)


class _Session:
    """The state of this rank between messages; one per process."""

    def __init__(self, spec: RankSpec, channel: Channel, config: pytest.Config) -> None:
        self.spec = spec
        self.channel = channel
        self.config = config
        self.order: RunTest | None = None
        self._phase = PhaseCell(spec.phases, spec.place)
        self.pristine = hygiene.read_facts()
        self.facts_before: hygiene.Facts = {}
        self.facts_at_call: hygiene.Facts = {}

    def note_phase(self, phase: str) -> None:
        """A phase of the running test begins."""
        self._phase.write(phase)
        if phase == "call":
            self.facts_at_call = hygiene.read_facts()

    def scratch(self) -> Path:
        """The directory that the ranks of the running test share; the test is skipped where there is none."""
        share = self.spec.share
        if share is not None and not share.shared_dir:
            pytest.skip("needs a directory that all nodes share: name one with --shared-dir")
        scratch = Path(self.running().scratch)
        scratch.mkdir(parents=True, exist_ok=True)
        return scratch

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
            local_rank=self.spec.local_rank,
            backend=shape.backend,
            device_type=shape.device,
            scratch=self.scratch,
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
            device_id = torch.device(shape.device, self.spec.local_rank % torch.accelerator.device_count())
            torch.accelerator.set_device_index(device_id.index)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            self.spec.master_address, self.spec.master_port, is_master=False
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
    channel = settle_in(spec, channel, session.config)
    flight.answer_questions(spec.questions, spec.rank)  # a thread: not in a process that forks
    os.environ.update(spec.environment())  # noqa: TID251
    state = _Session(spec, channel, session.config)
    provide_world(state.world, state.scratch)
    Bridge(channel, session.config, on_phase=state.note_phase).take_over()
    own_tmp_path(session.config, spec.scratch)
    hasten_log_capture()
    channel.send(RankReady())
    while (message := next_order(channel)) is not None:
        _run(state, message, session, items)
    tear_down_rest(session)
    _destroy_accelerator_group(spec.shape)
    leave(0)


def settle_in(spec: RankSpec, channel: Channel, config: pytest.Config) -> Channel:
    """What a child of a world does first; returns its channel, out of harm's way."""
    die_with_parent(spec.world_pid)
    volunteer_for_oom()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the world blocks it for itself
    channel = out_of_the_way(channel)
    belong_to_this_process(channel)
    redirect_output(config, spec.log)
    register_stacks(spec.stacks)
    renew_libraries(spec.threads)
    return channel


def next_order(channel: Channel) -> RunTest | None:
    """Wait for the next test; None when it is time to leave."""
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
    me = os.getpid()
    redirect_output(session.config, Path(order.log))
    register_stacks(state.spec.stacks)
    flight.note_start()
    state.order = order
    state.facts_before = state.facts_at_call = hygiene.read_facts()
    hygiene.reseed(zlib.crc32(order.nodeid.encode()) ^ state.spec.seed)
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    if os.getpid() != me:  # the test forked and its copy came back too: it is no rank
        leave(0)
    cleanup = hygiene.clean_up(
        state.facts_before,
        state.facts_at_call,
        pristine=state.pristine,
        shared_fixtures=_shared_fixtures(session),
    )
    sys.stdout.flush()
    sys.stderr.flush()
    state.channel.send(TestDone(leaks=tuple(map(clean_text, cleanup.leaks)), retire=cleanup.retire))


def own_tmp_path(config: pytest.Config, base: Path) -> None:
    """Give this process a base of its own for ``tmp_path``."""
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        base.mkdir(parents=True, exist_ok=True)
        factory._basetemp = base  # noqa: SLF001


def _shared_fixtures(session: pytest.Session) -> bool:
    """Whether fixtures of a wider scope than one test are set up (each node has one finalizer of its own)."""
    stack = session._setupstate.stack  # noqa: SLF001
    return any(len(finalizers) > 1 for finalizers, _ in stack.values())


def tear_down_rest(session: pytest.Session) -> None:
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
