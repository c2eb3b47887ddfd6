"""Server that answers each request with bytes of a test's choice, at the test's speed."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.http_servers import answering

Answer = Callable[[], Iterator[bytes]]
"""Function that yields the pieces of one answer. It may never end."""

_DRIP_SECONDS = 0.02
_PIECE_BYTES = 64 * 1024


class RawServer:
    """Running server and its behavior."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.answer: Answer = lambda: iter(())
        self.headers: list[dict[str, str]] = []
        """Header of each request so far, with names in lower case."""
        self.closes = False
        """True if the server closes the connection after each answer."""
        self.reads_slowly = False
        self.stopped = threading.Event()

    def drip(self, data: bytes) -> Iterator[bytes]:
        """Yield single bytes, slowly."""
        for byte in data:
            if self.stopped.wait(_DRIP_SECONDS):
                return
            yield bytes([byte])


@contextmanager
def raw_server() -> Iterator[RawServer]:
    """Run a server until the block ends, even if its answers hang."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # the client may close first
                while self._read_request():
                    for piece in server.answer():
                        if server.stopped.is_set():
                            return
                        self.request.sendall(piece)
                    if server.closes:
                        return

        def _read_request(self) -> bool:
            header = {}
            while line := self.rfile.readline().decode("ascii").strip():
                name, _, value = line.partition(":")
                header[name.lower()] = value.strip()
            if not header:  # the client has closed the connection
                return False
            server.headers.append(header)
            left = int(header.get("content-length", 0))
            while left and (piece := self.rfile.read(min(left, _PIECE_BYTES))):
                left -= len(piece)
                if server.reads_slowly and server.stopped.wait(_DRIP_SECONDS):
                    return False
            return not left

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 64

    listening = Server(("127.0.0.1", 0), Handler)
    server = RawServer(listening.server_address[1])
    with answering(listening):
        try:
            yield server
        finally:
            server.stopped.set()
