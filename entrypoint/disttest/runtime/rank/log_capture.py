"""Cheaper attachment of pytest's log handlers, for short tests.

In each phase pytest attaches two handlers to the root logger and to every logger that does not propagate, and detaches
them again, each under the lock of ``logging``: https://github.com/pytest-dev/pytest/pull/14375. torch has some forty
such loggers, so this takes a tenth of a warm test with one collective. In ranks the same handlers are attached without
the locks, since appending to a Python list is atomic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from _pytest.logging import catching_logs

_PLUGIN = catching_logs.__module__


def speed_up_log_capture() -> None:
    """Replace the attachment in this process; a pytest that uses only the root logger stays as it is."""
    # pytest before https://github.com/pytest-dev/pytest/pull/14375 uses only the root logger.
    if "attached_loggers" not in getattr(catching_logs, "__slots__", ()):
        return
    patched: Any = catching_logs
    patched.__enter__, patched.__exit__ = _enter, _exit


def captured_loggers() -> tuple[logging.Logger, ...]:
    """List the loggers that pytest listens to, before a fork.

    In the fork, a look at a thousand loggers would copy the memory page of each.
    """
    known = logging.root.manager.loggerDict.values()
    loggers = (logging.root, *(each for each in known if isinstance(each, logging.Logger)))
    return tuple(logger for logger in loggers if any(map(_is_pytests, logger.handlers)))


def forget_log_capture(loggers: Iterable[logging.Logger]) -> None:
    """Detach pytest's handlers in a rank of an adapted test class, whose records go to its log.

    No pytest runs in that process to detach them.
    """
    for logger in loggers:
        logger.handlers[:] = [each for each in logger.handlers if not _is_pytests(each)]


def _is_pytests(handler: logging.Handler) -> bool:
    return type(handler).__module__ == _PLUGIN


def _enter(self: Any) -> logging.Handler:
    root = logging.root
    handler: logging.Handler = self.handler
    loggers: list[logging.Logger] = [root]
    known = root.manager.loggerDict.values()
    loggers += [each for each in known if isinstance(each, logging.Logger) and not each.propagate]
    for logger in loggers:
        if handler not in logger.handlers:
            logger.handlers.append(handler)
    self.attached_loggers += loggers
    if self.level is not None:
        # As in pytest's own `catching_logs.__enter__`.
        handler.setLevel(self.level)
        self.orig_level = root.level
        root.setLevel(min(root.level, self.level))
    return handler


def _exit(self: Any, *_raised: object) -> None:
    if self.level is not None:
        logging.root.setLevel(self.orig_level)
    for logger in self.attached_loggers:
        if self.handler in logger.handlers:
            logger.handlers.remove(self.handler)
    self.attached_loggers.clear()
