"""HTTP as a push needs it: bodies of any size in constant memory, redirects that take no secret along, TLS but for this machine.

One connection to each server is kept open. Nothing is tried twice here: who asks knows what can be.
"""

from __future__ import annotations

import base64
import http.client
import selectors
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote, urljoin, urlsplit

from epbuild import __version__
from epbuild.archive.artifact import Write
from epbuild.recipe.image_reference import LOOPBACK

TIMEOUT_SECONDS = 30.0
"""How long a server may be silent."""

_PATIENCE_SECONDS = 300.0  # after a large upload: some registries copy it once more before they answer
_MOST_REDIRECTS = 5
_MOST_BYTES = 1024 * 1024
_POLL_SECONDS = 0.2

# A timeout is for all that is handed over at once, so this is little enough for slow lines.
_SEND_BYTES = 64 * 1024

_LOCAL_NAMES = frozenset(host.strip("[]") for host in LOOPBACK)
_TRUST = "Where a registry or a proxy has a certificate of its own, name its authority in SSL_CERT_FILE."


class PushCancelled(Exception):
    """The push was given up because its `cancelled` event was set; nothing failed."""


class Unreachable(Exception):
    """A server could not be reached, or broke off; `may_pass` when trying again makes sense, `pause` the seconds that it asks for."""

    def __init__(
        self, reason: str, hint: str = "Check the network, then run again.", *, may_pass: bool, pause: float = 0
    ) -> None:
        self.hint = hint
        self.may_pass = may_pass
        self.pause = pause
        super().__init__(reason)


@dataclass(frozen=True)
class Body:
    """What is sent: its size in bytes, its media type, and what gives the bytes to a `Write`, from the start each time it is called."""

    size: int
    media_type: str
    give: Callable[[Write], object]
    is_secret: bool = False
    """Whether it is for nobody but the server that it is sent to."""


@dataclass(frozen=True)
class Answer:
    """What a server answered; `url` is the address that did, after redirects."""

    status: int
    reason: str
    headers: http.client.HTTPMessage
    data: bytes
    url: str


class _Cut(Exception):
    """The line was cut while a body was sent. No OSError, so that whoever gives the bytes does not take it for the disk's."""


class Exchange:
    """The connections of one push. `local`: the registry is on this machine, and it alone may be spoken to without TLS."""

    def __init__(self, *, local: bool, cancelled: threading.Event | None = None) -> None:
        self._local = local
        self._cancelled = cancelled or threading.Event()
        self._connections: dict[tuple[str, str, int], http.client.HTTPConnection] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def pause(self, seconds: float) -> None:
        """Raises PushCancelled."""
        if self._cancelled.wait(seconds):
            raise PushCancelled

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], authorization: str | None = None, body: Body | None = None
    ) -> Answer:
        """Ask, and follow redirects where the method can be kept; `authorization` goes to no other server than that of `url`.

        Raises Unreachable, PushCancelled, and what `body` raises.
        """
        home = origin(url)
        for _ in range(_MOST_REDIRECTS):
            secret = {"Authorization": authorization} if authorization and origin(url) == home else {}
            answer = self._once(method, url, {**headers, **secret}, body)
            location = answer.headers.get("Location")
            kept = (301, 302, 303, 307, 308) if method in ("GET", "HEAD") else (307, 308)
            if location is None or answer.status not in kept:
                return answer
            url = self.resolved(url, location)
            if body is not None and body.is_secret and origin(url) != home:
                raise Unreachable("it sends elsewhere with a secret", "Ask whoever runs the registry.", may_pass=False)
        raise Unreachable("it redirects in a circle", "Check the reference.", may_pass=False)

    def resolved(self, url: str, location: str) -> str:
        """The address that `location` is for who asked `url`. Raises Unreachable where it is none, or not as safe as `url`."""
        try:
            found = urljoin(url, location)
            scheme, host, _ = origin(found)
            printable = found.isascii() and found.isprintable() and " " not in found
        except ValueError:
            scheme, host, printable = "", "", False
        if not printable or not host or scheme not in ("http", "https"):
            raise Unreachable("it sends elsewhere, to what is no address", "Ask whoever runs the registry.", may_pass=False)
        if scheme == "http" and origin(url)[0] == "https" and host == origin(url)[1]:
            # Registries behind a proxy that ends TLS do not know that they are spoken to with it.
            return urlsplit(found)._replace(scheme="https", netloc=urlsplit(url).netloc).geturl()
        if scheme == "http" and not (self._local and host in _LOCAL_NAMES):
            raise Unreachable(f"it sends elsewhere without TLS, to {host}", "Ask whoever runs the registry.", may_pass=False)
        return found

    def _once(self, method: str, url: str, headers: Mapping[str, str], body: Body | None) -> Answer:
        if self._cancelled.is_set():
            raise PushCancelled
        connection = self._connection(origin(url))
        try:
            with _explained():
                connection.putrequest(method, _target(url), skip_accept_encoding=True)
                for name, value in {"User-Agent": f"epbuild/{__version__}", **headers}.items():
                    connection.putheader(name, value)
                if body is not None:
                    connection.putheader("Content-Type", body.media_type)
                if method not in ("GET", "HEAD"):
                    connection.putheader("Content-Length", str(body.size if body is not None else 0))
                connection.endheaders()
            if body is not None:
                self._give(body, connection)
            with _explained():
                return self._answer(connection, url, _PATIENCE_SECONDS if body is not None else TIMEOUT_SECONDS)
        except BaseException:
            connection.close()
            raise

    def _give(self, body: Body, connection: http.client.HTTPConnection) -> None:
        sent = 0

        def write(data: memoryview) -> None:
            nonlocal sent
            view = memoryview(data).cast("B")
            for start in range(0, len(view), _SEND_BYTES):
                if self._cancelled.is_set():
                    raise PushCancelled
                try:
                    connection.send(view[start : start + _SEND_BYTES])
                except OSError as error:
                    raise _Cut from error
            sent += len(view)

        try:
            body.give(write)
        except _Cut as cut:
            if isinstance(cut.__cause__, ConnectionError):
                return  # it may have said why before it closed
            with _explained():
                raise cut.__cause__ or cut from cut
        if sent != body.size:
            raise ValueError(f"{sent} bytes were given of {body.size}")

    def _answer(self, connection: http.client.HTTPConnection, url: str, patience: float) -> Answer:
        self._wait_for(connection.sock, patience)
        response = connection.getresponse()
        data = response.read(_MOST_BYTES)
        if not response.isclosed():  # the rest is of no use
            connection.close()
        return Answer(response.status, response.reason, response.headers, data, url)

    def _wait_for(self, line: socket.socket, patience: float) -> None:
        """Until something can be read, but not beyond a cancellation."""
        line.settimeout(patience)
        deadline = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            selector.register(line, selectors.EVENT_READ)
            while not (isinstance(line, ssl.SSLSocket) and line.pending()) and not selector.select(_POLL_SECONDS):
                if self._cancelled.is_set():
                    raise PushCancelled
                if time.monotonic() > deadline:
                    raise TimeoutError
        line.settimeout(TIMEOUT_SECONDS)

    def _connection(self, server: tuple[str, str, int]) -> http.client.HTTPConnection:
        if server not in self._connections:
            self._connections[server] = _connect(*server)
        return self._connections[server]


def origin(url: str) -> tuple[str, str, int]:
    """The scheme, the host in small letters and the port that an address leads to. Raises ValueError where it has no proper port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


def _connect(scheme: str, host: str, port: int) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    context = ssl.create_default_context()
    proxy = None if urllib.request.proxy_bypass(f"{host}:{port}") else urllib.request.getproxies().get("https")
    if proxy is None:
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)
    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    connection = http.client.HTTPSConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT_SECONDS, context=context)
    headers = {}
    if parts.username is not None:
        known = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(known.encode()).decode('ascii')}"
    connection.set_tunnel(host, port, headers)
    return connection


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise _failure(error) from error


def _failure(error: OSError | http.client.HTTPException) -> Unreachable:
    match error:
        case ssl.SSLCertVerificationError():
            return Unreachable(f"its certificate does not hold: {error.verify_message}", _TRUST, may_pass=False)
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError():
            return Unreachable("the connection was cut", may_pass=True)
        case ssl.SSLError():
            name = (error.reason or "TLS failed").replace("_", " ").lower()
            hint = "It has to speak TLS: only a registry on localhost, 127.0.0.1 or [::1] is spoken to without it."
            return Unreachable(f"no TLS connection comes about ({name})", hint, may_pass=False)
        case socket.gaierror():
            reason = f"the name of its host cannot be resolved ({error.strerror})"
            return Unreachable(reason, "Check the reference.", may_pass=error.errno == socket.EAI_AGAIN)
        case TimeoutError():
            return Unreachable("it was silent for too long", may_pass=True)
        case ConnectionRefusedError():
            return Unreachable("nothing listens there", "Check the reference, and that the registry runs.", may_pass=True)
        case OSError():
            return Unreachable(error.strerror or str(error), may_pass=True)
        case _:
            hint = "Check the reference: what answers there may be no registry."
            return Unreachable(f"its answer cannot be understood ({type(error).__name__})", hint, may_pass=True)
