"""A torch test class whose rank 1 ends badly while rank 0 returns: torch's harness passes all of these."""

import ctypes
import os
import signal
import sys

from torch.testing._internal.common_distributed import MultiProcessTestCase


class Crashes(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_good(self):
        pass

    def test_segfault(self):
        if self.rank == 1:
            ctypes.string_at(0)

    def test_sigkill(self):
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def test_os_exit_0(self):
        if self.rank == 1:
            os._exit(0)

    def test_sys_exit_3(self):
        if self.rank == 1:
            sys.exit(3)
