"""Switches of torch that matter on GPUs: autocast, TF32, the current device and its streams."""

from __future__ import annotations

from typing import Any

import torch

from disttest.runtime.rank.facet import Facet, Setting, Values, attribute, settings

# torch.cuda has no annotations.
_cuda: Any = torch.cuda


def _place() -> Values:
    # Reading the streams would initialize CUDA.
    if not _cuda.is_initialized():
        return {}
    streams = {f"stream of cuda:{i}": _cuda.current_stream(i) for i in range(_cuda.device_count())}
    return {**streams, "current device": _cuda.current_device()}


def _restore_place(_name: str, then: Any) -> bool:
    if isinstance(then, _cuda.Stream):
        device = _cuda.current_device()
        # This also makes the stream's device the current one.
        _cuda.set_stream(then)
        then = device
    if isinstance(then, int):
        _cuda.set_device(then)
    return True


def _flag(owner: Any, name: str, words: str) -> Setting:
    return Setting(words, *attribute(owner, name))


FACETS = (
    settings(
        "torch.backends",
        _flag(torch.backends.cuda.matmul, "allow_tf32", "TF32 in matmul"),
        _flag(torch.backends.cudnn, "allow_tf32", "TF32 in cuDNN"),
        _flag(torch.backends.cudnn, "enabled", "cuDNN"),
        _flag(
            torch.backends.cuda.matmul,
            "allow_fp16_reduced_precision_reduction",
            "reduced precision of float16",
        ),
        _flag(
            torch.backends.cuda.matmul,
            "allow_bf16_reduced_precision_reduction",
            "reduced precision of bfloat16",
        ),
    ),
    Facet("cuda", _place, _restore_place, made_for_tests=True),
)
