"""Recording of a rank: a file next to its log, from the beginning of the test to its end."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttest import observe
from disttest.extras.replay.format import SUFFIX, Completed, Head, Unfit, Writer
from disttest.hookspecs import hookimpl
from disttest.options.environment import environment
from disttest.outgoing import outgoing

if TYPE_CHECKING:
    from disttest.extras.replay.call_recorder import CallRecorder
    from disttest.runtime.messages.protocol import RunTest
    from disttest.runtime.rank.rank_spec import RankSpec
    from disttest.runtime.rank.rank_test import RankTest


class RankRecording:
    """Recordings of one test after another.

    Made before the state of torch is captured, since it replaces functions of torch.

    Args:
        spec: the rank.
    """

    def __init__(self, spec: RankSpec) -> None:
        self._spec = spec
        self._recorder: CallRecorder | None = None
        # A recording has raw values, so a run that masks values records nothing.
        self._is_on = not outgoing.active
        if self._is_on:
            observe.install()
            self._watch_rpc()

    @hookimpl(wrapper=True)
    def disttest_rank_test(self, test: RankTest) -> Generator[None, bool, bool]:
        """Record a test, with its random generators seeded."""
        self._begin(test)
        result = yield
        if self._recorder is not None:
            self._recorder.close()
        return result

    def _begin(self, test: RankTest) -> None:
        if not self._is_on:
            return
        path, head = test.log.with_suffix(SUFFIX), self._head(test.order, test.seed)
        if self._spec.shape.device != "cpu":
            _note_only(path, head, "its ranks run on GPUs; only ranks on the CPU are recorded")
            return
        from disttest.extras.replay.call_recorder import CallRecorder

        self._recorder = CallRecorder(path, head)
        observe.install(self._recorder)

    def _head(self, order: RunTest, seed: int) -> Head:
        import torch

        hash_seed = environment().get("PYTHONHASHSEED", "")
        return Head(
            nodeid=order.nodeid,
            rank=self._spec.rank,
            shape=self._spec.shape,
            seed=seed,
            environment={**self._spec.environment(), "PYTHONHASHSEED": hash_seed},
            torch=str(torch.__version__),
            generation=order.generation,
        )

    def _watch_rpc(self) -> None:
        """Note the use of RPC: the observing layer does not see remote calls, so the test cannot be replayed."""
        from torch.distributed.rpc import backend_registry

        original: Any = backend_registry.init_backend

        def init_backend(*arguments: Any, **named: Any) -> Any:
            if self._recorder is not None:
                self._recorder.note_unfit("it uses RPC; remote calls are not recorded")
            return original(*arguments, **named)

        # torch.distributed.rpc looks this function up each time an agent starts, and has no hook for it (torch 2.9 to 2.15).
        backend_registry.init_backend = init_backend


def _note_only(path: Path, head: Head, reason: str) -> None:
    writer = Writer(path)
    for record in (head, Unfit(reason), Completed()):
        writer.write(record)
    writer.close()
