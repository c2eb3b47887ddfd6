"""HTTP client: bodies of any size, safe redirects, TLS, proxies.

Built on urllib3; imported only where something is fetched or pushed. Connections are kept open; any number of threads may use one client.
Nothing is tried twice here: callers know what can be.
"""

from __future__ import annotations

import base64
import errno
import http.client
import select
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import unquote, urljoin, urlsplit

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError

from epbuild import __version__
from epbuild.core.digest import Write
from epbuild.core.errors import HttpCancelled
from epbuild.core.values import dataclass

TIMEOUT_SECONDS = 30.0
"""How long a server may send nothing."""

_CONNECTIONS = 64  # that are kept open to a server, where as many threads ask at once
_MOST_REDIRECTS = 10
_MOST_BYTES = 1024 * 1024
_POLL_SECONDS = 0.2

# A timeout is for all that is passed to the system at once, so this is little enough for slow lines.
_SEND_BYTES = 64 * 1024

_MAY_PASS = frozenset({408, 425, 429})
_NO_WAY = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT})
_TRUST = "Where a server or a proxy has a certificate of its own, name its authority in SSL_CERT_FILE."
_ODD = "Find out what answers at this address."


@dataclass(frozen=True)
class Timeouts:
    """How long a server may let a client wait, in seconds: until it takes a connection, begins to answer, and goes on with that."""

    connect: float = TIMEOUT_SECONDS
    answer: float = TIMEOUT_SECONDS
    idle: float = TIMEOUT_SECONDS
    uploaded: float = 300.0
    """To begin to answer after an upload: some registries copy it once more before."""
    pauses: tuple[float, ...] = (0.5, 2.0, 5.0)
    """How long a client waits before each new attempt at what may pass."""


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
class Body:
    """What is sent: its size in bytes, its media type, and what writes the bytes, from the start each time it is called."""

    size: int
    media_type: str
    give: Callable[[Write], object]
    is_secret: bool = False
    """Whether it is for no other server than the one that it is sent to."""


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
        self._connect = connect or _connect
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
        """Ask, and follow redirects where the method can be kept; `authorization` goes to no other server than that of `url`.

        Raises Unreachable, HttpCancelled, and what `body` raises.
        """
        response, url = self.open(method, url, headers=headers, authorization=authorization, body=body)
        with self.explained():
            data = response.read(_MOST_BYTES + 1, decode_content=False)
        if len(data) > _MOST_BYTES:  # the rest is of no use
            response.close()
        response.release_conn()
        return Answer(response.status, response.reason or "", response.headers, data[:_MOST_BYTES], url)

    def open(
        self, method: str, url: str, *, headers: Mapping[str, str], authorization: str | None = None, body: Body | None = None
    ) -> tuple[urllib3.BaseHTTPResponse, str]:
        """As `send`, but the answer's body is not read yet; and the address that answers."""
        home = origin(url)
        for _ in range(_MOST_REDIRECTS):
            secret = {"Authorization": authorization} if authorization and origin(url) == home else {}
            response = self._once(method, url, {**headers, **secret}, body)
            location = response.headers.get("Location")
            kept = (301, 302, 303, 307, 308) if method in ("GET", "HEAD") else (307, 308)
            if location is None or response.status not in kept:
                return response, url
            with self.explained():
                response.drain_conn()
            response.release_conn()
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
        except _GivingFailed as failure:
            raise failure.error from None

    def _pool(self, server: tuple[str, str, int]) -> urllib3.HTTPConnectionPool:
        with self._lock:
            if server not in self._pools:
                pool = self._connect(*server)
                known = {"cancelled": self.cancelled, "timeouts": self.timeouts}
                pool.ConnectionCls = type("Connection", (_Connection, pool.ConnectionCls), known)
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
            case TimeoutError():
                return Unreachable("it sent nothing for too long", may_pass=True, hung=True)
            case ConnectionRefusedError():
                return Unreachable("nothing listens there", f"{self._check[:-1]}, and that the server runs.", may_pass=True)
            case http.client.RemoteDisconnected():
                return Unreachable("the connection was cut", may_pass=True)
            case OSError():
                return Unreachable(error.strerror or str(error), may_pass=True, hung=error.errno in _NO_WAY)
            case _:
                hint = f"{self._check[:-1]}: what answers there may be another program."
                return Unreachable(f"its answer cannot be understood ({type(error).__name__})", hint, may_pass=True)


class _GivingFailed(Exception):
    """A body could not be given; no OSError, which would be taken for one of the line."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__()


class _LineCut(Exception):
    """The line was cut while a body was sent; no OSError, which would be taken for one of the disk."""

    def __init__(self, error: OSError) -> None:
        self.error = error
        super().__init__()


class _Connection(HTTPConnection):
    """A connection that sends a `Body`, and whose waiting ends with a cancellation."""

    cancelled: threading.Event
    timeouts: Timeouts
    uploaded = False

    def send(self, data: object) -> None:
        if not isinstance(data, Body):
            super().send(data)  # type: ignore[arg-type]
            return
        sent = 0

        def write(piece: memoryview) -> None:
            nonlocal sent
            view = memoryview(piece).cast("B")
            for start in range(0, len(view), _SEND_BYTES):
                if self.cancelled.is_set():
                    raise HttpCancelled
                try:
                    super(_Connection, self).send(view[start : start + _SEND_BYTES])
                except OSError as error:
                    raise _LineCut(error) from error
            sent += len(view)

        self.uploaded = True
        try:
            data.give(write)
        except _LineCut as cut:
            raise cut.error from None  # after which urllib3 reads what the server answered before it closed
        except (OSError, HTTPError, http.client.HTTPException) as error:
            raise _GivingFailed(error) from error
        if sent != data.size:
            raise ValueError(f"{sent} bytes were given of {data.size}")

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        if self.sock is not None:
            self._wait(self.sock, self.timeouts.uploaded if self.uploaded else self.timeouts.answer)
        self.uploaded = False
        return super().getresponse()

    def _wait(self, line: socket.socket, patience: float) -> None:
        """Until something can be read, but not beyond a cancellation."""
        deadline = time.monotonic() + patience
        while not (isinstance(line, ssl.SSLSocket) and line.pending()) and not _is_readable(line):
            if self.cancelled.is_set():
                raise HttpCancelled
            if time.monotonic() > deadline:
                raise TimeoutError


def _is_readable(line: socket.socket) -> bool:
    """Whether something can be read, or a moment has passed without."""
    if hasattr(select, "poll"):  # for one connection, a third of what a selector takes
        poll = select.poll()
        poll.register(line, select.POLLIN)
        return bool(poll.poll(_POLL_SECONDS * 1000))
    return bool(select.select([line], [], [], _POLL_SECONDS)[0])


def origin(url: str) -> tuple[str, str, int]:
    """The scheme, the host in small letters and the port that an address leads to. Raises ValueError for an invalid port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


def _connect(scheme: str, host: str, port: int) -> urllib3.HTTPConnectionPool:
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


def _cause(error: Exception) -> Exception:
    """What went wrong below urllib3."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError | http.client.HTTPException):
        inner = next((value for value in found.args if isinstance(value, Exception)), None)
        found = inner or found.__cause__ or found.__context__
    return found if isinstance(found, Exception) else error
