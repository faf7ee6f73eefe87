"""A launcher of the suite's own: a test with the mark ``world_size`` runs in that many forked ranks."""

import multiprocessing
import tempfile

import torch.distributed as dist


def pytest_configure(config):
    config.addinivalue_line("markers", "world_size(n): start the test in n ranks")


def be_a_rank(rank, size, file, test):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    test()


def pytest_pyfunc_call(pyfuncitem):
    mark = pyfuncitem.get_closest_marker("world_size")
    if mark is None:
        return None
    file = f"{tempfile.mkdtemp()}/store"
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=be_a_rank, args=(rank, mark.args[0], file, pyfuncitem.obj))
        for rank in range(mark.args[0])
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0] * len(ranks)
    return True
