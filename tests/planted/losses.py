"""Programs that do something wrong when a peer is killed, and pass all the same as long as nobody is: each with its breach.

Where a report is named, the program has what its author describes, never its code.
"""

import contextlib
import os
import queue
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from planted import breaks


def reduce(steps=1):
    total = torch.ones(2)
    for _ in range(steps):
        dist.all_reduce(total)
    return total


# --- the loss of a peer is not told


@breaks("silent", report="sql-machine-learning/elasticdl#2446")
def test_gives_up_after_some_retries_and_goes_on(world):
    total = torch.ones(2)
    for _ in range(3):
        with contextlib.suppress(RuntimeError):
            dist.all_reduce(total)
            break


@breaks("silent")
def test_metrics_are_only_metrics(world):
    try:
        reduce()
    except Exception as error:
        print("metrics are lost:", error)


@breaks("silent")
def test_looks_whether_a_handle_is_done_and_never_whether_it_failed(world):
    total = torch.ones(2)
    work = dist.all_reduce(total, async_op=True)
    while not work.is_completed():
        time.sleep(0.01)


@breaks("silent", report="facebookresearch/PyTorch-BigGraph#152")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_synchronises_dies_alone(world):
    thread = threading.Thread(target=reduce)
    thread.start()
    thread.join()


# --- somebody waits for ever


@breaks("hung", report="ai2cm/ace#1067")
def test_leaves_together_after_an_error(world):
    store = dist.distributed_c10d._get_default_store()
    try:
        reduce()
    finally:
        store.set(f"leaves{world.rank}", "")
        while not store.check([f"leaves{1 - world.rank}"]):
            time.sleep(0.01)


@breaks("hung", report="NVIDIA/TensorRT-LLM#16592")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_waits_for_a_thread_that_has_gone(world):
    results = queue.Queue()
    threading.Thread(target=lambda: results.put(reduce()), daemon=True).start()
    results.get()


@breaks("hung", report="sql-machine-learning/elasticdl#1883")
def test_tries_for_ever(world):
    while True:
        try:
            reduce()
        except RuntimeError:
            time.sleep(0.05)
        else:
            break


# --- another error than that of the loss


@breaks("handler", report="pytorch/torchtitan#1170")
def test_a_handler_uses_what_was_never_set(world):
    pending = None
    try:
        reduce()
    except RuntimeError:
        pending.wait()


@breaks("handler")
def test_a_handler_looks_up_a_rank_that_it_forgot(world):
    names = {}
    try:
        reduce()
    except RuntimeError:
        print(names[1 - world.rank])


@breaks("other-error")
def test_trains_on_with_what_was_not_reduced(world):
    total = torch.ones(2)
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(total)
    assert total.sum() == 4


@breaks("died", report="horovod/horovod#2484")
def test_a_watchdog_ends_the_process(world):
    try:
        reduce()
    except RuntimeError:
        os._exit(1)


@breaks("late", report="meta-pytorch/torchft#164")
@pytest.mark.chaos(within_s=0.5)
def test_a_lost_connection_waits_for_the_next_heartbeat(world):
    try:
        reduce()
    except RuntimeError:
        time.sleep(1.5)
        raise


# --- something is left behind


@breaks("left-behind", report="GaTech-RL2/EgoVerse#682")
def test_a_worker_outlives_its_rank(world):
    worker = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        reduce()
    finally:
        worker.kill()
        worker.wait()


@breaks("left-behind", report="RolnickLab/ami-data-companion#140")
def test_shared_memory_outlives_its_rank(world):
    place = Path(f"/dev/shm/planted-{os.getpid()}")
    with place.open("wb") as file:
        file.write(bytes(64))
        file.flush()
        dist.barrier()
        try:
            reduce()
        finally:
            place.unlink()


# --- recovers, to other numbers or not everywhere


class Job:
    """Some steps of descent with momentum. Both ranks have the same data, so that one can go on alone."""

    def __init__(self, record_property):
        self.record = record_property
        self.weight, self.velocity = torch.zeros(2), torch.zeros(2)
        self.position, self.alone = 0, False

    def batch(self):
        self.position += 1
        return torch.full((2,), float(self.position))

    def average(self, gradient):
        if not self.alone:
            dist.all_reduce(gradient)
            gradient /= 2
        return gradient

    def update(self, gradient):
        self.velocity = 0.5 * self.velocity + gradient
        self.weight = self.weight - 0.1 * self.velocity

    def step(self):
        self.update(self.average(self.batch()))

    def state(self):
        return self.weight, self.velocity, self.position

    def restore(self, state):
        self.weight, self.velocity, self.position = state

    def run(self, recover, steps=3):
        while self.position < steps:
            before = self.state()
            try:
                self.step()
            except RuntimeError:
                self.alone = True
                recover(self, before)
        self.record("weight", self.weight)


recovers = pytest.mark.chaos(recover=True)


@breaks("wrong-numbers", report="thinking-machines-lab/tinker-feedback#127")
@recovers
def test_recovers_without_its_optimizer(world, record_property):
    def recover(job, before):
        job.restore((before[0], torch.zeros(2), before[2]))

    Job(record_property).run(recover)


@breaks("wrong-numbers", report="PrimeIntellect-ai/prime-diloco#97")
@recovers
def test_recovers_with_the_next_batch(world, record_property):
    Job(record_property).run(lambda job, before: job.restore((*before[:2], before[2] + 1)))


@breaks("wrong-numbers", report="AI-Hypercomputer/maxtext#5260")
@recovers
def test_recovers_from_the_first_checkpoint_at_the_last_position(world, record_property):
    Job(record_property).run(lambda job, before: job.restore((torch.ones(2), before[1], before[2])))


@breaks("wrong-numbers", report="meta-pytorch/torchft#192")
@recovers
def test_adds_up_a_gradient_once_more(world, record_property):
    total = torch.zeros(2)
    alone = False
    for step in range(2):
        gradient = torch.full((2,), step + 1.0)
        while True:
            total += gradient
            try:
                reduced = total.clone()
                if not alone:
                    dist.all_reduce(reduced)
                    reduced /= 2
            except RuntimeError:
                alone = True
                continue
            break
    record_property("total", reduced)


@breaks("wrong-numbers")
@recovers
def test_still_divides_by_two(world, record_property):
    class Divides(Job):
        def average(self, gradient):
            if not self.alone:
                dist.all_reduce(gradient)
            return gradient / 2

    Divides(record_property).run(Job.restore)


@breaks("failed", report="vllm-project/vllm#44428")
@recovers
def test_only_steps_are_protected(world, record_property):
    Job(record_property).run(Job.restore, steps=1)
    dist.barrier()


@breaks("failed")
@recovers
def test_asks_the_lost_rank_once_more(world, record_property):
    job = Job(record_property)
    job.run(Job.restore, steps=2)
    if job.alone:
        dist.all_reduce(torch.ones(1))
