"""What tests leave behind that keeps the pytest process: the run ends all the same, with the code of its tests."""

from __future__ import annotations

import pytest

FINE = """
    import concurrent.futures

    POOL = concurrent.futures.ThreadPoolExecutor()

    def test_leaves_an_idle_pool():
        POOL.submit(print).result()
"""
EXIT_BLOCKERS = {
    "thread": "threading.Thread(target=threading.Event().wait, name='listener').start()",
    "executor": "concurrent.futures.ThreadPoolExecutor(1, 'pool').submit(threading.Event().wait)",
    "process": "multiprocessing.get_context('fork').Process(target=threading.Event().wait, name='child').start()",
    "handler": "atexit.register(threading.Event().wait)",
    "deaf": "signal.signal(signal.SIGINT, signal.SIG_IGN), atexit.register(threading.Event().wait)",
}
SOURCE = """
    import atexit
    import concurrent.futures
    import multiprocessing
    import signal
    import threading

    def test_keeps():
        {}

    def test_last():
        assert {}
"""
NOTES = {
    "thread": "the thread listener (started by test_it.py::test_keeps) kept",
    "executor": "the thread pool_0 (started by test_it.py::test_keeps) kept",
    "process": "the process child (started by test_it.py::test_keeps) kept",
    "handler": "an exit handler that test_it.py::test_keeps registered kept",
    "deaf": "an exit handler that test_it.py::test_keeps registered kept",
}


@pytest.mark.parametrize("kind", EXIT_BLOCKERS)
def test_the_run_ends_and_names_what_kept_it(lab, kind):
    passes = kind in ("executor", "process")
    ended = lab.write(test_it=SOURCE.format(EXIT_BLOCKERS[kind], passes)).run("run", "test_it.py")

    assert int(not passes) == ended.exit_code, ended.output
    notes = ended.run.notes
    assert [True] == [note.startswith(NOTES[kind]) for note in notes], notes
    assert "the pytest process alive after all tests; disttest ended it after 5 s" in notes[0]


def test_a_pool_that_ends_by_itself_is_no_note(lab):
    ended = lab.write(test_it=FINE).run("run", "test_it.py")

    assert (0, []) == (ended.exit_code, list(ended.run.notes))
