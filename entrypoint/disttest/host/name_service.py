"""Connections without a name server.

torch looks up the name of each address that it connects to, if only for a log message (``getnameinfo`` in
torch/csrc/distributed/c10d/socket.cpp). It passes 127.0.0.1 as ``::ffff:127.0.0.1``, which no ``/etc/hosts`` lists,
so each rank asks a name server. A server that cannot be reached, or that drops repeated questions, costs five
seconds each time, twice: 90 tests in new processes took 9.2 to 10.6 s, and 5.5 s without these questions. Newer
releases of torch stop asking after a failure: https://github.com/pytorch/pytorch/pull/159596.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RES_INIT = 1
"""RES_INIT of <resolv.h>: the state is initialised."""
_ERROR = 2
"""Log level of c10 at which warnings are not shown."""


class _Resolver(ctypes.Structure):
    """The beginning of a thread's ``struct __res_state``; see resolver(3)."""

    _fields_ = (("retrans", ctypes.c_int), ("retry", ctypes.c_int), ("options", ctypes.c_ulong))


@contextmanager
# The variable RES_OPTIONS would affect the tests, too; `retry` of this thread's resolver affects only this
# connection.
def without_name_service() -> Iterator[None]:
    """Disable name servers for this thread inside the block, and torch's warning about a failed lookup."""
    # Use it only for a connection to an address whose server listens, because c10d's other warnings are not shown
    # either. If the C library or torch lacks the needed symbols, nothing changes.
    try:
        resolver, log_level = _resolver(), _log_level()
    # In this order: a C library without the symbols, no torch, no libc10.so, and a libc10.so without the
    # flag.
    except (AttributeError, KeyError, OSError, ValueError):
        yield
        return
    tries, level = resolver.retry, log_level.value  # one per thread, the other per process
    # With no try left the resolver sends no question. It still reads /etc/hosts.
    resolver.retry = 0
    if level < _ERROR:
        log_level.value = _ERROR
    try:
        yield
    finally:
        resolver.retry = tries
        if level < _ERROR:  # otherwise another thread is in here and restores it
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
    """Return the log level of the loaded torch."""
    library = Path(str(sys.modules["torch"].__file__)).with_name("lib") / "libc10.so"
    return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
