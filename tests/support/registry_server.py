"""OCI registry on this machine, as strict as the specification, with configurable faults."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import selectors
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

from tests.support.http_servers import Quiet, answering

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_ROUTE = re.compile(r"/v2/([a-z0-9/._-]+)/(blobs|manifests)/(.*)")

Answer = tuple[int, Mapping[str, str], bytes]
"""A status, headers and a body."""


@dataclass(frozen=True)
class Request:
    """A received request: the original headers, and the number of body bytes that arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    size: int

    @property
    def authorization(self) -> str | None:
        return self.headers.get("Authorization")


@dataclass
class Trouble:
    """Fault of a server for requests of a method to a path that contains a text."""

    method: str
    path: str
    answer: Answer | None = None
    """Answer of the server. If None, it closes the connection without an answer."""
    reads: int | None = None
    """Number of body bytes to read before. If None, all are read."""
    times: int = 1


class Server:
    """Server with a log of requests. Troubles apply before the regular `answer`."""

    def __init__(self, port: int, scheme: str) -> None:
        self.port = port
        self.root = f"{scheme}://127.0.0.1:{port}"
        self.requests: list[Request] = []
        self.troubles: list[Trouble] = []

    def asked(self, method: str) -> list[str]:
        """Return the paths requested with a method."""
        return [request.path for request in self.requests if request.method == method]

    def secrets(self) -> set[str | None]:
        """Return the received Authorization headers."""
        return {request.authorization for request in self.requests}

    def answer(self, request: Request, data: bytes) -> Answer:
        raise NotImplementedError


class Registry(Server):
    """Registry that keeps blobs and manifests, and refuses requests as the specification says."""

    def __init__(self, port: int, scheme: str) -> None:
        super().__init__(port, scheme)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.location: Callable[[str], str] = lambda path: path
        """Function from the path of an upload to its Location header."""
        self.allowed: set[str | None] | None = None
        """Authorization headers with full access. If None, no authorization is required."""
        self.challenge = ""

    def answer(self, request: Request, data: bytes) -> Answer:
        if self.allowed is not None and request.authorization not in self.allowed:
            return 401, {"WWW-Authenticate": self.challenge} if self.challenge else {}, said("UNAUTHORIZED", "sign in first")
        parts = urlsplit(request.path)
        route = _ROUTE.fullmatch(parts.path)
        if route is None:
            return 404, {}, b"404 page not found"
        match request.method, route[2], route[3]:
            case "HEAD", kind, name:
                kept = (self.blobs if kind == "blobs" else self.manifests).get(name)
                return (404, {}, b"") if kept is None else (200, {"Docker-Content-Digest": digest(kept)}, kept)
            case "POST", "blobs", "uploads/":
                return 202, {"Location": self.location(f"{parts.path}{len(self.requests)}?state=a%2Fb")}, b""
            case "PUT", "blobs", _:
                return self.put_blob(parts.query, request.headers, data)
            case "PUT", "manifests", name:
                return self._put_manifest(name, request.headers, data)
        return 405, {}, said("UNSUPPORTED", "the operation is unsupported")

    def put_blob(self, query: str, headers: Mapping[str, str], data: bytes) -> Answer:
        asked = parse_qs(query, strict_parsing=True)
        if asked != {"state": ["a/b"], "digest": [digest(data)]} or headers.get("Content-Type") != "application/octet-stream":
            return 400, {}, said("DIGEST_INVALID", "provided digest did not match uploaded content")
        self.blobs[digest(data)] = data
        return 201, {"Docker-Content-Digest": digest(data)}, b""

    def _put_manifest(self, name: str, headers: Mapping[str, str], data: bytes) -> Answer:
        manifest = json.loads(data)
        if not {part["digest"] for part in (manifest["config"], *manifest["layers"])} <= set(self.blobs):
            return 400, {}, said("MANIFEST_BLOB_UNKNOWN", "blob unknown to registry")
        if headers.get("Content-Type") != MANIFEST_TYPE or (name.startswith("sha256:") and name != digest(data)):
            return 400, {}, said("MANIFEST_INVALID", "manifest invalid")
        self.manifests[name] = data
        return 201, {"Docker-Content-Digest": digest(data)}, b""


class TokenServer(Server):
    """Token server for a user with a password or for anybody."""

    def __init__(self, port: int, scheme: str) -> None:
        super().__init__(port, scheme)
        self.user: str | None = None
        """Authorization header that receives a token. If None, any does."""
        self.tokens: list[Mapping[str, object]] = []
        """Answers, one for each request."""
        self.forms: list[bytes] = []
        """Forms received from clients."""

    @property
    def challenge(self) -> str:
        return f'Bearer realm="{self.root}/auth?account=ci",service="registry, of tests",scope="repository:team/models:pull"'

    def answer(self, request: Request, data: bytes) -> Answer:
        if self.user is not None and request.authorization != self.user:
            return 401, {}, b'{"details": "incorrect username or password"}'
        if data:
            self.forms.append(data)
        return 200, {}, json.dumps(self.tokens.pop(0)).encode()


class Tunnel(Server):
    """Proxy that tunnels connections without reading them, all to the port `to` of this machine."""

    to = 0


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def said(code: str, message: str) -> bytes:
    """Return an error in the format of the specification."""
    return json.dumps({"errors": [{"code": code, "message": message, "detail": None}]}).encode()


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


_S = TypeVar("_S", bound=Server)


@contextmanager
def serving(kind: type[_S], tls: ssl.SSLContext | None = None) -> Iterator[_S]:
    """Run a server while the block runs."""

    class Handler(Quiet, BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            trouble = self._trouble()
            length = int(self.headers.get("Content-Length", 0))
            data = self.rfile.read(length if trouble is None or trouble.reads is None else min(length, trouble.reads))
            request = Request(self.command, self.path, dict(self.headers.items()), len(data))
            server.requests.append(request)
            answer = server.answer(request, data) if trouble is None else trouble.answer
            if answer is None or len(data) < length:
                self.close_connection = True
            if answer is None:
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = _do  # noqa: N815 - the names that the library gives them

        def do_CONNECT(self) -> None:
            server.requests.append(Request(self.command, self.path, dict(self.headers.items()), 0))
            if isinstance(server, Tunnel):
                with socket.create_connection(("127.0.0.1", server.to)) as there:
                    self.send_response(200)
                    self.end_headers()
                    _join(self.connection, there)
            self.close_connection = True

        def _trouble(self) -> Trouble | None:
            for trouble in server.troubles:
                if trouble.times and trouble.method == self.command and trouble.path in self.path:
                    trouble.times -= 1
                    return trouble
            return None

    class Listener(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that closed the connection early

    listener = Listener(("127.0.0.1", 0), Handler)
    if tls is not None:
        listener.socket = tls.wrap_socket(listener.socket, server_side=True)
    server = kind(listener.server_address[1], "http" if tls is None else "https")
    with answering(listener):
        yield server


def _join(one: socket.socket, other: socket.socket) -> None:
    with selectors.DefaultSelector() as selector, suppress(OSError):
        selector.register(one, selectors.EVENT_READ, (one, other))
        selector.register(other, selectors.EVENT_READ, (other, one))
        while ready := selector.select(30):
            for key, _ in ready:
                here, there = key.data
                data = here.recv(65536)
                if not data:
                    return
                there.sendall(data)
