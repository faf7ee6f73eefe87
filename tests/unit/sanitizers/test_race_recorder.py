"""The race sanitizer alone, without ranks: what each operation touches, and what a pending call makes of it."""

from __future__ import annotations

import threading

import pytest
import torch

from disttest.extras.sanitizers.race import race_recorder
from disttest.extras.sanitizers.race.accesses import accesses
from disttest.extras.sanitizers.race.race_recorder import RaceRecorder
from disttest.extras.sanitizers.race.races import HANDED_OUT, RaceKind
from disttest.extras.sanitizers.race.windows import Policy, is_in_place, open_window, view_of
from disttest.observe import Call, Group, Site, Wait, WaitKind

ATEN = torch.ops.aten


def call(n=1, *, op="allgather", inputs=(), outputs=(), **facts):
    known = {
        "group": Group(name="0", description="default", ranks=(0, 1), backend="gloo", timeout_s=None),
        "seq": n, "peer": None, "tag": 0, "root": None, "reduce_op": "", "is_async": True, "timeout_s": None,
        "site": Site(call.__code__, n), "thread": threading.get_ident(), "by_cpp": False, "in_backward": False,
    }  # fmt: skip
    return Call(n=n, op=op, inputs=inputs, outputs=outputs, **{**known, **facts})


def wait_for(waited, kind=WaitKind.WORK):
    return Wait(n=1, kind=kind, call=waited, keys=(), timeout_s=None, site=Site(call.__code__, 99), thread=1)


def test_the_buffer_that_receives_a_broadcast_is_not_read():
    buffer = (torch.ones(2),)

    assert () == call(op="broadcast", inputs=buffer, root=0).read_in(1)
    assert buffer is call(op="broadcast", inputs=buffer, root=0).read_in(0)
    assert buffer is call(op="allreduce", inputs=buffer).read_in(1)


class Operations:
    """In the place of the mode that tells of operations: whether somebody asks to be told."""

    asked = False
    stands_by = False

    def prepare(self):
        self.stands_by = True

    def ask(self, tool):
        self.asked = True

    def leave(self, tool):
        self.asked = False

    def has_threads(self):
        return False


@pytest.fixture
def operations(monkeypatch):
    operations = Operations()
    monkeypatch.setattr(race_recorder, "watching_operations", lambda: operations)
    return operations


@pytest.fixture
def held(monkeypatch):
    """Numbers of the calls whose handle somebody has."""
    held = {1, 2}
    monkeypatch.setattr(race_recorder, "held_calls", lambda: held)
    return held


@pytest.fixture
def recorder(operations, held):
    return RaceRecorder(0, Policy(as_nccl=False))


def pending(recorder, issued):
    recorder.on_issue(issued)
    recorder.on_return(issued, object())


def kinds(recorder):
    return [race.kind for race in recorder.report().races]


def touched(func, *args, **kwargs):
    """Which of the arguments are touched, and how."""
    names = {id(value): place for place, value in enumerate(args)} | {
        id(value): name for name, value in kwargs.items()
    }
    return [(names[id(access.tensor)], access.writes) for access in accesses(func, args, kwargs)]


# --- what an operation touches

A, B = torch.zeros(4), torch.ones(4)


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "expected"),
    [
        (ATEN.add.Tensor, (A, B), {}, [(0, False), (1, False)]),
        (ATEN.add_.Tensor, (A, B), {}, [(0, True), (1, False)]),
        (ATEN.add.out, (A, B), {"out": torch.zeros(4)}, [(0, False), (1, False), ("out", True)]),
        (ATEN.copy_.default, (A, B), {}, [(0, True), (1, False)]),
        (ATEN.view.default, (A, [2, 2]), {}, []),
        (ATEN.zeros_like.default, (A,), {}, []),
        (ATEN.unsqueeze_.default, (A, 0), {}, []),
        (ATEN.sum.default, (A,), {}, [(0, False)]),
        (torch.Tensor.tolist, (A,), {}, [(0, False)]),
    ],
    ids=str,
)
def test_what_an_operation_reads_and_writes(func, args, kwargs, expected):
    assert expected == touched(func, *args, **kwargs)


def test_tensors_in_lists_are_touched_each():
    tensors = [torch.zeros(1), torch.zeros(1)]

    read = [access.tensor for access in accesses(ATEN.cat.default, (tensors,), {})]
    written = list(accesses(ATEN._foreach_add_.Scalar, (tensors, 1), {}))

    assert [id(each) for each in tensors] == [id(each) for each in read]
    assert [True, True] == [access.writes for access in written]


# --- what a call uses while it is pending


@pytest.mark.parametrize(
    ("op", "root", "expected"),
    [("allreduce", None, True), ("broadcast", 1, True), ("broadcast", 0, False), ("allgather", None, False)],
)
def test_which_calls_write_what_they_read(op, root, expected):
    assert expected is is_in_place(call(op=op, root=root), rank=0)


def test_an_input_may_be_read_and_an_output_may_not():
    source, target = torch.zeros(4), torch.zeros(8)
    window = open_window(call(inputs=(source,), outputs=(target,)), rank=0)

    assert window.touched(view_of(source), writes=False) is None
    assert not window.touched(view_of(source), writes=True).is_written
    assert window.touched(view_of(target), writes=False).is_written
    assert window.touched(view_of(torch.zeros(4)), writes=True) is None


def test_only_shared_bytes_count():
    buffer = torch.zeros(8)
    window = open_window(call(outputs=(buffer[:4],)), rank=0)

    assert window.touched(view_of(buffer[4:]), writes=True) is None
    assert window.touched(view_of(buffer[3:5]), writes=False)


def test_a_window_keeps_no_memory_and_forgets_what_is_gone():
    target = torch.zeros(4)
    window, view = open_window(call(outputs=(target,)), rank=0), view_of(target)
    del target

    assert () == window.call.outputs
    assert window.touched(view, writes=True) is None


def test_a_call_without_memory_has_no_window():
    assert open_window(call(op="barrier"), rank=0) is None
    assert open_window(call(inputs=(torch.zeros(0),)), rank=0) is None


def test_memory_that_was_handed_out_is_compared():
    source = torch.zeros(4)
    window = open_window(call(inputs=(source,)), rank=0)
    window.remember(view_of(source), Site(None, 7))
    assert [] == list(window.changed())

    source[1] = 5

    assert [7] == [site.line for site in window.changed()]


# --- from issue to wait


def test_a_pending_call_is_watched_until_it_is_waited_for(recorder, operations):
    target = torch.zeros(4)
    issued = call(outputs=(target,))
    assert not operations.asked

    pending(recorder, issued)
    assert operations.asked
    recorder.on_op(ATEN.sum.default, (target,), {})
    recorder.on_done(wait_for(issued), None)

    assert not operations.asked
    recorder.on_op(ATEN.sum.default, (target,), {})
    (race,) = recorder.report().races
    assert (RaceKind.OUTPUT_READ, "sum", 99) == (race.kind, race.what, race.waited.line)


def test_a_backward_pass_is_watched_and_told_of_when_something_is_pending(recorder, operations):
    recorder.on_wait(wait_for(None, WaitKind.BACKWARD))
    assert not operations.stands_by  # nothing was issued: nothing will be pending that C++ has issued

    issued = call(op="barrier")
    recorder.on_issue(issued)
    recorder.on_wait(wait_for(None, WaitKind.BACKWARD))

    assert (True, False) == (operations.stands_by, operations.asked)


@pytest.mark.parametrize(
    ("function", "expected"), [("_engine_run_backward", []), ("hook", [RaceKind.OUTPUT_WRITTEN])]
)
def test_what_the_engine_does_with_a_bucket_is_meant(recorder, function, expected):
    bucket = torch.zeros(4)
    pending(recorder, call(inputs=(bucket,), op="allreduce", by_cpp=True, in_backward=True))
    touch = lambda: recorder.on_op(ATEN.mul_.Tensor, (bucket, 2), {})  # noqa: E731
    touch.__code__ = touch.__code__.replace(co_name=function)

    touch()

    assert expected == kinds(recorder)


def test_a_hook_is_looked_at_where_only_the_engine_may_touch_and_where_others_may(recorder):
    bucket, target = torch.zeros(4), torch.zeros(4)
    pending(recorder, call(1, inputs=(bucket,), op="allreduce", by_cpp=True, in_backward=True))
    pending(recorder, call(2, outputs=(target,)))
    engine = lambda: recorder.on_op(ATEN.mul_.Tensor, (target, 2), {})  # noqa: E731
    engine.__code__ = engine.__code__.replace(co_name="_engine_run_backward")

    engine()

    assert [RaceKind.OUTPUT_WRITTEN] == kinds(recorder)


def test_what_is_touched_after_the_wait_is_no_race(recorder):
    target = torch.zeros(4)
    issued = call(outputs=(target,))
    pending(recorder, issued)
    recorder.on_done(wait_for(issued), None)

    recorder.on_op(ATEN.add_.Tensor, (target, 1), {})

    assert [] == kinds(recorder)


@pytest.mark.parametrize(
    ("func", "of", "expected"),
    [
        (ATEN.add_.Tensor, "source", [RaceKind.INPUT_WRITTEN]),
        (ATEN.add.Tensor, "source", []),
        (ATEN.add_.Tensor, "target", [RaceKind.OUTPUT_WRITTEN]),
        (ATEN.add.Tensor, "target", [RaceKind.OUTPUT_READ]),
        (ATEN.add_.Tensor, "other", []),
    ],
    ids=str,
)
def test_each_access_has_its_kind(recorder, func, of, expected):
    tensors = {name: torch.zeros(4) for name in ("source", "target", "other")}
    pending(recorder, call(inputs=(tensors["source"],), outputs=(tensors["target"],)))

    recorder.on_op(func, (tensors[of], 1), {})

    assert expected == kinds(recorder)


def test_a_race_is_told_once_for_each_line(recorder):
    target = torch.zeros(4)
    pending(recorder, call(outputs=(target,)))
    for _ in range(3):
        recorder.on_op(ATEN.sum.default, (target,), {})

    assert [RaceKind.OUTPUT_READ] == kinds(recorder)


def test_a_call_that_reads_what_another_one_writes(recorder):
    target = torch.zeros(4)
    pending(recorder, call(1, outputs=(target,)))
    pending(recorder, call(2, inputs=(target,), outputs=(torch.zeros(8),)))

    (race,) = recorder.report().races
    assert (RaceKind.OUTPUT_READ, 2) == (race.kind, race.at.line)


def test_a_call_that_writes_what_another_one_writes(recorder):
    target = torch.zeros(4)
    pending(recorder, call(1, outputs=(target,)))
    pending(recorder, call(2, outputs=(target,)))

    assert [RaceKind.OUTPUT_WRITTEN] == kinds(recorder)


def test_calls_that_run_in_order_do_not_race(operations, held):
    recorder, target = RaceRecorder(0, Policy(as_nccl=True)), torch.zeros(4)
    pending(recorder, call(1, outputs=(target,)))
    pending(recorder, call(2, inputs=(target,), outputs=(torch.zeros(8),)))

    assert [] == kinds(recorder)


def test_what_nobody_can_wait_for_is_dropped(recorder, held):
    target = torch.zeros(4)
    pending(recorder, call(outputs=(target,)))
    held.clear()

    recorder.on_op(ATEN.sum.default, (target,), {})

    assert [] == kinds(recorder)


def test_what_nobody_can_wait_for_is_dropped_with_the_next_call(recorder, held):
    targets = [torch.zeros(4) for _ in range(3)]
    held.update({3})
    pending(recorder, call(1, outputs=(targets[0],)))
    pending(recorder, call(2, outputs=(targets[1],)))
    held.remove(1)
    pending(recorder, call(3, outputs=(targets[2],)))
    held.add(1)  # too late: it is forgotten

    for target in targets:
        recorder.on_op(ATEN.sum.default, (target,), {})

    assert [2, 3] == [race.seq for race in recorder.report().races]


def test_when_nobody_can_wait_any_more_nobody_asks(recorder, operations, held):
    pending(recorder, call(outputs=(torch.zeros(4),)))
    held.clear()

    recorder.on_done(wait_for(None, WaitKind.BACKWARD), None)

    assert not operations.asked


def test_races_beyond_those_that_are_kept_are_counted(recorder, monkeypatch):
    monkeypatch.setattr(race_recorder, "_MOST_RACES", 1)
    target = torch.zeros(4)
    pending(recorder, call(outputs=(target,)))
    for _ in range(2):
        recorder.on_op(ATEN.sum.default, (target,), {})
    recorder.on_op(ATEN.add_.Tensor, (target, 1), {})

    assert ([RaceKind.OUTPUT_READ], 1) == (kinds(recorder), recorder.report().beyond)


def test_a_call_that_returns_when_it_is_done_is_not_pending(recorder, operations):
    target = torch.zeros(4)
    pending(recorder, call(outputs=(target,), is_async=False))

    assert not operations.asked


@pytest.mark.parametrize(("numbers", "expected"), [(0, []), (4, []), (16, [RaceKind.STORAGE_FREED])])
def test_a_tensor_is_moved_only_where_it_needs_more_memory(recorder, numbers, expected):
    target = torch.zeros(4)
    pending(recorder, call(outputs=(target,)))

    recorder.on_op(ATEN.resize_.default, (target, [numbers]), {})

    assert expected == kinds(recorder)


def test_an_input_that_numpy_has_and_changes(recorder):
    source = torch.zeros(4)
    issued = call(inputs=(source,))
    pending(recorder, issued)
    recorder.on_op(torch.Tensor.numpy, (source,), {})
    source.fill_(1.0)

    recorder.on_wait(wait_for(issued))

    (race,) = recorder.report().races
    assert (RaceKind.INPUT_WRITTEN, HANDED_OUT) == (race.kind, race.what)


def test_what_raises_makes_it_doubtful_and_a_new_test_begins_clean(recorder, operations):
    issued = call(outputs=(torch.zeros(4),))
    pending(recorder, issued)
    recorder.on_error(issued, RuntimeError())
    assert recorder.report().doubtful

    recorder.begin()

    assert (False, False) == (recorder.report().doubtful, operations.asked)


def test_races_of_another_thread_say_so(recorder):
    target = torch.zeros(4)
    pending(recorder, call(outputs=(target,), thread=threading.get_ident() + 1))
    recorder.on_op(ATEN.sum.default, (target,), {})

    (race,) = recorder.report().races
    assert race.in_other_thread
