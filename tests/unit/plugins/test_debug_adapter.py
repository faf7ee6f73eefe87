"""What a debugger needs before a run begins."""

import importlib.util
import socket

import pytest

from disttest.errors import UsageError
from disttest.plugins.debuggers.debug_adapter import check_debugger


def test_without_debugpy_it_is_said_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match="pip install debugpy"):
        check_debugger(5678)


def test_a_port_in_use_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}.*in use"):
            check_debugger(port)
    check_debugger(port)
