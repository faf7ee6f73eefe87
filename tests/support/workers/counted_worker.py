"""A preflight worker that tells each import of it, in the file DISTTEST_IMPORTS, and leaves a thread if told to."""

from __future__ import annotations

import os
import threading

from disttest.plugins.gpus.preflight.worker import main

__all__ = ["main"]

with open(os.environ["DISTTEST_IMPORTS"], "a", encoding="utf-8") as imports:
    imports.write(f"{os.getpid()}\n")
if "DISTTEST_THREAD" in os.environ:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
