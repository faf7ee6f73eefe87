"""One record from torch's several flight recorders."""

from __future__ import annotations

from disttest.plugins.flight_recorder.recorder import merge_dumps, read_dump


def entry(name, at_ns, seq, **other):
    return {
        "process_group": ("0", "default_pg"),
        "profiling_name": name,
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "input_sizes": ((4,),),
        "input_dtypes": ["Float"],
        "output_sizes": ((4,),),
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_created_ns": at_ns,
        **other,
    }


GLOO = {"version": "2.10", "pg_config": {"0": {"desc": "a"}}, "entries": [entry("gloo:all_reduce", 30, 1)]}
NCCL = {
    "version": "2.10",
    "pg_config": {"1": {"desc": "b"}},
    "pg_status": {"1": {}},
    "entries": [entry("nccl:all_reduce", 20, 1), entry("nccl:broadcast", 40, 2, state="scheduled")],
}


def test_calls_on_both_backends_come_in_the_order_in_which_they_were_made():
    merged = merge_dumps([GLOO, NCCL])

    told = [(call.backend, call.op, call.seq, call.done) for call in read_dump(merged, since_s=0)]
    assert told == [
        ("nccl", "all_reduce", 1, True),
        ("gloo", "all_reduce", 1, True),
        ("nccl", "broadcast", 2, False),
    ]
    assert merged["pg_config"].keys() == {"0", "1"}
    assert merged["pg_status"] == {"1": {}}


def test_a_recorder_that_both_functions_dump_counts_once():
    assert merge_dumps([NCCL, NCCL])["entries"] == NCCL["entries"]


def test_tensors_have_the_names_that_users_of_torch_know():
    odd = entry("gloo:send", 20, 1, input_sizes=((2, 3), (1,)), input_dtypes=["BFloat16", "Float8_e5m2"])
    (call,) = read_dump({"entries": [odd]}, since_s=0)
    assert (call.inputs, call.outputs) == ("bfloat16[2, 3], Float8_e5m2[1]", "float32[4]")


def test_a_call_has_the_ranks_of_its_group():
    dump = {"pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [entry("gloo:all_reduce", 20, 1)]}
    assert [call.ranks for call in read_dump(dump, since_s=0)] == [(0, 1)]
