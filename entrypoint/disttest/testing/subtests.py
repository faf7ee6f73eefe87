"""``run_subtests``: many configurations in one set of ranks. Every failure is reported, and ranks stay synchronised."""

from __future__ import annotations

import functools
import itertools
import traceback
import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from disttest.host.imports import reset_compiler
from disttest.planning.backends import backend_named


def run_subtests(
    cls_inst: Any,
    subtest_config: Mapping[str, Sequence[Any]],
    test_fn: Callable[..., Any],
    *test_args: Any,
    **test_kwargs: Any,
) -> None:
    """Call ``test_fn`` with each element of the product of the configuration's values, in order.

    A configuration that fails on any rank does not end the test: the ranks agree on it and continue together. All
    failures are raised at the end.

    Raises:
        AssertionError: some configurations failed; the text has each one with its traceback.
    """
    failed = []
    try:
        for values in itertools.product(*subtest_config.values()):
            config = dict(zip(subtest_config, values, strict=True))
            call = functools.partial(test_fn, *test_args, **test_kwargs, **config)
            error = _run_one(cls_inst, config, call)
            if _anyone(error is not None):
                failed.append(f"{config}: {error or 'failed on another rank'}")
    # A later configuration that skips, also by `sys.exit`, must not hide the failures of earlier ones.
    except BaseException as error:
        if not failed or isinstance(error, KeyboardInterrupt):
            raise
    if failed:
        raise AssertionError(f"{len(failed)} of the subtests failed:\n" + "\n".join(failed))


def _run_one(case: Any, config: Mapping[str, Any], call: Callable[[], Any]) -> str | None:
    # Code that was compiled for one configuration must not serve the next one.
    reset_compiler()
    try:
        with case.subTest(**config):
            call()
    except unittest.SkipTest:
        raise
    except Exception:  # noqa: BLE001  # collected and raised with the others
        return traceback.format_exc()
    finally:
        reset_compiler()
    return None


def _anyone(failed: bool) -> bool:
    """Return whether any rank failed; this keeps the ranks synchronised."""
    if not dist.is_initialized():
        return failed
    # The backend of an accelerator reduces tensors of its devices only.
    needs_accelerator = backend_named(dist.get_backend()).needs_accelerator
    device = torch.accelerator.current_accelerator() if needs_accelerator else torch.device("cpu")
    flag = torch.tensor([int(failed)], dtype=torch.int32, device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())
