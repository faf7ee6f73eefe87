"""What others can write is met with a report, a named error or a refusal: never with a crash, and in bounded time.

A sample of the cases; ``make soak`` has 10,000 of each (``--hypothesis-profile soak``).
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rendered import render_final
from sample_runs import SampleRun

from disttest.errors import ProtocolError, UsageError
from disttest.extras.cluster.protocol import wire
from disttest.extras.shards.merging import merge
from disttest.model import Cause, Collective, Outcome, RankEnd, RankRecord, TestResult
from disttest.options.option import Option
from disttest.options.registry import PLUGIN_OPTIONS, RUN_OPTIONS
from disttest.options.run import resolve_options
from disttest.plugins.costs.cost import cost_of
from disttest.plugins.costs.timeline import build_timeline, render_lanes
from disttest.reports.write import reporters, write_reports
from disttest.results import journal as journals
from disttest.results.durations import read_timings
from disttest.results.events import TestCollected, TestFinished
from disttest.results.fold import RunResult, fold
from disttest.results.hang_findings import explain
from disttest.results.journal import FILE_NAME, read_events
from disttest.runtime.messages import protocol
from disttest.runtime.messages.protocol import Channel, PhaseEnded, TestJudged

SOAKED = settings.get_profile("soak").max_examples
fuzzed = settings(
    # Milliseconds for one case, which takes ten on an idle machine: a case that spins is a failure.
    deadline=20_000,
    max_examples=SOAKED if settings().max_examples == SOAKED else 40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

ABSURD = st.one_of(
    st.sampled_from(
        [
            *(None, True, -1, 0, 1, 256, 10**12, -(10**12), 2**63, 10**30, 1e300, -1e300, 1e-320, 1e11, 0.5),
            *(
                "",
                "x" * 3000,
                "\0",
                "\u202e",
                "]]>",
                "</script>",
                "..",
                "/etc/passwd",
                "logs/../../x",
                "gpu:" + "9" * 5000,
            ),
            *(
                "::error::x",
                "##[set-output name=a;]b",
                "\r::x::",
                "passed",
                "infrastructure",
                "javascript:alert(1)",
            ),
            *([], {}, [[[]]], {"a": {"b": [{}]}}, ["gpu:0"] * 50, [str(number) for number in range(3000)]),
        ]
    ),
    st.floats(),
    st.integers(),
    st.text(max_size=20),
).map(copy.deepcopy)
"""What may stand in the place of any value; of its own each time, since others are put into it."""


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def a_run() -> list[dict[str, Any]]:
    """The events of a run in which everything has happened."""
    sample = SampleRun(gpus=("H100",))
    rank = RankRecord(
        rank=1,
        end=RankEnd.KILLED,
        hung=True,
        phase="call",
        stacks='Thread 0x1 (most recent call first):\n  File "/t/test_a.py", line 3 in waits',
        collectives=(Collective(group="default", seq=3, op="all_reduce", at_s=sample.now),),
        failed_after_s=0.1,
        log="logs/ddp-test_hangs-2/attempt-1/rank1.log",
        durations_s={"call": 0.5},
    )
    sample.test(slots=("gpu:0", "gpu:1"))
    sample.test(
        Outcome.FAILED,
        name="test_hangs",
        cause=Cause.TEST,
        culprit=1,
        victims=(0,),
        message="rank 1 never joined",
        ranks=(msgspec.structs.replace(rank, rank=0, end=RankEnd.REPORTED, outcome=Outcome.PASSED), rank),
        notes=("leaked",),
    )
    sample.test(
        Outcome.PASSED, name="test_flaky", attempts=[{"outcome": Outcome.FAILED, "message": "at first"}]
    )
    sample.test(Outcome.SKIPPED, name="test_skips", size=None, message="no GPU")
    sample.collection_error("tests/test_broken.py", "SyntaxError")
    sample.note("a note")
    sample.finish(1)
    return [json.loads(msgspec.json.encode(event)) for event in sample.events]


RUN = a_run()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value can be replaced: paths of keys and indices."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in inner for found in ((*path, key), *places(item, (*path, key)))]


PLACES = places(RUN)
_JUDGED = next(event["result"] for event in RUN if event.get("result", {}).get("ranks"))
MESSAGES = [
    {"kind": "TestJudged", "result": _JUDGED, "reports": ["{}"]},
    {"kind": "RanksJoined", "records": _JUDGED["ranks"]},
    json.loads(
        msgspec.json.encode(PhaseEnded(phase="call", outcome=Outcome.PASSED, duration_s=0.1, ended_at_s=1.0))
    ),
]


@st.composite
def journal_bytes(draw: st.DrawFn) -> bytes:
    """The journal of a run in which a few values are absurd, lines are gone, doubled or garbage."""
    events = copy.deepcopy(RUN)
    for path in draw(st.lists(st.sampled_from(PLACES), max_size=6)):
        with contextlib.suppress(
            KeyError, IndexError, TypeError
        ):  # an earlier one has replaced what was around it
            target: Any = events
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = draw(ABSURD)
    lines = [json.dumps(event).encode() for event in events]
    for number in draw(st.lists(st.integers(0, len(lines) - 1), max_size=3)):
        lines[number % len(lines)] = draw(
            st.one_of(st.binary(max_size=40), st.sampled_from([b"", _nested(5000).encode(), *lines]))
        )
    order = draw(st.permutations(range(len(lines)))) if draw(st.booleans()) else range(len(lines))
    return b"\n".join(lines[number] for number in order) + draw(st.sampled_from([b"", b"\n", b'\n{"event":']))


@pytest.mark.slow("hypothesis draws many examples")
@fuzzed
@given(journal_bytes())
@example(b'{"event":"noted","at_s":1,"message":"x","unknown":' + _nested(100_000).encode() + b"}")
@example(b'{"event":"run_finished","at_s":1,"exit_code":256}')
@example(b"9" * 5000)
def test_any_journal_becomes_reports(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results, into = Path(folder, "results"), Path(folder, "merged")
        results.mkdir()
        into.mkdir()
        (results / FILE_NAME).write_bytes(data)

        run = fold(read_events(results / FILE_NAME))
        written = write_reports(run, results)
        render_final(run)
        merged = merge([results], into)
        write_reports(merged, into)
        read_timings([results], now_s=1e9)

        assert {path.name for path in written} == {name for name, *_ in reporters().values()}
        assert 0 <= merged.exit_code <= 255
        for path in written:
            assert path.stat().st_size < 20_000_000, path
        _check_json(results / "results.json")
        for result in (attempt for test in run.tests for attempt in test.attempts):
            explain(result.ranks)


def _check_json(path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no number of JSON")

    json.loads(path.read_bytes(), parse_constant=refuse)
    msgspec.json.decode(path.read_bytes(), type=RunResult)


@pytest.mark.parametrize(
    ("field", "value"),
    [("slots", -1), ("slots", 10**12), ("at_s", 1e300), ("at_s", -1.0), ("cpu_slots", 10**9), ("shard", -3)],
)
def test_an_absurd_number_costs_its_line_and_is_noted(tmp_path: Path, field: str, value: float) -> None:
    lines = [dict(event) for event in RUN]
    lines[0][field] = value
    (tmp_path / FILE_NAME).write_text("\n".join(map(json.dumps, lines)))

    run = fold(read_events(tmp_path / FILE_NAME))

    assert len(run.tests) == 4
    (note,) = (note for note in run.notes if "skipped" in note)
    assert note.startswith("events.jsonl:1: skipped, not an event: Expected ")
    assert f"`$.{field}`" in note


def test_an_exit_code_that_the_shell_would_take_for_success_is_none(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "into").mkdir()
    (tmp_path / "a" / FILE_NAME).write_text(
        json.dumps(RUN[0]) + '\n{"event":"run_finished","at_s":1780000001,"exit_code":256}\n'
    )

    assert merge([tmp_path / "a"], tmp_path / "into").exit_code == 3


def test_lines_that_can_not_be_read_are_counted(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("nonsense\n" * 1000 + json.dumps(RUN[0]))

    notes = fold(read_events(tmp_path / FILE_NAME)).notes

    assert len(notes) == journals.MOST_REPORTED + 1
    assert notes[-1] == "events.jsonl: 900 more lines skipped, not events"


def test_a_line_without_end_is_not_taken_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "LONGEST_LINE", 1 << 20)
    (tmp_path / FILE_NAME).write_bytes(b"x" * (5 << 20) + b"\n" + json.dumps(RUN[0]).encode())

    run = fold(read_events(tmp_path / FILE_NAME))

    assert run.notes == ("events.jsonl:1: skipped, not an event: longer than 1 MiB",)
    assert run.run_id == "run-1"


@pytest.mark.slow("hypothesis draws many examples")
def test_many_slots_on_long_worlds_do_not_spin() -> None:
    """A world that claims a thousand slots, and two thousand tests in it."""
    sample = SampleRun(slots=1_000_000)
    sample.test(slots=tuple(f"cpu:{number}" for number in range(1000)))
    (first,) = (event.test for event in sample.events if isinstance(event, TestCollected))
    for number in range(2000):
        test = msgspec.structs.replace(first, nodeid=f"t::{number}")
        result = TestResult(
            nodeid=test.nodeid,
            outcome=Outcome.PASSED,
            started_at_s=sample.now + number,
            duration_s=0.5,
            world_id="w1",
        )
        sample.events += [
            TestCollected(at_s=sample.now, test=test),
            TestFinished(at_s=sample.now, result=result),
        ]
    run = sample.finish(0)
    began_s = time.process_time()

    timeline = build_timeline(run)

    assert timeline.busy_s[0] == pytest.approx(1000.5, abs=1)
    assert "and 936 more slots" in render_lanes(timeline, width=80)
    assert cost_of(run).slots == 1_000_000
    assert time.process_time() - began_s < 10


@fuzzed
@given(st.binary(max_size=200), st.booleans(), st.lists(st.integers(1, 60), max_size=10))
@example(b'{"kind":"RanksJoined","records":[],"unknown":' + _nested(100_000).encode() + b"}", True, [])
def test_what_a_rank_writes_into_its_channel_is_messages_or_nonsense(
    data: bytes, framed: bool, sizes: list[int]
) -> None:
    _received(struct.pack(">I", len(data)) + data if framed else data, sizes)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message of a rank or a world with some absurd values."""
    message = copy.deepcopy(draw(st.sampled_from(MESSAGES)))
    inside = places(message)
    for path in draw(st.lists(st.sampled_from(inside), max_size=4)):
        with contextlib.suppress(KeyError, IndexError, TypeError):
            target: Any = message
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = draw(ABSURD)
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


@fuzzed
@given(messages())
def test_absurd_messages_of_ranks_and_worlds_have_a_name(data: bytes) -> None:
    for message in _received(data, []):
        # What was taken in can be told on, and written down.
        with contextlib.suppress(ProtocolError):
            protocol.encode(message)
        if isinstance(message, TestJudged):
            msgspec.json.encode(message.result)


def _received(data: bytes, sizes: list[int]) -> list[protocol.AnyMessage]:
    ours, theirs = Channel.pair()
    got: list[protocol.AnyMessage] = []
    try:
        for size in [*sizes, len(data)]:
            piece, data = data[:size], data[size:]
            if piece:
                theirs._sock.sendall(piece)
                got += ours.receive()
        theirs.close()
        got += ours.receive()
    except ProtocolError as error:
        assert str(error)
    finally:
        ours.close()
        theirs.close()
    return got


@fuzzed
@given(st.binary(max_size=300))
@example(_nested(100_000).encode())
@example(b'{"kind":"TakeJob","job":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001)
def test_what_a_client_sends_a_node_is_an_order_or_nonsense(line: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        wire.decode_order(line)


VALUES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            *(
                "nan",
                "inf",
                "-inf",
                "1e400",
                "-1",
                "0",
                "1e-320",
                "9" * 5000,
                "1" * 400 + "g",
                "1,,2",
                "1-3",
                "²",
                "٣",
            ),
            *(
                "device=0,9",
                "GPU-",
                "all,none",
                "\0",
                "\ud800",
                "~/x",
                "a=b=c",
                "true ",
                "1_000",
                "0x10",
                "+1",
                " ",
            ),
        ]
    ),
)


@fuzzed
@given(st.sampled_from(RUN_OPTIONS), VALUES, st.booleans())
@example(next(option for option in RUN_OPTIONS if option.name == "slots"), "9" * 5000, False)
@example(next(option for option in PLUGIN_OPTIONS if option in RUN_OPTIONS), "", False)
def test_an_option_is_understood_or_refused(option: Option, text: str, by_variable: bool) -> None:
    flags, environ = ({}, {option.variable: text}) if by_variable else ({option.field: text}, {})
    try:
        options = resolve_options(flags, environ=environ)
    except UsageError as error:
        assert option.variable in str(error) if by_variable else f"--{option.name}" in str(error)
        return
    value = option.of(options) if option in PLUGIN_OPTIONS else getattr(options, option.field)
    assert not (isinstance(value, float) and not math.isfinite(value)), (option.name, text, value)
