"""Rules for the reuse of a class's ranks: it is allowed only if the class does nothing but start them.

The decision uses the definitions of the class and its bases, by name and by the names in their bytecode; none of
them is called. When in doubt, ranks are new.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Iterator, Mapping
from typing import Any

# This and the lists below refuse too much rather than too little: a wrong refusal only costs new ranks.
_ITS_OWN_WAY = frozenset(
    {
        *("_run", "run_test", "run", "__call__", "debug", "__init__", "__new__", "_current_test_name"),
        *("join_or_run", "_join_processes", "_check_return_codes", "_start_processes", "_spawn_processes"),
    }
)
"""Methods that start, join and judge ranks. A class that overrides one is left alone."""
_HARMLESS = {
    "setUp": frozenset({"super", "setUp", "_spawn_processes", "_start_processes"}),
    "tearDown": frozenset(
        {
            *("super", "tearDown", "os", "remove", "unlink", "file_name", "contextlib", "suppress"),
            *("torch", "dist", "c10d", "distributed", "destroy_process_group"),
        }
    ),
}
"""Methods that run in the main process, mapped to the names that they may use."""
_OF_TORCH = {
    "TestDistBackend": {
        "setUp": _HARMLESS["setUp"]
        | {"initialize_temp_directories", "Barrier", "init"}
        | {"skip_return_code_checks", "test_ddp_has_finalized", "__wrapped__"},
        "tearDown": _HARMLESS["tearDown"] | {"cleanup_temp_dir"},
        "_run": frozenset(
            {
                *("rank", "file_name", "world_size", "init_method", "run_test", "_barrier"),
                *("torch", "dist", "init_process_group", "destroy_process_group", "BACKEND"),
                *("sys", "exit", "exit_code", "TEST_SKIPS", "args", "cuda", "is_available", "device_count"),
                *("timedelta", "CUSTOM_PG_TIMEOUT", "default_pg_timeout"),
            }
        ),
    },
    "DistributedTest._DistTestBase": {},
}
"""Classes of torch's own suite, mapped to their methods that only make a group and run the test in it."""
_SUITE = "torch.testing._internal.distributed.distributed_test"
_SHARED = frozenset({"os", "environ", "getenv", "get", "pop", "int", "str", "world_size"}) | {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
"""Names that all methods may use. Living ranks are notified of changed environment variables."""
_OF_PROCESSES = frozenset(
    {"processes", "pid_to_pipe", "exitcode", "special_return_code_checks", "skip_return_code_checks"}
)
"""Names related to processes and their exit codes: a rank that stays has not exited."""


def why_new_ranks(cls: type, base: type) -> str:
    """Return why each test of the class gets new ranks; empty if its tests may share ranks.

    Args:
        cls: a test class.
        base: torch's base class, which starts its ranks.
    """
    for each in own_classes(cls, base):
        known = _OF_TORCH.get(each.__qualname__) if each.__module__ == _SUITE else None
        if known is None and each.__module__.startswith("torch.") and each.__module__ != base.__module__:
            return f"{each.__name__} is a base of torch's that may keep more in a process"
        # By the names in their bytecode: to call a `setUp` would start ranks.
        for name, value in vars(each).items():
            if why := _objection(each, name, value, cls, known or {}):
                return why
    return ""


def own_classes(cls: type, base: type) -> Iterator[type]:
    """Yield the class and its bases, without torch's base class and the bases of that."""
    return (each for each in cls.__mro__ if not issubclass(base, each))


def _objection(owner: type, name: str, value: Any, cls: type, known: Mapping[str, frozenset[str]]) -> str:
    if name in _ITS_OWN_WAY and name not in known:
        return f"{owner.__name__} has its own {name}"
    names = frozenset(_names(value))
    if found := (names & _OF_PROCESSES) - known.get(name, frozenset()):
        return f"{owner.__name__}.{name} looks at {min(found)}"
    harmless = known.get(name) or _HARMLESS.get(name)
    if harmless:
        classes = {each.__name__ for each in cls.__mro__}
        more = names - harmless - _SHARED - classes
        if more or not isinstance(getattr(value, "__func__", value), types.FunctionType):
            return f"{owner.__name__}.{name} does more ({', '.join(sorted(more)[:3]) or 'no function'})"
    return ""


def _names(value: Any) -> Iterator[str]:
    """Yield the names of globals and attributes that a function, its wrapped and its inner functions use."""
    for function in _functions(value):
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            yield from code.co_names
            # Inner functions and lambdas are constants of the code around them.
            codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]


def _functions(value: Any) -> Iterator[types.FunctionType]:
    if isinstance(value, property):
        for each in (value.fget, value.fset):
            yield from _functions(each)
    value = getattr(value, "__func__", value)
    while value is not None:
        if isinstance(value, types.FunctionType):
            yield value
        # Decorators such as torch's skips hide the method behind a wrapper.
        value = vars(value).get("__wrapped__") if hasattr(value, "__dict__") else None
