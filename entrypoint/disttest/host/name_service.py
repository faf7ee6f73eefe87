"""Connections that ask no name server.

torch asks for the name of each address that it connects to, if only for a message of its log (``getnameinfo`` in
torch/csrc/distributed/c10d/socket.cpp). It has 127.0.0.1 as ``::ffff:127.0.0.1``, which no ``/etc/hosts`` lists, so that a name
server is asked for each rank: one that is not to be reached, or that drops what it is asked too often, costs five seconds
each time, twice.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RES_INIT = 1
"""Of <resolv.h>: the state is filled in."""
_ERROR = 2
"""Of c10's levels of logging: warnings are not shown."""


class _Resolver(ctypes.Structure):
    """The beginning of a thread's ``struct __res_state``; see resolver(3)."""

    _fields_ = (("retrans", ctypes.c_int), ("retry", ctypes.c_int), ("options", ctypes.c_ulong))


@contextmanager
def without_name_service() -> Iterator[None]:
    """This thread asks no name server inside, and torch does not warn that it has learnt no name.

    Only for a connection to an address whose server listens: c10d's other warnings are not shown either. Where the C library or
    torch has nothing of the kind, nothing changes.
    """
    try:
        resolver, log_level = _resolver(), _log_level()
    except (AttributeError, KeyError, OSError, ValueError):
        yield
        return
    tries, level = resolver.retry, log_level.value  # the one of this thread, the other of the process
    resolver.retry = 0
    if level < _ERROR:
        log_level.value = _ERROR
    try:
        yield
    finally:
        resolver.retry = tries
        if level < _ERROR:  # else another thread is in here, and puts it back
            log_level.value = level


def _resolver() -> _Resolver:
    libc = ctypes.CDLL(None)
    state = libc["__res_state"]
    state.restype = ctypes.POINTER(_Resolver)
    resolver: _Resolver = state().contents
    if not resolver.options & _RES_INIT:
        libc["__res_init"]()
    return resolver


def _log_level() -> ctypes.c_int:
    """Of the torch that is loaded."""
    library = Path(str(sys.modules["torch"].__file__)).with_name("lib") / "libc10.so"
    return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
