"""A bounded child that does what its argument says."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time

from disttest.host import bounded
from disttest.host.bounded import send_to_parent


def say_three() -> None:
    print("printed by Python", flush=True)
    libc = ctypes.CDLL(None)
    libc.puts(b"printed by C")
    libc.fflush(None)
    for number in range(3):
        send_to_parent({"n": number})


def large() -> None:
    send_to_parent("x" * 3_000_000)


def fail() -> None:
    raise ValueError("planted")


def crash() -> None:
    signal.raise_signal(signal.SIGSEGV)


def sleep() -> None:
    send_to_parent("ready")
    time.sleep(600)


def ignore_term() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep()


def hold_the_gil() -> None:
    send_to_parent("ready")
    re.match(r"(a+)+$", "a" * 60 + "b")


def chatter() -> None:
    while True:
        send_to_parent("still here")
        time.sleep(0.3)


def flood() -> None:
    for _ in range(20_000):
        sys.stderr.write("x" * 100 + "\n")
    sys.stderr.write("the last line\n")


def grandchild() -> None:
    process = subprocess.Popen(["sleep", "600"])
    send_to_parent(process.pid)


def close_output() -> None:
    send_to_parent("ready")
    os.close(bounded._message_pipe)
    sys.stdin.read()


def echo() -> None:
    for line in sys.stdin:
        send_to_parent(json.loads(line))


def main(arguments) -> None:
    globals()[arguments[0]]()
