"""Switches of torch that hold for the whole process or its main thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from functools import partial
from typing import Any

import torch
import torch.autograd.forward_ad
import torch.nn.modules.module
import torch.optim.optimizer  # torch.optim deletes the name: read it from sys.modules
import torch.utils._device  # asking for the default device would import it
import torch.utils.deterministic

from disttest.observe import is_watching
from disttest.runtime.rank.facet import MISSING, Facet, Setting, Values, attribute, presence, settings

# Half of the following has no public name.
_C: Any = torch._C
_AUTOCAST_DEVICES = ("cpu", "cuda")


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _dispatch_modes() -> int:
    """Number of the test's dispatch modes.

    An observing tool has one while a call is pending, and a test may leave it in that state.
    """
    return int(_C._len_torch_dispatch_stack()) - is_watching()


def _put_cudnn(flags: tuple[bool, bool]) -> None:
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


# In a list, so that no compiler folds the constant.
_smallest = [sys.float_info.min]


def _flushes_denormals() -> bool:
    # torch can set this flag of the processor but not report it.
    return _smallest[0] / 2 == 0.0


def _print_options() -> tuple[Any, ...]:
    options = torch._tensor_str.PRINT_OPTS
    return (options.precision, options.threshold, options.edgeitems, options.linewidth, options.sci_mode)


def _put_print_options(then: tuple[Any, ...]) -> None:
    names = ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")
    for name, value in zip(names, then, strict=True):
        setattr(torch._tensor_str.PRINT_OPTS, name, value)


def _autocast() -> Iterator[Setting]:
    for device in _AUTOCAST_DEVICES:
        yield Setting(
            device, partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device)
        )
        yield Setting(
            f"{device} dtype",
            partial(torch.get_autocast_dtype, device),
            partial(torch.set_autocast_dtype, device),
        )
    yield Setting("cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    yield Setting("nesting", _autocast_nesting, _put_autocast_nesting)


def _autocast_nesting() -> int:
    # torch has no getter of the depth; this pair returns it and changes nothing.
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _put_autocast_nesting(then: int) -> None:
    while _autocast_nesting() > then:
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _put_function_modes(then: int) -> None:
    # From the top: modes form a stack, in which only the last one can be left.
    while _C._len_torch_function_stack() > then:
        _C._pop_torch_function_stack()
    if _C._len_torch_function_stack() < then:
        # A mode that a test has left for its fixture cannot be entered again from outside.
        raise LookupError("a mode that was there is gone")


def _top_hooks() -> Any:
    return _C._autograd._top_saved_tensors_default_hooks(True)


def _put_hooks(then: Any) -> None:
    while _top_hooks() is not None and _top_hooks() != then:
        _C._autograd._pop_saved_tensors_default_hooks()
    if _top_hooks() != then:
        raise LookupError("hooks that were there are gone")


def _hooks_of_all(kind: str, module: Any) -> Facet:
    """Build the facet of hooks that a torch module keeps for all objects of a class."""
    tables: dict[str, MutableMapping[int, Any]] = {
        name.removeprefix("_global_").replace("_", " "): table
        for name, table in vars(module).items()
        if name.startswith("_global_") and isinstance(table, MutableMapping)
    }

    def read() -> Values:
        return {(name, key): hook for name, table in tables.items() if table for key, hook in table.items()}

    def restore(name: tuple[str, int], then: Any) -> bool:
        table = tables[name[0]]
        if then is MISSING:
            table.pop(name[1], None)
        else:
            table[name[1]] = then
        return True

    return Facet(kind, read, restore, presence)


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    # torch refuses to answer after a test has set the precision of one backend only:
    # https://github.com/pytorch/pytorch/issues/179445
    except RuntimeError:
        return "set for one backend"


# Label, getter and setter in ``torch._C``; torch 2.9 lacks some of them.
_SWITCHES = (
    ("mkldnn", "_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    ("deterministic mkldnn", "_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    ("nnpack", "_get_nnpack_enabled", "_set_nnpack_enabled"),
    ("quantized engine", "_get_qengine", "_set_qengine"),
    ("flash attention", "_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("math attention", "_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("memory-efficient attention", "_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("cuDNN attention", "_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    ("attention of other backends", "_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
    ("order of attention backends", "_get_sdp_priority_order", "_set_sdp_priority_order"),
    (
        "reduced precision of float16 attention",
        "_get_math_sdp_allow_fp16_bf16_reduction",
        "_set_math_sdp_allow_fp16_bf16_reduction",
    ),
    (
        "reduced precision of float16 on the CPU",
        "_get_cpu_allow_fp16_reduced_precision_reduction",
        "_set_cpu_allow_fp16_reduced_precision_reduction",
    ),
    (
        "checks of sparse tensors",
        "_check_sparse_tensor_invariants",
        "_set_check_sparse_tensor_invariants",
    ),
)


def _switches() -> Iterator[Setting]:
    for words, get, put in _SWITCHES:
        if hasattr(_C, get) and hasattr(_C, put):
            yield Setting(words, getattr(_C, get), getattr(_C, put))
    if hasattr(_C, "_get_fp32_precision_getter"):
        for backend, operation in _PRECISIONS:
            yield Setting(
                f"float32 precision of {backend} {operation}",
                partial(_C._get_fp32_precision_getter, backend, operation),
                partial(_C._set_fp32_precision_setter, backend, operation),
            )
    yield Setting("opt_einsum", *attribute(torch.backends.opt_einsum, "enabled"))
    yield Setting("strategy of opt_einsum", *attribute(torch.backends.opt_einsum, "strategy"))
    yield Setting("fast path of attention", *attribute(torch.backends.mha, "_is_fastpath_enabled"))


# Without matmul: the setting "matmul precision" covers it, and resets it for all backends.
_PRECISIONS = (("generic", "all"), ("mkldnn", "all"), ("mkldnn", "conv"), ("mkldnn", "rnn"))
_FUTURE_FLAGS = ("_overwrite_module_params_on_conversion", "_swap_module_params_on_conversion")


FACETS = (
    settings(
        "torch",
        Setting("default dtype", torch.get_default_dtype, torch.set_default_dtype),
        Setting("default device", torch.get_default_device, torch.set_default_device),
        Setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
        # No setter: only the guard that has entered the mode can leave it.
        Setting("inference mode", torch.is_inference_mode_enabled),
        Setting(
            "deterministic algorithms",
            _deterministic,
            lambda on: torch.use_deterministic_algorithms(on[0], warn_only=on[1]),
        ),
        Setting(
            "filling of uninitialised memory",
            *attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
        ),
        Setting(
            "cudnn",
            lambda: (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
            _put_cudnn,
        ),
        Setting("matmul precision", _matmul_precision, torch.set_float32_matmul_precision),
        Setting("threads", torch.get_num_threads, torch.set_num_threads),
        Setting("threads between operators", torch.get_num_interop_threads),
        Setting("anomaly mode", _anomaly, lambda on: torch.autograd.set_detect_anomaly(*on)),
        Setting("flushing of denormal numbers", _flushes_denormals, torch.set_flush_denormal),
        Setting("repeated warnings", torch.is_warn_always_enabled, torch.set_warn_always),
        Setting("print options", _print_options, _put_print_options),
        Setting("sharing strategy", *attribute(torch.multiprocessing, "_sharing_strategy")),
        Setting("threads of autograd", _C._is_multithreading_enabled, _C._set_multithreading_enabled),
        Setting("forward grad mode", _C._is_fwd_grad_enabled, _C._set_fwd_grad_enabled),
        Setting(
            "level of forward differentiation", *attribute(torch.autograd.forward_ad, "_current_level")[:1]
        ),
        Setting("level of functorch", _C._functorch.maybe_current_level),
        Setting("profiler", _C._autograd._profiler_enabled),
        Setting("default generator", *attribute(torch, "default_generator")),
    ),
    settings("torch backend", *_switches()),
    settings(
        "torch.__future__",
        *(Setting(name.strip("_"), *attribute(torch.__future__, name)) for name in _FUTURE_FLAGS),
    ),
    settings("autocast", *_autocast()),
    settings(
        "torch mode",
        Setting("function modes", _C._len_torch_function_stack, _put_function_modes),
        Setting("dispatch modes", _dispatch_modes),
        Setting("functions of subclasses", _C._is_torch_function_enabled),
        Setting("saved-tensor hooks", _top_hooks, _put_hooks),
        Setting(
            "why saved-tensor hooks are off", _C._autograd._saved_tensors_hooks_get_disabled_error_message
        ),
    ),
    _hooks_of_all("hook of all modules", torch.nn.modules.module),
    _hooks_of_all("hook of all optimizers", sys.modules["torch.optim.optimizer"]),
)
