"""HTTP servers of tests, which answer in a thread."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Quiet:
    """Part of a request handler that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the library gives it
        pass


@contextmanager
def answering(server: socketserver.BaseServer) -> Iterator[None]:
    """Answer requests until the block ends, and then close the server."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
