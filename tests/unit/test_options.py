"""Options: parsed once, refused with a message that names the option and the value."""

from pathlib import Path

import pytest

from disttest.errors import UsageError
from disttest.model import FlakyRule, Isolation
from disttest.planning.options import OPTIONS, RunOptions, given_options, resolve_options
from disttest.planning.share import GpuShare


def test_defaults():
    assert RunOptions() == resolve_options({}, environ={})


def test_every_option_has_a_field_and_a_variable():
    fields = set(RunOptions.__struct_fields__)

    assert fields == {option.field for option in OPTIONS}
    assert all(option.variable == f"DISTTEST_{option.field.upper()}" for option in OPTIONS)


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("world_sizes", "1,2, 4,2", (1, 2, 4)),
        ("backend", "gloo,NCCL", ("gloo", "nccl")),
        ("backend", "auto", ()),
        ("device", "cuda", "cuda"),
        ("slots", "8", 8),
        ("timeout", "0.5", 0.5),
        ("deadline", "3600", 3600.0),
        ("results", "out/x", Path("out/x")),
        ("isolation", "warm", Isolation.WARM),
        ("isolation", "auto", None),
        ("seed", "0", 0),
        ("gpus", "auto", GpuShare()),
        ("gpus", "ALL", GpuShare(required=True)),
        ("gpus", "none", GpuShare(none=True)),
        ("gpus", "2", GpuShare(required=True, count=2)),
        ("gpus", "device=3", GpuShare(required=True, names=("3",))),
        ("gpus", "GPU-1f, MIG-2", GpuShare(required=True, names=("GPU-1f", "MIG-2"))),
        ("share", "true", True),
        ("share", "False", False),
        ("lease_dir", "/x", Path("/x")),
        ("log_limit", "64k", 65536),
        ("retries", "0", 0),
        ("retries", "3", 3),
        ("infra_retries", "2", 2),
        ("flaky", "fail", FlakyRule.FAIL),
        ("mask", "one value\nanother", ("one value", "another")),
        ("log_limit", "8MiB", 8 * 1024**2),
    ],
)
def test_values(field, text, value):
    variable = f"DISTTEST_{field.upper()}"

    assert value == getattr(resolve_options({field: text}, environ={}), field)
    assert value == getattr(resolve_options({}, environ={variable: text}), field)


def test_a_flag_wins_over_the_variable_and_empty_means_not_set():
    environ = {"DISTTEST_TIMEOUT": "10", "DISTTEST_SEED": ""}

    assert 5 == resolve_options({"timeout": "5"}, environ=environ).timeout
    assert 10 == resolve_options({"timeout": ""}, environ=environ).timeout
    assert 0 == resolve_options({}, environ=environ).seed


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *[("gpus", text) for text in ("0", "-1", "x", "GPU", "device=", "1.5", "GPU-1,")],
        ("share", "yes"),
        *[("world_sizes", text) for text in ("0", "-1", "x", "10000", "1,,2", "2.0", "١")],
        *[("timeout", text) for text in ("0", "-1", "x", "nan", "inf")],
        *[("deadline", text) for text in ("0", "-5", "soon")],
        *[("slots", text) for text in ("0", "-1", "many")],
        *[("log_limit", text) for text in ("0", "-1", "8q", "k")],
        ("device", "tpu"),
        ("isolation", "cold"),
        ("seed", "-1"),
        ("retries", "-1"),
        ("infra_retries", "some"),
        ("flaky", "maybe"),
    ],
)
def test_nonsense_is_refused_by_name(field, text):
    name = field.replace("_", "-")

    with pytest.raises(UsageError) as from_flag:
        resolve_options({field: text}, environ={})
    with pytest.raises(UsageError) as from_variable:
        resolve_options({}, environ={f"DISTTEST_{field.upper()}": text})

    assert str(from_flag.value).startswith(f"--{name}: ")
    assert str(from_variable.value).startswith(f"DISTTEST_{field.upper()}: ")
    assert text.split(",")[0] in str(from_flag.value)


def test_masks_of_flag_and_variable_add_up_and_stay_out_of_the_record():
    flags, environ = (
        {"mask": "by flag", "seed": "1"},
        {"DISTTEST_MASK": "by variable", "DISTTEST_FLAKY": "fail"},
    )

    assert ("by flag", "by variable") == resolve_options(flags, environ=environ).mask
    assert {"seed": "1", "flaky": "fail"} == given_options(flags, environ=environ)
