"""Whether a dictionary was modified, without a look at its values.

A look at a value writes to its reference count, and after a fork the kernel then copies the memory page. The values of
the watched modules lie on 1,200 pages: 4.7 MiB in each rank.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# CPython numbers the modifications of a dictionary, behind its reference count, type and length (3.11 to 3.13; removed in
# 3.14: https://github.com/python/cpython/issues/124296).
_OFFSET = 3 * ctypes.sizeof(ctypes.c_void_p)


class DictVersion:
    """Tells whether a dictionary was modified; a wrong yes is possible, a wrong no is not."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        """Follow a dictionary.

        Args:
            mapping: a dictionary, or the view that ``vars`` returns for a class.
        """
        # `vars` of a class is a read-only view, whose only referent is the dictionary itself.
        self._dict = mapping if isinstance(mapping, dict) else gc.get_referents(mapping)[0]
        self._number = _number_of(self._dict)
        self._noted = -1

    def may_have_changed(self) -> bool:
        """Whether it may have been modified since the last call; always true where Python has no such numbers."""
        before, self._noted = self._noted, self._number.value
        return before != self._noted or not is_numbered()


class UntilChanged(Generic[T]):
    """A result of reading a dictionary, kept until the dictionary may have been modified."""

    def __init__(self, mapping: Mapping[str, Any], read: Callable[[], T]) -> None:
        """Read at the first call.

        Args:
            mapping: as for :class:`DictVersion`.
            read: reads the dictionary.
        """
        self._version, self._read = DictVersion(mapping), read
        self._result: T

    def __call__(self) -> T:
        """Return the result, read again if necessary."""
        if self._version.may_have_changed():
            self._result = self._read()
        return self._result


@functools.cache
def is_numbered() -> bool:
    """Whether this Python numbers the modifications of dictionaries; found by trial."""
    # In a Python without such numbers, the bytes at this place belong to something else and stay the same.
    trial = {"key": 0}
    number = _number_of(trial)
    before = number.value
    trial["key"] = 1
    between = number.value
    del trial["key"]
    return len({before, between, number.value}) == 3


def _number_of(mapping: dict[Any, Any]) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(id(mapping) + _OFFSET)
