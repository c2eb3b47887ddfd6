"""HTTP client for bodies of any size, with safe redirects, TLS and proxies.

The client is based on urllib3. This module is imported only for fetching or pushing. Connections are kept open, and any number of threads
may use one client. The client does not retry: callers use a `RetryPolicy`.
"""

from __future__ import annotations

import errno
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urljoin, urlsplit

import urllib3
from msgspec import Struct
from urllib3.exceptions import HTTPError

from epbuild import __version__
from epbuild.core.errors import Cancelled
from epbuild.transfer.connection import AnswerReader, AnswerTimeoutError, Body, BodyError, DeadlineConnection, connect_to
from epbuild.transfer.objects import FailureKind, Timeouts, TransferError

_MAX_REDIRECTS = 10
_MAX_BYTES = 1024 * 1024
_SIZE = re.compile(r"[0-9]{1,18}")
"""Pattern of a size of at most 18 digits, so that the size fits into a signed 64-bit integer."""

_TRANSIENT = frozenset({408, 425, 429})
_NO_ROUTE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT})
_TRUST = "If a server or a proxy uses a private certificate authority, set SSL_CERT_FILE to its certificate."
_CHECK_SERVER = "Check which program answers at this address."

Connect = Callable[[str, str, int], urllib3.HTTPConnectionPool]
"""Function that opens the connection pool for a scheme, a host and a port."""


class Answer(Struct, frozen=True):
    """Complete answer of a server. `url` is the address that answered, after redirects."""

    status: int
    reason: str
    headers: urllib3.HTTPHeaderDict
    data: bytes
    url: str


def is_transient(status: int) -> bool:
    """Return whether a retry may succeed after this status."""
    return status >= 500 or status in _TRANSIENT


def parse_retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds to wait according to the `Retry-After` header, or 0 if the header is missing or invalid."""
    try:
        return urllib3.Retry().parse_retry_after(headers.get("Retry-After", "0"))
    except (HTTPError, ValueError, OverflowError):
        return 0.0


class HttpClient:
    """HTTP client that keeps connections open.

    Redirects to plain HTTP are allowed only to the hosts in `local`, which are names of this machine.

    If `upgrades` is set, a redirect from HTTPS to plain HTTP on the same host is followed over HTTPS instead. `address_hint` is the
    hint for errors that a wrong address may cause.
    """

    def __init__(
        self,
        *,
        local: Collection[str] = (),
        upgrades: bool = False,
        address_hint: str = "Check the address.",
        cancelled: threading.Event | None = None,
        connect: Connect | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.cancelled = cancelled or threading.Event()
        self.timeouts = timeouts or Timeouts()
        self._lock = threading.Lock()
        self._local = local
        self._upgrades = upgrades
        self._address_hint = address_hint
        self._connect = connect or connect_to
        self._pools: dict[tuple[str, str, int], urllib3.HTTPConnectionPool] = {}

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], authorization: str | None = None, body: Body | None = None
    ) -> Answer:
        """Send a request, follow redirects that keep the method, and return the answer with up to 1 MiB of its body.

        `authorization` is sent only to the server of `url`. Raises TransferError, Cancelled, and errors of `body`.
        """
        return self.open(method, url, headers=headers, authorization=authorization, body=body).finish()

    def open(
        self, method: str, url: str, *, headers: Mapping[str, str], authorization: str | None = None, body: Body | None = None
    ) -> Response:
        """Send a request as `send` does, and return the response before its body is read."""
        first_origin = get_origin(url)
        # For other methods, the other redirects would change the method to GET.
        redirects = (301, 302, 303, 307, 308) if method in ("GET", "HEAD") else (307, 308)
        for _ in range(_MAX_REDIRECTS):
            secret = {"Authorization": authorization} if authorization and get_origin(url) == first_origin else {}
            response = Response(self._send_once(method, url, {**headers, **secret}, body), url, self)
            location = response.headers.get("Location")
            if location is None or response.status not in redirects:
                return response
            response.finish()
            url = self.resolve(url, location)
            if body is not None and body.is_secret and get_origin(url) != first_origin:
                message = "the server redirects to another host, but the request carries credentials"
                raise TransferError(message, _CHECK_SERVER, "denied")
        raise TransferError("the server redirects in a loop", self._address_hint, "denied")

    def resolve(self, url: str, location: str) -> str:
        """Return the address of a redirect from `url` to `location`. Raises TransferError if the address is invalid or unsafe."""
        try:
            address = urljoin(url, location)
            scheme, host, _ = get_origin(address)
            is_printable = address.isascii() and address.isprintable() and " " not in address
        except ValueError:
            scheme, host, is_printable = "", "", False
        if not is_printable or not host or scheme not in ("http", "https"):
            raise TransferError("the server redirects to an invalid address", _CHECK_SERVER, "denied")
        if scheme == "http" and self._upgrades and get_origin(url)[:2] == ("https", host):
            # A server behind a TLS-terminating proxy does not know that clients use TLS.
            return urlsplit(address)._replace(scheme="https", netloc=urlsplit(url).netloc).geturl()
        if scheme == "http" and host not in self._local:
            raise TransferError(f"the server redirects to {host} over plain HTTP", _CHECK_SERVER, "denied")
        return address

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise TransferError instead of a connection error in the `with` block."""
        try:
            yield
        except (HTTPError, OSError, http.client.HTTPException) as error:
            raise self._make_transfer_error(_find_cause(error)) from error

    def _send_once(self, method: str, url: str, headers: Mapping[str, str], body: Body | None) -> urllib3.BaseHTTPResponse:
        if self.cancelled.is_set():
            raise Cancelled
        sent = {"User-Agent": f"epbuild/{__version__}", **headers}
        if body is not None:
            sent |= {"Content-Type": body.media_type, "Content-Length": str(body.size)}
        try:
            with self.translate_errors():
                return self._get_pool(get_origin(url)).urlopen(
                    method,
                    _build_target(url),
                    body=None if body is None else [body],  # type: ignore[list-item] # for `_Connection.send`
                    headers=sent,
                    retries=False,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                    enforce_content_length=False,
                )
        except BodyError as failure:
            raise failure.error from None

    def _get_pool(self, server: tuple[str, str, int]) -> urllib3.HTTPConnectionPool:
        with self._lock:
            if server not in self._pools:
                pool = self._connect(*server)
                attributes = {"cancelled": self.cancelled, "timeouts": self.timeouts}
                pool.ConnectionCls = type("Connection", (DeadlineConnection, pool.ConnectionCls), attributes)
                pool.timeout = urllib3.Timeout(connect=self.timeouts.connect, read=self.timeouts.idle)
                self._pools[server] = pool
            return self._pools[server]

    def _make_transfer_error(self, error: Exception) -> TransferError:
        match error:
            case ssl.SSLCertVerificationError():
                return TransferError(f"the server's certificate is not valid: {error.verify_message}", _TRUST, "denied")
            case (
                ssl.SSLEOFError()
                | ssl.SSLZeroReturnError()
                | ConnectionResetError()
                | ConnectionAbortedError()
                | BrokenPipeError()
            ):
                return TransferError("the connection was closed unexpectedly")
            case ssl.SSLError():
                name = (error.reason or "TLS failed").replace("_", " ").lower()
                hint = "Use a server with TLS. Only localhost, 127.0.0.1 and [::1] may be used without TLS."
                return TransferError(f"the TLS handshake failed ({name})", hint, "denied")
            case socket.gaierror():
                reason = f"the host name cannot be resolved ({error.strerror})"
                kind: FailureKind = "transient" if error.errno == socket.EAI_AGAIN else "denied"
                return TransferError(reason, self._address_hint, kind)
            case AnswerTimeoutError():
                return TransferError("the server took too long to respond", kind="timeout")
            case TimeoutError():
                return TransferError("the server sent no data for too long", kind="timeout")
            case ConnectionRefusedError():
                hint = f"{self._address_hint[:-1]}, and check that the server is running."
                return TransferError("no server listens at this address", hint)
            case OSError():
                return TransferError(error.strerror or str(error), kind="timeout" if error.errno in _NO_ROUTE else "transient")
            case _:
                return self.make_malformed_error(type(error).__name__)

    def make_malformed_error(self, what: str) -> TransferError:
        """Return the error for an answer that violates the protocol. `what` names the invalid part."""
        hint = f"{self._address_hint[:-1]}: another program may answer there."
        return TransferError(f"the server's response is invalid ({what})", hint)


class Response:
    """Response whose body has not been read yet. Callers read it with `read1`, and end it with `finish`, `release` or `close`.

    `url` is the address that answered, after redirects. Methods raise TransferError and Cancelled.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str, client: HttpClient) -> None:
        self.status = response.status
        self.reason = response.reason or ""
        self.headers = response.headers
        self.url = url
        self._response = response
        self._client = client

    @property
    def size(self) -> int | None:
        """Size of the body in bytes, or None if the header does not contain it."""
        length = self.headers.get("Content-Length")
        if length is None:
            return None
        if not _SIZE.fullmatch(length):
            self.close()
            raise self._client.make_malformed_error("Content-Length")
        return int(length)

    def read1(self, size: int) -> bytes:
        """Return the next bytes of the body, at most `size`, as soon as some have arrived. Return no bytes at the end of the body."""
        line: AnswerReader = self._response.line  # type: ignore[attr-defined] # set by `DeadlineConnection`
        line.deadline = time.monotonic() + self._client.timeouts.idle
        with self._client.translate_errors():
            return self._response.read1(size, decode_content=False)

    def finish(self) -> Answer:
        """Read the rest of the body, up to 1 MiB, free the connection, and return the answer.

        The deadline for the header also covers the body.
        """
        with self._client.translate_errors():
            data = self._response.read(_MAX_BYTES + 1, decode_content=False)
        if len(data) > _MAX_BYTES:  # the rest of the body is not needed
            self._response.close()
        self._response.release_conn()
        return Answer(self.status, self.reason, self.headers, data[:_MAX_BYTES], self.url)

    def release(self) -> None:
        """Free the connection for reuse. The whole body must have been read."""
        self._response.release_conn()

    def close(self) -> None:
        """Close the connection without reading the body."""
        self._response.close()
        self._response.release_conn()


def get_origin(url: str) -> tuple[str, str, int]:
    """Return the scheme, the lowercase host and the port of a URL. Raises ValueError for an invalid port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


def _build_target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


def _find_cause(error: Exception) -> Exception:
    """Return the OSError or http.client error that urllib3 wrapped, or else `error` itself."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError | http.client.HTTPException):
        inner = next((value for value in cause.args if isinstance(value, Exception)), None)
        cause = inner or cause.__cause__ or cause.__context__
    return cause if isinstance(cause, Exception) else error
