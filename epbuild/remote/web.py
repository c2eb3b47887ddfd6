"""The remote cache on a web server, by Bazel's HTTP cache protocol.

GET, HEAD and PUT of `ac/KEY` and `cas/DIGEST`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from epbuild.core.connection import Body, Timeouts
from epbuild.core.digest import Write as SendPiece
from epbuild.core.http import Connect, HttpClient, Response, Unreachable, asked_pause, may_pass
from epbuild.remote.transport import Content, Download, Patience, RemoteError, Space, Trouble

_OCTETS = "application/octet-stream"
_THERE = frozenset({200})
_WRITTEN = frozenset({200, 201, 202, 204})
_ABSENT = frozenset({404, 410})
_REFUSED = frozenset({401, 403, 405, 407, 507})
_NO_METHOD = frozenset({405, 501})
_ACCESS = (
    "Check the address. The header EPBUILD_REMOTE_AUTHORIZATION is sent only to the address that EPBUILD_REMOTE_CACHE names."
)


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
            timeouts = Timeouts(wait.connect, wait.answer, idle, uploaded, pace=wait.pace)
            return HttpClient(local=("localhost", "127.0.0.1", "::1"), cancelled=cancelled, connect=connect, timeouts=timeouts)

        # Records are small: a server that takes long to send one hangs.
        self._clients: Mapping[Space, HttpClient] = {
            "ac": client(wait.answer, wait.answer),
            "cas": client(wait.idle, wait.uploaded),
        }

    def get(self, space: Space, name: str) -> Download | None:
        with _explained():
            response = self._open("GET", space, name)
            if response.status in _THERE:
                return _WebDownload(response)
            answer = response.finish()
        if answer.status in _ABSENT:
            return None
        raise _refusal(answer.status, answer.reason, answer.headers)

    def has(self, space: Space, name: str, size: int) -> bool:
        with _explained():
            response = self._open("HEAD", space, name)
            if response.status in _THERE:
                found = response.size
            answer = response.finish()
        if answer.status in _THERE:
            return found in (None, size)
        if answer.status in _ABSENT or answer.status in _NO_METHOD:
            return False
        raise _refusal(answer.status, answer.reason, answer.headers)

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

    def _open(self, method: str, space: Space, name: str) -> Response:
        url = f"{self._base}/{space}/{name}"
        return self._clients[space].open(method, url, headers={}, authorization=self._authorization)


class _WebDownload(Download):
    def __init__(self, response: Response) -> None:
        self._response = response
        self._at = 0
        self.size = response.size

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Read the bytes that have arrived, at least one: so that progress shows, and a slow server is noticed."""
        wanted = len(buffer) if self.size is None else min(len(buffer), self.size - self._at)
        if wanted == 0:
            return 0
        with _explained():
            piece = self._response.read1(wanted)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        if not piece and self.size is not None:
            raise RemoteError("the connection was closed before the end of an object", "Check the network.", "passing")
        return len(piece)

    def close(self) -> None:
        if self.size is None or self._at < self.size:
            self._response.close()
        else:
            self._response.release()
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
