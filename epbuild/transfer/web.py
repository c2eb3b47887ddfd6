"""Objects on a web server: GET, HEAD and PUT, as in Bazel's HTTP cache protocol."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

from epbuild.core.digest import Write
from epbuild.transfer.connection import Body
from epbuild.transfer.http import HttpClient, Response, is_transient, parse_retry_after
from epbuild.transfer.objects import Content, Download, MissingObjectError, TransferError

_MEDIA_TYPE = "application/octet-stream"
_SUCCESS = frozenset({200, 201, 202, 204})
_MISSING = frozenset({404, 410})
_DENIED = frozenset({401, 403, 405, 407, 507})
_NO_METHOD = frozenset({405, 501})
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)")


class WebFile(Struct, frozen=True):
    """File at a URL. `access_hint` is the hint if the server denies access."""

    client: HttpClient
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    authorization: str | None = None
    access_hint: str = "Check that this user may read the file."

    def open(self, start: int = 0, version: str | None = None) -> Download:
        """Open the file at offset `start` if its version is still `version`, or else at its beginning."""
        resumes = start > 0 and version is not None
        headers = {"Range": f"bytes={start}-", "If-Range": str(version)} if resumes else {}
        response = self._request("GET", headers)
        if response.status == 416 and resumes:  # the file has become smaller than `start`
            response.close()
            return self.open()
        if response.status not in (200, 206):
            raise self._make_status_error(response)
        begin, size = _parse_extent(response)
        if begin in (0, start) and size != -1:
            return _WebDownload(response, begin, size)
        response.close()
        if resumes:
            return self.open()
        message = "the server sent only a part of the file, although the whole file was requested"
        raise TransferError(message, "Check the address.", "object")

    def has(self, size: int) -> bool:
        """Return whether the server has the file. If the server sends the file's size, the size must equal `size`."""
        response = self._request("HEAD")
        if response.status == 200:
            server_size = response.size
            response.finish()
            return server_size in (None, size)
        if response.status in _MISSING or response.status in _NO_METHOD:
            response.finish()
            return False
        raise self._make_status_error(response)

    def put(self, content: Content) -> None:
        """Upload `content` as the file."""

        def send(write: Write) -> None:
            for piece in content.pieces():
                write(memoryview(piece))

        response = self._request("PUT", body=Body(content.size, _MEDIA_TYPE, send))
        if response.status not in _SUCCESS:
            raise self._make_status_error(response)
        response.finish()

    def _request(self, method: str, headers: Mapping[str, str] | None = None, body: Body | None = None) -> Response:
        sent = {**self.headers, **(headers or {})}
        return self.client.open(method, self.url, headers=sent, authorization=self.authorization, body=body)

    def _make_status_error(self, response: Response) -> TransferError:
        """Read the rest of a failed response, and return the error for its status."""
        answer = response.finish()
        message = f"the server responded with {answer.status} {answer.reason}".rstrip()
        if answer.status in _MISSING:
            return MissingObjectError(message)
        if answer.status in _DENIED:
            return TransferError(message, self.access_hint, "denied")
        if is_transient(answer.status):
            return TransferError(message, pause=parse_retry_after(answer.headers))
        return TransferError(message, "Check the address: another program may answer there.", "object")


class WebStore:
    """Store of the objects below the URL `base`."""

    def __init__(self, client: HttpClient, base: str, *, authorization: str | None = None, access_hint: str = "") -> None:
        self._client = client
        self._base = base
        self._authorization = authorization
        self._access_hint = access_hint or "Check the address."

    def get(self, path: str, start: int = 0, version: str | None = None) -> Download:
        return self._get_file(path).open(start, version)

    def has(self, path: str, size: int) -> bool:
        return self._get_file(path).has(size)

    def put(self, path: str, content: Content) -> None:
        self._get_file(path).put(content)

    def close(self) -> None:
        self._client.close()

    def _get_file(self, path: str) -> WebFile:
        return WebFile(self._client, f"{self._base}/{path}", authorization=self._authorization, access_hint=self._access_hint)


class _WebDownload(Download):
    def __init__(self, response: Response, start: int, size: int | None) -> None:
        self._response = response
        self._position = start
        self.start = start
        self.size = size
        self.version = _extract_version(response.headers)

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Read the bytes that have arrived, at least one byte. Waiting for a full buffer would hide a slow server."""
        count = len(buffer) if self.size is None else min(len(buffer), self.size - self._position)
        if count <= 0:
            return 0
        piece = self._response.read1(count)
        buffer[: len(piece)] = piece
        self._position += len(piece)
        if not piece and self.size is not None:
            raise TransferError("the connection was closed before the end of the file")
        return len(piece)

    def close(self) -> None:
        if self.size is None or self._position < self.size:
            self._response.close()
        else:
            self._response.release()
        super().close()


def _parse_extent(response: Response) -> tuple[int, int | None]:
    """Return the body's offset in the file, and the file's size. The size is None if unknown, and -1 if the offset is unknown too."""
    if response.status == 206:
        part = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if part is None:
            return 0, -1
        return int(part[1]), None if part[2] == "*" else int(part[2])
    return 0, response.size


def _extract_version(headers: Mapping[str, str]) -> str | None:
    etag = headers.get("ETag")
    # A weak ETag is not used, as files with the same weak ETag may have different bytes.
    version = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
    # The version is sent back in a header.
    return version if version and version.isascii() and version.isprintable() else None
