"""The quick capture of log records does what pytest's own does."""

from __future__ import annotations

import logging

import pytest
from _pytest.logging import LogCaptureHandler, catching_logs

from disttest.runtime.rank.log_capture import captured_loggers, forget_log_capture, speed_up_log_capture

pytestmark = pytest.mark.skipif(
    pytest.version_tuple < (9, 2), reason="which loggers do not propagate is no business of this pytest"
)


@pytest.fixture(params=["pytest's own", "ours"])
def capture(request, monkeypatch):
    for name in ("__enter__", "__exit__"):  # put back at the end, whatever is set meanwhile
        monkeypatch.setattr(catching_logs, name, getattr(catching_logs, name))
    if request.param == "ours":
        own = catching_logs.__enter__
        speed_up_log_capture()
        assert own is not catching_logs.__enter__
    return catching_logs


@pytest.fixture
def apart(monkeypatch):
    logger = logging.getLogger("disttest-apart")
    monkeypatch.setattr(logger, "propagate", False)
    return logger


def test_records_of_all_loggers_are_caught_once_and_no_handler_stays(capture, apart):
    before = [list(logger.handlers) for logger in (logging.root, apart)]

    with capture(LogCaptureHandler()) as handler, capture(handler):
        apart.warning("on its own")
        logging.getLogger("disttest-usual").warning("to the root")

    assert ["on its own", "to the root"] == [record.getMessage() for record in handler.records]
    assert before == [list(logger.handlers) for logger in (logging.root, apart)]


def test_the_level_holds_inside_only(capture):
    before = logging.root.level

    with capture(LogCaptureHandler(), level=logging.DEBUG) as handler:
        logging.getLogger("disttest-usual").debug("seen")

    assert (["seen"], before) == ([record.getMessage() for record in handler.records], logging.root.level)


def test_a_test_that_takes_handlers_off_does_no_harm(capture, apart):
    with capture(LogCaptureHandler()):
        apart.handlers.clear()
    assert [] == apart.handlers


def test_a_rank_of_a_hosted_test_forgets_what_its_main_process_has_attached_and_nothing_else(
    capture, apart, monkeypatch
):
    for logger in captured_loggers():  # this test's own are put back
        monkeypatch.setattr(logger, "handlers", list(logger.handlers))
    own = logging.NullHandler()
    apart.addHandler(own)
    with capture(LogCaptureHandler()) as handler:
        captured = captured_loggers()
        forget_log_capture(captured)

        assert {logging.root, apart} <= set(captured)
        assert [own] == apart.handlers
        assert handler not in logging.root.handlers
        assert not captured_loggers()
    apart.removeHandler(own)
