"""Which line of a rank's traceback becomes the first line of its failure."""

import pytest

from disttest.results.headline import headline, raised_line

PLAIN = """Traceback (most recent call last):
  File "common_distributed.py", line 1058, in run_test
    getattr(self, test_name)()
KeyError: 'no such layer'
"""
HINTS = f"""{PLAIN}
To execute this test, run the following from the base repo dir:
    python test_layers.py TestLayers.test_forward

This message can be suppressed by setting PYTORCH_PRINT_REPRO_ON_FAILURE=0
"""
CHAINED = f"""{PLAIN}
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "test_layers.py", line 7, in test_forward
    raise ValueError("layer\\n2")
ValueError: layer
2
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PLAIN, "KeyError: 'no such layer'"),
        (HINTS, "KeyError: 'no such layer'"),
        (CHAINED, "ValueError: layer"),
        ("it went wrong\nbadly\n\n", "badly"),
        ("Traceback (most recent call last):\n  cut off", "  cut off"),
        ("", ""),
    ],
    ids=["plain", "hints-below", "chained", "no-traceback", "cut-off", "nothing"],
)
def test_the_line_that_names_the_exception(text, line):
    assert line == raised_line(text)


CLOSE = """AssertionError: Tensor-likes are not close!

Mismatched elements: 1 / 8 (12.5%)
Greatest absolute difference: nan at index (3,) (up to 1e-05 allowed)
Greatest relative difference: nan at index (3,) (up to 1.3e-06 allowed)

To execute this test, run the following from the base repo dir:
    python test_t.py
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "AssertionError: Scalars are not equal!\n\nExpected 5 but got 1.\nAbsolute difference: 4\n",
            "AssertionError: Scalars are not equal! Expected 5 but got 1",
        ),
        (
            CLOSE,
            "AssertionError: NaN at index (3,): Tensor-likes are not close! Mismatched elements: 1 / 8 (12.5%)",
        ),
        (
            CLOSE.replace("nan at", "0.5 at"),
            "AssertionError: off by 0.5 (up to 1e-05 allowed) at index (3,): Tensor-likes are not close! "
            "Mismatched elements: 1 / 8 (12.5%)",
        ),
        ("AssertionError:\n\nlosses differ: 1.0, 2.0\n", "AssertionError: losses differ: 1.0, 2.0"),
        ("AssertionError: assert 1 == 2\n +  where 1 = f()", "AssertionError: assert 1 == 2"),
        (
            f"RuntimeError: Thread 0 exited with exception:\n{PLAIN}\nThread 1 exited with exception:\n{CHAINED}",
            "RuntimeError: Thread 0 exited with exception: KeyError: 'no such layer'",
        ),
        (
            "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\n"
            "Traceback (most recent call last):\n"
            '  File "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 87, in _wrap\n    fn(i, *args)\n'
            '  File "/work/test_step.py", line 14, in work\n    assert x == 3, "wrong sum"\nAssertionError: wrong sum\n',
            "rank 1 of mp.spawn failed at test_step.py:14: AssertionError: wrong sum",
        ),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV",
            "rank 1 of mp.spawn was killed by SIGSEGV",
        ),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 12 terminated with exit code 3",
            "rank 12 of mp.spawn exited with code 3",
        ),
        ("RuntimeError: stop!", "RuntimeError: stop!"),
        ("RuntimeError: stop!\nTo execute this test, run", "RuntimeError: stop!"),
        ("", ""),
    ],
)
def test_a_headline_has_the_values(text, line):
    assert line == headline(text)


def test_so_has_that_of_a_traceback():
    text = PLAIN.rpartition("KeyError")[0] + CLOSE
    assert raised_line(text).startswith("AssertionError: NaN at index (3,): Tensor-likes are not close!")
