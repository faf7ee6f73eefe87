"""Forward connections: ``python forward.py FD HOST PORT``.

The listening socket FD comes from another network namespace than the one this runs in, so that clients there reach
what listens here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All of one direction; its end is passed on as one."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def connect(host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Both directions of one connection."""
    with contextlib.closing(writer), contextlib.suppress(OSError):
        there, to_there = await asyncio.open_connection(host, port)
        with contextlib.closing(to_there):
            await asyncio.gather(copy(reader, to_there), copy(there, writer))


async def main(fd: int, host: str, port: int) -> None:
    """Serve until killed."""
    server = await asyncio.start_server(
        lambda reader, writer: connect(host, port, reader, writer), sock=socket.socket(fileno=fd)
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
