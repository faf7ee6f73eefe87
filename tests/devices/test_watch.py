"""The watch over the GPUs of a run: one child that answers again and again, whatever the driver does."""

from __future__ import annotations

import os
import select

import fake_driver as fakes
import pytest

from disttest.plugins.gpus.usage import GpuWatch

GIB = 1 << 30


@pytest.fixture
def watch(detect):
    made = []

    def make(driver, **bounds):
        made.append(GpuWatch(detect(driver).gpus, library=str(driver.library), **bounds))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ask(watch):
    watch.ask()
    while (answer := watch.advance()) is None:
        poller = select.poll()
        for descriptor in watch.descriptors():
            poller.register(descriptor, select.POLLIN)
        poller.poll(50)
    return answer


def test_one_child_answers_every_question(fake, watch):
    driver = fake(fakes.plain(2))
    watching = watch(driver)

    assert [gpu.processes for gpu in ask(watching)] == [(), ()]
    (first,) = watching.pids
    driver.set({"gpu.1.processes": f"4242:{GIB}", "process.4242": "python", "gpu.1.memory_used": GIB})
    answer = ask(watching)

    assert [[process.pid for process in gpu.processes] for gpu in answer] == [[], [4242]]
    assert answer[1].memory_used == GIB
    assert watching.pids == (first,)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"gpu.1.error": 15}, "GPU is lost"),
        ({"count": 1}, f"GPU 1 ({fakes.uuid(1)}, {fakes.bus(1)}) has vanished from the driver's list"),
        ({"gpu.1.hang": "*"}, "the NVML probe gave no answer within"),
        ({"gpu.1.crash": "*"}, "the NVML probe was ended by SIGSEGV when asked about this GPU"),
    ],
)
def test_a_gpu_that_fails_meanwhile_is_named_and_the_other_answers(fake, watch, facts, words):
    driver = fake(fakes.plain(2))
    watching = watch(driver, stall_s=3.0)
    ask(watching)
    driver.set(facts)

    for _ in range(2):  # the second time it is known
        healthy, broken = ask(watching)
        assert healthy.fault == ""
        assert words in broken.fault
        assert broken.uuid == fakes.uuid(1)


def test_a_driver_that_is_gone_condemns_all(fake, watch):
    driver = fake(fakes.plain(2))
    watching = watch(driver)
    ask(watching)
    driver.set({"error.nvmlDeviceGetCount_v2": 999})

    assert [gpu.fault for gpu in ask(watching)] == ["Unknown Error"] * 2


def test_its_child_ends_with_it(fake, watch):
    watching = watch(fake(fakes.plain(1)))
    ask(watching)
    (pid,) = watching.pids
    watching.close()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
