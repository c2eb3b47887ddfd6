"""HTTP client: bodies of any size, safe redirects, TLS, proxies.

Built on urllib3; imported only where something is fetched or pushed. Connections are kept open; any number of threads may use one client.
Nothing is tried twice here: callers know what can be.
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
from urllib3.exceptions import HTTPError

from epbuild import __version__
from epbuild.core.connection import AnswerReader, AnswerTimeoutError, Body, BodyError, DeadlineConnection, Timeouts, connect_to
from epbuild.core.errors import HttpCancelled
from epbuild.core.values import dataclass

_MOST_REDIRECTS = 10
_MOST_BYTES = 1024 * 1024
_SIZE = re.compile(r"[0-9]{1,18}")
"""A size that every file system can hold."""

_MAY_PASS = frozenset({408, 425, 429})
_NO_WAY = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT})
_TRUST = "Where a server or a proxy has a certificate of its own, name its authority in SSL_CERT_FILE."
_ODD = "Find out what answers at this address."

Connect = Callable[[str, str, int], urllib3.HTTPConnectionPool]
"""Makes the connections to a scheme, a host and a port."""


class Unreachable(Exception):
    """A server could not be reached, or broke off; `may_pass` when trying again makes sense, `pause` the seconds that it asks for.

    `hung`: it took a long time to find that out.
    """

    def __init__(
        self,
        reason: str,
        hint: str = "Check the network, then run again.",
        *,
        may_pass: bool,
        pause: float = 0,
        hung: bool = False,
    ) -> None:
        self.hint = hint
        self.may_pass = may_pass
        self.pause = pause
        self.hung = hung
        super().__init__(reason)


@dataclass(frozen=True)
class Answer:
    """What a server answered; `url` is the address that did, after redirects."""

    status: int
    reason: str
    headers: urllib3.HTTPHeaderDict
    data: bytes
    url: str

    @property
    def may_pass(self) -> bool:
        """Whether the server was not able to answer for now."""
        return may_pass(self.status)


def may_pass(status: int) -> bool:
    """Whether a status is of a server that is not able to answer for now."""
    return status >= 500 or status in _MAY_PASS


def asked_pause(headers: Mapping[str, str]) -> float:
    """The seconds to wait that a server asks for in `Retry-After`; 0 where it asks for none, or for neither a number nor a date."""
    try:
        return urllib3.Retry().parse_retry_after(headers.get("Retry-After", "0"))
    except (HTTPError, ValueError, OverflowError):
        return 0.0


class HttpClient:
    """The connections of one transfer. `local` are names of this machine, which alone may be spoken to without TLS.

    `upgrades`: a redirect to the same host without TLS is followed with it. `check` is the advice where a host cannot be found.
    """

    def __init__(
        self,
        *,
        local: Collection[str] = (),
        upgrades: bool = False,
        check: str = "Check the address.",
        cancelled: threading.Event | None = None,
        connect: Connect | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.cancelled = cancelled or threading.Event()
        self.timeouts = timeouts or Timeouts()
        self._lock = threading.Lock()
        self._local = local
        self._upgrades = upgrades
        self._check = check
        self._connect = connect or connect_to
        self._pools: dict[tuple[str, str, int], urllib3.HTTPConnectionPool] = {}

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def pause(self, seconds: float) -> None:
        """Raises HttpCancelled."""
        if self.cancelled.wait(seconds):
            raise HttpCancelled

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], authorization: str | None = None, body: Body | None = None
    ) -> Answer:
        """Send a request, follow redirects that keep the method, and return the answer with its body, up to 1 MiB.

        Only the server of `url` gets `authorization`. Raises Unreachable, HttpCancelled, and what `body` raises.
        """
        return self.open(method, url, headers=headers, authorization=authorization, body=body).finish()

    def open(
        self, method: str, url: str, *, headers: Mapping[str, str], authorization: str | None = None, body: Body | None = None
    ) -> Response:
        """Send a request as `send` does, and return the answer before its body is read."""
        home = origin(url)
        for _ in range(_MOST_REDIRECTS):
            secret = {"Authorization": authorization} if authorization and origin(url) == home else {}
            response = Response(self._once(method, url, {**headers, **secret}, body), url, self)
            location = response.headers.get("Location")
            kept = (301, 302, 303, 307, 308) if method in ("GET", "HEAD") else (307, 308)
            if location is None or response.status not in kept:
                return response
            response.finish()
            url = self.resolved(url, location)
            if body is not None and body.is_secret and origin(url) != home:
                raise Unreachable("it sends elsewhere with a secret", _ODD, may_pass=False)
        raise Unreachable("it redirects in a circle", self._check, may_pass=False)

    def resolved(self, url: str, location: str) -> str:
        """The address that `location` is, as an answer from `url`. Raises Unreachable where it is none, or not as safe as `url`."""
        try:
            found = urljoin(url, location)
            scheme, host, _ = origin(found)
            printable = found.isascii() and found.isprintable() and " " not in found
        except ValueError:
            scheme, host, printable = "", "", False
        if not printable or not host or scheme not in ("http", "https"):
            raise Unreachable("it sends elsewhere, to an invalid address", _ODD, may_pass=False)
        if scheme == "http" and self._upgrades and origin(url)[:2] == ("https", host):
            # Servers behind a proxy that ends TLS do not know that they are spoken to with it.
            return urlsplit(found)._replace(scheme="https", netloc=urlsplit(url).netloc).geturl()
        if scheme == "http" and host not in self._local:
            raise Unreachable(f"it sends elsewhere without TLS, to {host}", _ODD, may_pass=False)
        return found

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise Unreachable for what goes wrong on the line."""
        try:
            yield
        except (HTTPError, OSError, http.client.HTTPException) as error:
            raise self._failure(_cause(error)) from error

    def _once(self, method: str, url: str, headers: Mapping[str, str], body: Body | None) -> urllib3.BaseHTTPResponse:
        if self.cancelled.is_set():
            raise HttpCancelled
        sent = {"User-Agent": f"epbuild/{__version__}", **headers}
        if body is not None:
            sent |= {"Content-Type": body.media_type, "Content-Length": str(body.size)}
        try:
            with self.explained():
                return self._pool(origin(url)).urlopen(
                    method,
                    _target(url),
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

    def _pool(self, server: tuple[str, str, int]) -> urllib3.HTTPConnectionPool:
        with self._lock:
            if server not in self._pools:
                pool = self._connect(*server)
                known = {"cancelled": self.cancelled, "timeouts": self.timeouts}
                pool.ConnectionCls = type("Connection", (DeadlineConnection, pool.ConnectionCls), known)
                pool.timeout = urllib3.Timeout(connect=self.timeouts.connect, read=self.timeouts.idle)
                self._pools[server] = pool
            return self._pools[server]

    def _failure(self, error: Exception) -> Unreachable:
        match error:
            case ssl.SSLCertVerificationError():
                return Unreachable(f"its certificate does not hold: {error.verify_message}", _TRUST, may_pass=False)
            case (
                ssl.SSLEOFError()
                | ssl.SSLZeroReturnError()
                | ConnectionResetError()
                | ConnectionAbortedError()
                | BrokenPipeError()
            ):
                return Unreachable("the connection was cut", may_pass=True)
            case ssl.SSLError():
                name = (error.reason or "TLS failed").replace("_", " ").lower()
                hint = "It has to speak TLS: only localhost, 127.0.0.1 or [::1] is spoken to without it."
                return Unreachable(f"no TLS connection comes about ({name})", hint, may_pass=False)
            case socket.gaierror():
                reason = f"the name of its host cannot be resolved ({error.strerror})"
                return Unreachable(reason, self._check, may_pass=error.errno == socket.EAI_AGAIN)
            case AnswerTimeoutError():
                return Unreachable("it takes too long to answer", may_pass=True, hung=True)
            case TimeoutError():
                return Unreachable("it sent nothing for too long", may_pass=True, hung=True)
            case ConnectionRefusedError():
                return Unreachable("nothing listens there", f"{self._check[:-1]}, and that the server runs.", may_pass=True)
            case http.client.RemoteDisconnected():
                return Unreachable("the connection was cut", may_pass=True)
            case OSError():
                return Unreachable(error.strerror or str(error), may_pass=True, hung=error.errno in _NO_WAY)
            case _:
                return self.malformed(type(error).__name__)

    def malformed(self, what: str) -> Unreachable:
        """Return the failure for an answer of which `what` breaks the protocol."""
        hint = f"{self._check[:-1]}: what answers there may be another program."
        return Unreachable(f"its answer cannot be understood ({what})", hint, may_pass=True)


class Response:
    """An answer whose body has not been read yet. Read it with `read1`, or end it with `finish` or `close`.

    `url` is the address that answered, after redirects. Each method raises Unreachable and HttpCancelled.
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
        """Size of the body in bytes, if the header has it."""
        length = self.headers.get("Content-Length")
        if length is None:
            return None
        if not _SIZE.fullmatch(length):
            self.close()
            raise self._client.malformed("Content-Length")
        return int(length)

    def read1(self, size: int) -> bytes:
        """Return the next bytes of the body, at most `size`, as soon as there are any; none at its end."""
        line: AnswerReader = self._response.line  # type: ignore[attr-defined] # set by `DeadlineConnection`
        line.deadline = time.monotonic() + self._client.timeouts.idle
        with self._client.explained():
            return self._response.read1(size, decode_content=False)

    def finish(self) -> Answer:
        """Read the rest of the body, up to 1 MiB, and free the connection. The time limit is that of the header."""
        with self._client.explained():
            data = self._response.read(_MOST_BYTES + 1, decode_content=False)
        if len(data) > _MOST_BYTES:  # the rest is of no use
            self._response.close()
        self._response.release_conn()
        return Answer(self.status, self.reason, self.headers, data[:_MOST_BYTES], self.url)

    def release(self) -> None:
        """Free the connection after the whole body was read."""
        self._response.release_conn()

    def close(self) -> None:
        """Close the connection, whose body is not needed."""
        self._response.close()
        self._response.release_conn()


def origin(url: str) -> tuple[str, str, int]:
    """The scheme, the host in small letters and the port that an address leads to. Raises ValueError for an invalid port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


def _cause(error: Exception) -> Exception:
    """What went wrong below urllib3."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError | http.client.HTTPException):
        inner = next((value for value in found.args if isinstance(value, Exception)), None)
        found = inner or found.__cause__ or found.__context__
    return found if isinstance(found, Exception) else error
