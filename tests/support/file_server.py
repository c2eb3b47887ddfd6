"""File server on this machine, without TLS and with configurable faults."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import urllib3

from epbuild.recipe.address import WebAddress
from epbuild.transfer.http import HttpClient
from epbuild.transfer.objects import Timeouts
from epbuild.transfer.retry import RetryPolicy
from tests.support.http_servers import Quiet, answering


@dataclass
class File:
    """A file of the server and its behavior. Lists of behaviors have one entry for each request."""

    body: bytes
    etag: str | None = '"v1"'
    last_modified: str | None = None
    knows_ranges: bool = True
    cut_after: list[int] = field(default_factory=list)
    """For each request, the number of bytes of the answer after which the connection is cut."""
    answers: list[int] = field(default_factory=list)
    """For each request, a status that replaces the answer."""
    redirect: str | None = None
    before_body: Callable[[], None] | None = None


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("Range")


class FileServer:
    """Server of `files` by path that keeps its requests."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.files: dict[str, File] = {}
        self.requests: list[Request] = []

    def serve(self, path: str, file: File) -> WebAddress:
        self.files[path] = file
        return self.address(path)

    def address(self, path: str) -> WebAddress:
        return WebAddress(f"https://127.0.0.1:{self.port}{path}")


@contextmanager
def serving() -> Iterator[FileServer]:
    """Run a server while the block runs."""

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(Request(self.command, self.path, dict(self.headers.items())))
            file = server.files.get(self.path.partition("?")[0])
            if file is None:
                self.send_error(404)
            elif file.answers:
                self.send_error(file.answers.pop(0))
            elif file.redirect is not None:
                self.send_response(302)
                self.send_header("Location", file.redirect)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._send(file)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _send(self, file: File) -> None:
            if self.headers.get("If-Match", file.etag) != file.etag:
                self.send_error(412)
                return
            size = len(file.body)
            start, end = 0, size
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if wanted is not None and file.knows_ranges and self.headers.get("If-Range", file.etag) == file.etag is not None:
                start, end = int(wanted[1]), min(int(wanted[2] or size) + 1, size)
            if start and start >= size:
                self.send_error(416)
                return
            partly = wanted is not None and (start, end) != (0, size)
            self.send_response(206 if partly else 200)
            if partly:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("Content-Length", str(end - start))
            if file.etag is not None:
                self.send_header("ETag", file.etag)
            if file.last_modified is not None:
                self.send_header("Last-Modified", file.last_modified)
            self.end_headers()
            if self.command == "HEAD":
                return
            if file.before_body is not None:
                file.before_body()
            stop = min(start + file.cut_after.pop(0), end) if file.cut_after else end
            with suppress(OSError):  # a client that closed the connection early
                self.wfile.write(file.body[start:stop])

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = FileServer(httpd.server_address[1])
    with answering(httpd):
        yield server


AT_ONCE = RetryPolicy((0.0, 0.0, 0.0))
"""Retries without pauses."""


def client_without_tls(timeouts: Timeouts | None = None, cancelled: threading.Event | None = None) -> HttpClient:
    """Return a client without TLS and proxies, so that https:// reaches the server of these tests."""
    return HttpClient(
        connect=lambda _, host, port: urllib3.HTTPConnectionPool(host, port), timeouts=timeouts, cancelled=cancelled
    )
