"""A debugger as VS Code is one: a client of the Debug Adapter Protocol, over a socket."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any


class DebugClient:
    """Connected to a process that waits for it; messages are dictionaries, as the protocol has them."""

    def __init__(self, port: int, limit_s: float = 480) -> None:
        """Connect as soon as somebody listens at that port of this machine and answers: not one that is just ending."""
        self._limit_s = limit_s
        deadline = time.monotonic() + limit_s
        while not self._connect(port):
            assert time.monotonic() < deadline, f"nobody listens at port {port}"
            time.sleep(0.05)

    def attach(self, breakpoints: dict[str, list[int]], exceptions: list[str]) -> None:
        """Have the process run on, to stop in these lines of these files, and at exceptions that these filters name."""
        attaching = self._send("attach", justMyCode=True)
        self.event("initialized")
        self._wait(lambda message: message.get("request_seq") == attaching)
        for path, lines in breakpoints.items():
            self.ask("setBreakpoints", source={"path": path}, breakpoints=[{"line": line} for line in lines])
        self.ask("setExceptionBreakpoints", filters=exceptions)
        self.ask("configurationDone")

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The body of the response to a request."""
        number = self._send(command, **arguments)
        response = self._wait(lambda message: message.get("request_seq") == number)
        assert response["success"], response
        return response.get("body") or {}

    def event(self, name: str) -> dict[str, Any]:
        """The body of the next event of this name."""
        return self._wait(lambda message: message.get("event") == name).get("body") or {}

    def stopped(self) -> tuple[int, dict[str, Any]]:
        """Wait until the process has stopped: the thread, and its top frame."""
        thread = self.event("stopped")["threadId"]
        return thread, self.ask("stackTrace", threadId=thread)["stackFrames"][0]

    def value(self, expression: str, frame: dict[str, Any]) -> str:
        """What an expression is in a frame."""
        return self.ask("evaluate", expression=expression, frameId=frame["id"], context="repl")["result"]

    def until_closed(self) -> None:
        """Wait until the process has ended."""
        with contextlib.suppress(ConnectionError):
            while self._reader.read(4096):
                pass
        self.close()

    def close(self) -> None:
        """Leave the process, which runs on."""
        self._reader.close()
        self._socket.close()

    def _connect(self, port: int) -> bool:
        self._seen: list[dict[str, Any]] = []
        self._asked = 0
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), timeout=self._limit_s)
            self._reader = self._socket.makefile("rb")
            self.ask("initialize", adapterID="debugpy", clientID="disttest", pathFormat="path")
        except ConnectionError:
            return False
        return True

    def _send(self, command: str, **arguments: Any) -> int:
        self._asked += 1
        request = {"seq": self._asked, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        return self._asked

    def _wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message that is wanted, of those that came while others were waited for or that are still to come."""
        while not (found := [message for message in self._seen if wanted(message)]):
            self._seen.append(self._read())
        self._seen.remove(found[0])
        return found[0]

    def _read(self) -> dict[str, Any]:
        length = 0
        while line := self._reader.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        if not length:
            raise ConnectionResetError("the process has closed the connection")
        return json.loads(self._reader.read(length))
