"""A service that a conftest starts, such as a database: the processes that it forks later survive the worlds."""

from __future__ import annotations

import pytest
from lab import Lab

from disttest.model import Outcome

SERVICE = """
    import os, signal, socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind("service")
        server.listen()
        print("up", flush=True)
        while True:
            client, _ = server.accept()
            if not (worker := os.fork()):
                signal.pause()
            client.sendall(str(worker).encode())
            client.close()
"""
STARTS_IT = """
    import subprocess, sys

    def pytest_configure(config):
        config.service = subprocess.Popen([sys.executable, "service.py"], stdout=subprocess.PIPE)
        config.service.stdout.readline()

    def pytest_unconfigure(config):
        config.service.kill()
"""
TESTS = """
    import os, signal, socket
    import psutil, pytest

    def ask():
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("service")
            return int(client.recv(64))

    @pytest.mark.world_size(2)
    def test_asks(world):
        if world.rank == 0:
            with open("worker", "w") as file:
                file.write(str(ask()))

    @pytest.mark.world_size(2)
    def test_loses_its_world(world):
        if os.environ.get("LOSES"):
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()

    def test_the_worker_lives():
        with open("worker") as file:
            worker = psutil.Process(int(file.read()))
        assert psutil.STATUS_SLEEPING == worker.status()
"""


# A rank may lose its world before the world has judged the test before.
@pytest.mark.parametrize("loses", ["", "1"], ids=["orderly", "lost-world"])
def test_what_a_service_forks_outlives_the_worlds(lab: Lab, loses: str) -> None:
    ended = lab.write(conftest=STARTS_IT, service=SERVICE, test_x=TESTS).run("test_x.py", LOSES=loses)

    assert (Outcome.ERROR if loses else Outcome.PASSED) is ended.result("test_loses_its_world").outcome
    assert Outcome.PASSED is ended.result("test_the_worker_lives").outcome, ended.output
