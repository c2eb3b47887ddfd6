"""The remote cache on a web server, by Bazel's HTTP cache protocol.

GET, HEAD and PUT of `ac/KEY` and `cas/DIGEST`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import urllib3

from epbuild.core.digest import Write as SendPiece
from epbuild.core.http import Body, Connect, HttpClient, Timeouts, Unreachable, asked_pause, may_pass
from epbuild.remote.transport import Content, Download, Patience, RemoteError, Space, Trouble

_OCTETS = "application/octet-stream"
_THERE = frozenset({200})
_WRITTEN = frozenset({200, 201, 202, 204})
_ABSENT = frozenset({404, 410})
_REFUSED = frozenset({401, 403, 405, 407, 507})
_NO_METHOD = frozenset({405, 501})
_MOST_WORDS = 64 * 1024
_ACCESS = "Check the address, and EPBUILD_REMOTE_AUTHORIZATION, the value of the Authorization header that is sent."


class WebTransport:
    """The objects below the address `base`; each request has the header `Authorization: <authorization>` where one is given."""

    def __init__(
        self,
        base: str,
        *,
        authorization: str | None = None,
        patience: Patience | None = None,
        cancelled: threading.Event | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._base = base
        self._authorization = authorization
        wait = patience or Patience()

        def client(idle: float, uploaded: float) -> HttpClient:
            timeouts = Timeouts(wait.connect, wait.answer, idle, uploaded)
            return HttpClient(local=("localhost", "127.0.0.1", "::1"), cancelled=cancelled, connect=connect, timeouts=timeouts)

        # Records are small: one that does not come at once has its server hang.
        self._clients: Mapping[Space, HttpClient] = {
            "ac": client(wait.answer, wait.answer),
            "cas": client(wait.idle, wait.uploaded),
        }

    def get(self, space: Space, name: str) -> Download | None:
        response = self._open("GET", space, name)
        if response.status in _THERE:
            return _WebDownload(response, self._clients[space])
        self._finish(response, self._clients[space])
        if response.status in _ABSENT:
            return None
        raise _refusal(response.status, response.reason or "", response.headers)

    def has(self, space: Space, name: str, size: int) -> bool:
        response = self._open("HEAD", space, name)
        self._finish(response, self._clients[space])
        if response.status in _THERE:
            length = response.headers.get("Content-Length", "")
            return not length.isdecimal() or int(length) == size
        if response.status in _ABSENT or response.status in _NO_METHOD:
            return False
        raise _refusal(response.status, response.reason or "", response.headers)

    def put(self, space: Space, name: str, content: Content) -> None:
        def give(write: SendPiece) -> None:
            for piece in content.pieces():
                write(memoryview(piece))

        client = self._clients[space]
        with _explained():
            answer = client.send(
                "PUT",
                f"{self._base}/{space}/{name}",
                headers={},
                authorization=self._authorization,
                body=Body(content.size, _OCTETS, give),
            )
        if answer.status not in _WRITTEN:
            raise _refusal(answer.status, answer.reason, answer.headers)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _open(self, method: str, space: Space, name: str) -> urllib3.BaseHTTPResponse:
        with _explained():
            url = f"{self._base}/{space}/{name}"
            response, _ = self._clients[space].open(method, url, headers={}, authorization=self._authorization)
            return response

    @staticmethod
    def _finish(response: urllib3.BaseHTTPResponse, client: HttpClient) -> None:
        """Read what a server has to add to its status, so that the connection serves again; not where it is long."""
        with _explained(), client.explained():
            if len(response.read(_MOST_WORDS, decode_content=False)) == _MOST_WORDS:
                response.close()
        response.release_conn()


class _WebDownload(Download):
    def __init__(self, response: urllib3.BaseHTTPResponse, client: HttpClient) -> None:
        self._response = response
        self._client = client
        self._at = 0
        length = response.headers.get("Content-Length", "")
        self.size = int(length) if length.isdecimal() else None

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """What there is of it now, and at least a byte: so that progress shows, and a slow server is noticed."""
        wanted = len(buffer) if self.size is None else min(len(buffer), self.size - self._at)
        if wanted == 0:
            return 0
        with _explained(), self._client.explained():
            piece = self._response.read1(wanted, decode_content=False)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        if not piece and self.size is not None:
            raise RemoteError("the connection was closed before the end of an object", "Check the network.", "passing")
        return len(piece)

    def close(self) -> None:
        if self.size is None or self._at < self.size:
            self._response.close()
        self._response.release_conn()
        super().close()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Unreachable as failure:
        trouble: Trouble = "hung" if failure.hung else "passing" if failure.may_pass else "refused"
        raise RemoteError(str(failure), failure.hint, trouble, pause=failure.pause) from failure


def _refusal(status: int, reason: str, headers: Mapping[str, str]) -> RemoteError:
    message = f"the server answered {status} {reason}".rstrip()
    if status in _REFUSED:
        return RemoteError(message, _ACCESS, "refused")
    if may_pass(status):
        return RemoteError(message, "Try it again later.", "passing", pause=asked_pause(headers))
    return RemoteError(message, "Check the address: what answers there may be another program.", "object")
