"""What the process that asks holds itself is no use by others: a test module put it on the GPU at import."""

from __future__ import annotations

import os

import fake_driver as fakes

GIB = 1 << 30


def test_own_memory_is_not_in_use_by_others(fake, detect):
    own = f"{os.getpid()}:{GIB}"
    driver = fake(
        fakes.plain(2)
        | {"gpu.0.processes": own, "gpu.0.memory_used": GIB}
        | {"gpu.1.processes": f"{own},4242:{GIB}", "gpu.1.memory_used": 2 * GIB}
    )

    first, second = detect(driver).gpus

    assert (0, ()) == (first.memory_used, first.processes)
    assert (GIB, [4242]) == (second.memory_used, [process.pid for process in second.processes])
