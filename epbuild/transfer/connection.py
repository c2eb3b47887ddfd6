"""Connections of the HTTP client, with deadlines for answers."""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3
from msgspec import Struct
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError

from epbuild.core.digest import Write
from epbuild.core.errors import Cancelled
from epbuild.transfer.objects import SpeedMeter, Timeouts

_CONNECTIONS = 64  # maximum number kept open to one server
_POLL_SECONDS = 0.2

# A timeout covers all bytes that one call sends, so slow connections need small pieces.
_SEND_BYTES = 64 * 1024


class Body(Struct, frozen=True):
    """Body of a request. Each call of `send` writes all bytes of the body."""

    size: int
    media_type: str
    send: Callable[[Write], object]
    is_secret: bool = False
    """True if the body contains a secret, so that redirects to other servers are refused."""


class AnswerTimeoutError(TimeoutError):
    """Timeout because the server receives the request or sends the answer too slowly."""


class BodyError(Exception):
    """Failure to read the body of a request. It is not an OSError, since an OSError would count as a connection error."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__()


class _SendError(Exception):
    """Failure of the connection while a body is being sent. An OSError would count as a failure to read the body."""

    def __init__(self, error: OSError) -> None:
        self.error = error
        super().__init__()


class DeadlineConnection(HTTPConnection):
    """Connection that can send a `Body`, and limits how long an answer may take."""

    cancelled: threading.Event
    timeouts: Timeouts
    uploaded = False

    def send(self, data: object) -> None:
        if self.sock is not None:  # reading an answer sets a short timeout on the socket
            self.sock.settimeout(self.timeouts.idle)
        if not isinstance(data, Body):
            super().send(data)  # type: ignore[arg-type]
            return
        sent = 0
        meter = SpeedMeter(self.timeouts.speed)

        def write(piece: memoryview) -> None:
            nonlocal sent
            view = memoryview(piece).cast("B")
            for start in range(0, len(view), _SEND_BYTES):
                if self.cancelled.is_set():
                    raise Cancelled
                part = view[start : start + _SEND_BYTES]
                try:
                    with meter.waiting():
                        super(DeadlineConnection, self).send(part)
                    if not meter.is_fast_enough(len(part)):
                        raise AnswerTimeoutError
                except OSError as error:
                    raise _SendError(error) from error
            sent += len(view)

        self.uploaded = True
        try:
            data.send(write)
        except _SendError as cut:
            raise cut.error from None  # urllib3 then reads the answer that the server sent before it closed the connection
        except (OSError, HTTPError, http.client.HTTPException) as error:
            raise BodyError(error) from error
        if sent != data.size:
            raise ValueError(f"{sent} of {data.size} bytes were sent")

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        response = super().getresponse()
        response.line = self.line  # type: ignore[attr-defined]
        return response

    def response_class(self, sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        """Return the next response, from the server or a proxy. Reading the response has a deadline and can be cancelled."""
        self.line = AnswerReader(sock, self.cancelled, self.timeouts.uploaded if self.uploaded else self.timeouts.answer)
        self.uploaded = False
        return http.client.HTTPResponse(self.line, *args, **options)  # type: ignore[arg-type]


class AnswerReader(io.RawIOBase):
    """Receiving side of a socket. Reading fails when the client is cancelled, and at the deadline even if bytes still arrive."""

    def __init__(self, sock: socket.socket, cancelled: threading.Event, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open until the body is read
        self._cancelled = cancelled

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the file that `http.client` reads from a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._cancelled.is_set():
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise AnswerTimeoutError
            self._sock.settimeout(min(left, _POLL_SECONDS))
            with suppress(TimeoutError):
                return self._sock.recv_into(buffer)
        raise Cancelled

    def close(self) -> None:
        self._file.close()
        super().close()


def connect_to(scheme: str, host: str, port: int) -> urllib3.HTTPConnectionPool:
    """Return a pool of connections to a server. HTTPS uses the proxy that the environment names, if any."""
    if scheme == "http":
        return urllib3.HTTPConnectionPool(host, port, maxsize=_CONNECTIONS)
    context = ssl.create_default_context()
    proxy = None if urllib.request.proxy_bypass(f"{host}:{port}") else urllib.request.getproxies().get("https")
    if proxy is None:
        return urllib3.HTTPSConnectionPool(host, port, ssl_context=context, maxsize=_CONNECTIONS)
    parts = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    known = {}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        known["Proxy-Authorization"] = f"Basic {base64.b64encode(user.encode()).decode('ascii')}"
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    proxied = urllib3.ProxyManager(address, proxy_headers=known, ssl_context=context, maxsize=_CONNECTIONS)
    return proxied.connection_from_host(host, port, scheme)
