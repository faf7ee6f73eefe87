"""In which order a rank is asked what it was doing. Real ranks answer in ``tests/core/test_findings.py``."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from disttest.host.proc import catches
from disttest.runtime.messages.protocol import Raised
from disttest.runtime.rank.flight import in_flight_path
from disttest.runtime.world import evidence
from disttest.runtime.world.evidence import collect_evidence, collect_stacks

LIMIT_S = 0.2


class FakeTime:
    """Time that passes only while somebody sleeps: how busy this machine is decides nothing."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(evidence, "monotonic", fake.monotonic)
    monkeypatch.setattr(evidence, "sleep", fake.sleep)
    return fake


class FakeRank:
    """Answers at the look that it is told, and notes what it was asked and what it had answered by then."""

    def __init__(
        self, *, stacks_at: int = 1, flight_at: int = 1, stopped: bool = False, deaf: bool = False
    ) -> None:
        self._stacks_at, self._flight_at = stacks_at, flight_at
        self._stopped = stopped
        self.is_deaf = deaf
        self._looks = 0
        self.asked: list[str] = []

    def ask_stacks(self) -> None:
        self.asked.append("stacks")

    def ask_flight(self, flight: Path) -> None:
        self.asked.append(f"{flight} after {'whole' if self.has_all_stacks() else 'no'} stacks")
        self._looks = 0

    def answer_size(self) -> int:
        self._looks += 1
        return min(self._looks, self._stacks_at) * 100 if self._stacks_at < 1000 else 0

    def has_all_stacks(self) -> bool:
        return self._looks >= self._stacks_at

    def has_collectives(self) -> bool:
        self._looks += 1
        return self._looks >= self._flight_at

    def state(self) -> str:
        return "stopped (SIGSTOP, or a debugger)" if self._stopped else ""

    def read(self) -> evidence.RankEvidence:
        return evidence.RankEvidence(stacks=",".join(self.asked))


def interview(*ranks: FakeRank) -> list[str]:
    asked = [(cast("evidence.EvidenceSource", rank), Path(f"flight-{k}")) for k, rank in enumerate(ranks)]
    return [evidence.stacks for evidence in collect_evidence(asked, limit_s=LIMIT_S)]


def test_a_rank_is_asked_for_its_collectives_once_its_stacks_are_whole() -> None:
    told = interview(FakeRank(stacks_at=4), FakeRank(stacks_at=1, flight_at=3))

    assert told == ["stacks,flight-0 after whole stacks", "stacks,flight-1 after whole stacks"]


def test_a_silent_rank_is_asked_for_its_collectives_before_the_limit() -> None:
    assert interview(FakeRank(stacks_at=1000)) == ["stacks,flight-0 after no stacks"]


def test_a_stopped_rank_is_not_waited_for(time: FakeTime) -> None:
    assert interview(FakeRank(stacks_at=1000, stopped=True)) == ["stacks"]
    assert not time.slept


def test_a_rank_without_a_handler_is_asked_for_its_collectives_at_once(time: FakeTime) -> None:
    told = interview(FakeRank(stacks_at=1000, deaf=True, flight_at=2))

    assert told == ["stacks,flight-0 after no stacks"]
    assert len(time.slept) == 1


def test_whether_a_process_handles_a_signal_is_read_from_the_kernel() -> None:
    mine, signum = os.getpid(), signal.SIGRTMAX - 7
    before = signal.getsignal(signum)
    seen = []
    try:
        for handler in (lambda *_: None, signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signum, handler)
            seen.append(catches(mine, signum))
    finally:
        signal.signal(signum, before)
    assert seen == [True, False, False]
    assert catches(2**22 + 1, signum)


class Answers:
    """A source that answers when its look comes; looks happen once for each pause."""

    def __init__(self, at_look: int) -> None:
        self._at_look, self._looks = at_look, 0

    def ask_stacks(self) -> bool:
        return True

    def has_all_stacks(self) -> bool:
        self._looks += 1
        return self._looks > self._at_look

    def read(self) -> evidence.RankEvidence:
        return evidence.RankEvidence(stacks=f"after {self._at_look}")


def stacks_of(*looks: int) -> list[str]:
    sources = [cast("evidence.EvidenceSource", Answers(at)) for at in looks]
    return collect_stacks(sources, limit_s=3.5 * evidence.EVIDENCE_POLL_S)


def test_the_limit_is_that_of_the_next_answer_however_many_ranks_answer(time: FakeTime) -> None:
    assert [f"after {at}" for at in (0, 3, 6, 9)] == stacks_of(0, 3, 6, 9)
    assert 9 == len(time.slept)


def test_a_rank_that_does_not_answer_ends_the_wait(time: FakeTime) -> None:
    assert ["after 2", ""] == stacks_of(2, 1000)
    assert 6 == len(time.slept)


WAITS = '  File "/project/test_x.py", line 7 in test_x'
RENDERS = '  File "/project/test_x.py", line 3 in __repr__\n  File "/lib/_pytest/assertion/rewrite.py", line 450 in _saferepr'
OTHER = 'Thread 0x7 (most recent call first):\n  File "/lib/threading.py", line 1 in wait\n\n'
THREAD = f"{OTHER}Current thread (most recent call first):\n"


@pytest.mark.parametrize(
    ("stacks", "counts"),
    [
        pytest.param(f'{THREAD}{WAITS}\n  File "<string>", line 1 in <module>', False, id="it waited"),
        pytest.param(f"{THREAD}{RENDERS}\n{WAITS}", True, id="its message was being built"),
        pytest.param(f"{THREAD}{WAITS}\n  ...", True, id="not all frames are known"),
        pytest.param("", True, id="no stacks"),
    ],
)
def test_an_assertion_counts_only_if_it_had_failed_before_the_rank_was_asked(
    tmp_path: Path, stacks: str, counts: bool
) -> None:
    """The signal that asks for stacks ends a wait below an assertion, whose message is then being built."""
    questions, answer = tmp_path / "questions", tmp_path / "stacks"
    answer.write_text(stacks)
    raised = Raised(
        message="AssertionError: assert C.pause() == 0", place="test_x.py:7", details="", is_assertion=True
    )
    in_flight_path(questions).write_bytes(msgspec.json.encode(raised))
    os.mkfifo(questions)
    listening = os.open(questions, os.O_RDONLY | os.O_NONBLOCK)
    try:
        source = evidence.EvidenceSource(
            cast("evidence.Process", SimpleNamespace(pid=os.getpid())), answer, questions
        )
        source.ask_flight(tmp_path / "flight")

        assert (raised if counts else None) == source.read().in_flight
    finally:
        os.close(listening)
