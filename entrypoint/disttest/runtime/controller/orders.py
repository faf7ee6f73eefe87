"""Orders: each pytest process that disttest starts receives one, which states the role of the process.

| order | role of the process | given by |
|---|---|---|
| :class:`ControllerOrder` | run the tests of ``disttest run`` | ``runtime/supervisor/run_supervisor.py`` |
| :class:`ListerOrder` | collect tests, or answer a question of the user | ``runtime/supervisor/listing.py`` |
| :class:`PluginOrder` | collect tests that a plugin runs in its own way | the plugin |
| :class:`RankOrder` | collect the files of one world and become one of its ranks | ``fork_server.py``, or the plugin |
| :class:`ForkSourceOrder` | collect files and fork worlds with them | ``fork_server.py`` |

The parent writes the order into a memory file, and the child decodes it once. The command line, which ``ps`` shows to all
users, has only the descriptor of the file. Plain pytest has no order and the role of a controller.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

# The public pytest.StashKey would import all of pytest (0.1 s) in the command, which writes orders and reads none.
from _pytest.stash import StashKey

from disttest.descriptors import memory_file
from disttest.model import Frozen, RunPart
from disttest.outgoing import outgoing
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.rank.rank_spec import RankSpec

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")

FLAG = "--disttest-order"


class Shared(Frozen):
    """Facts for a pytest process and for the processes that collect for its ranks."""

    supervisor: int = 0
    """Process id of the command that supervises the run; 0 without one."""
    host: TargetHost | None = None
    """The machine to collect for; None for this one."""
    threads: dict[str, str] | None = None
    """The user's variables about compute threads; None if the process has been started with them."""
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    """Plugin name -> data for the plugin, see :func:`from_data`."""


class Order(Frozen):
    """The part that all roles have."""

    shared: Shared = Shared()
    ledger: int = -1
    """Descriptor that the filters of outgoing texts share; -1 if they share none."""

    @property
    def is_supervised(self) -> bool:
        """Whether a command supervises the run to which the process belongs."""
        return self.shared.supervisor > 0


class ControllerOrder(Order, tag="controller"):
    """Order to run tests."""

    part: RunPart = RunPart()
    timings: tuple[Path, ...] = ()
    """Files with the durations of earlier runs."""
    failed_first: bool = False
    columns: int = 0
    """Width of the command's view of the run, which replaces most output of pytest; 0 without a view."""
    until_s: float | None = None
    """End of the run on the monotonic clock, which processes of one machine share."""
    leaving: int | None = None
    """Descriptor of :class:`disttest.runtime.messages.leaving.LeaveNote`."""
    claim: int | None = None
    """Descriptor with the lock of the results directory."""
    journal: int | None = None


class ListerOrder(Order, tag="lister"):
    """Order to collect tests, or to answer a question of the user such as ``--fixtures``."""


class PluginOrder(Order, tag="plugin", kw_only=True):
    """Order to collect tests for a plugin."""

    plugin: str
    work: Any
    """Data for the plugin, see :func:`from_data`."""


class RankOrder(Order, tag="rank", kw_only=True):
    """Order to become a rank."""

    modules: tuple[str, ...]
    """The files to collect; all others are ignored."""
    spec: RankSpec
    channel_fd: int


class ForkSourceOrder(Order, tag="fork_source", kw_only=True):
    """Order to become a process from which worlds are forked."""

    modules: tuple[str, ...]
    line_fd: int
    answer: str
    """File for the list of collected tests."""


AnyOrder = ControllerOrder | ListerOrder | PluginOrder | RankOrder | ForkSourceOrder
_ORDER = StashKey[AnyOrder]()


def write_order(order: AnyOrder, ledger: int) -> int:
    """Write an order; return the descriptor that the child finds in :data:`FLAG`."""
    fd = memory_file("disttest-order")
    order = msgspec.structs.replace(order, ledger=ledger)
    # Paths as bytes: JSON has no strings for names of files that are not UTF-8.
    os.write(fd, msgspec.json.encode(order, enc_hook=os.fsencode))
    return fd


@contextlib.contextmanager
def given_order(order: AnyOrder, *descriptors: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Write an order for a child that starts within the context; yield its argument and all descriptors to inherit."""
    fd = write_order(order, outgoing.shared)
    try:
        yield f"{FLAG}={fd}", tuple(each for each in (fd, *descriptors, outgoing.shared) if each >= 0)
    finally:
        os.close(fd)


def own_arguments(config: pytest.Config) -> list[str]:
    """Return the arguments of this process without its order."""
    # For children: the number in the order names a descriptor of this process only.
    return [word for word in map(str, config.invocation_params.args) if not word.startswith(FLAG)]


def is_given(config: pytest.Config) -> bool:
    """Whether this process has an order."""
    return config.known_args_namespace.disttest_order is not None


def order_of(config: pytest.Config) -> AnyOrder:
    """Return the order of this process.

    Raises:
        pytest.UsageError: the argument was copied from another process.
    """
    # Kept, because reading it closes the descriptor.
    if _ORDER not in config.stash:
        fd = config.known_args_namespace.disttest_order
        config.stash[_ORDER] = ControllerOrder() if fd is None else _read_order(fd)
    return config.stash[_ORDER]


def collecting_order(config: pytest.Config) -> RankOrder | ForkSourceOrder | None:
    """Return the order of a process that collects for ranks; None in all other processes."""
    order = order_of(config)
    return order if isinstance(order, RankOrder | ForkSourceOrder) else None


def plugin_work(config: pytest.Config, plugin: str) -> Any:
    """Return the work of a plugin if this process is for it; None in all other processes."""
    order = order_of(config)
    return order.work if isinstance(order, PluginOrder) and order.plugin == plugin else None


def from_data(data: Any, kind: type[T]) -> T:
    """Convert the data that a plugin has put into an order to their type."""
    return msgspec.convert(data, kind, dec_hook=_decode_path)


def _read_order(fd: int) -> AnyOrder:
    try:
        # Not through the descriptor, whose position the writer has left at the end.
        data = Path(f"/proc/self/fd/{fd}").read_bytes()
        order: AnyOrder = msgspec.json.decode(data, type=AnyOrder, dec_hook=_decode_path)
    except (OSError, msgspec.DecodeError) as error:
        import pytest

        raise pytest.UsageError(f"{FLAG}={fd} is not an order of this process: {error}") from None
    os.close(fd)
    return order


def _decode_path(kind: type, text: str) -> Any:
    # msgspec writes bytes as base64.
    return kind(os.fsdecode(base64.b64decode(text)))
