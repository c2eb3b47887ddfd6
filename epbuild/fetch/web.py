"""Files over HTTPS: never over anything else, resumed only at the same version."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from epbuild.core.http import HttpClient, Response, Unreachable, may_pass
from epbuild.fetch.transfer import Reply

_CHUNK_BYTES = 256 * 1024
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)")
_CHECK_ADDRESS = "Check the address."
_CHECK_ACCESS = "Check that this user may read it."


class WebSource:
    """The file at `url`, asked for with `headers`."""

    def __init__(self, url: str, client: HttpClient, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._client = client
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._authorization = self._headers.pop("authorization", None)

    def open(self, start: int, validator: str | None) -> Reply:
        resuming = start > 0 and validator is not None
        part = {"Range": f"bytes={start}-", "If-Range": str(validator)} if resuming else {}
        headers = {**self._headers, **part}
        response = self._client.open("GET", self._url, headers=headers, authorization=self._authorization)
        if response.status not in (200, 206):
            response.close()
            if response.status == 416 and resuming:  # there is no such part: the file has become smaller
                return self.open(0, None)
            raise _answered(response.status, response.reason)
        begins, total = _extent(response)
        if begins not in (0, start) or total == -1:
            response.close()
            if resuming:
                return self.open(0, None)
            message = "the server answered with a part of the file, which was not asked for"
            raise Unreachable(message, _CHECK_ADDRESS, may_pass=False)
        return Reply(begins, total, _validator(response.headers), _chunks(response, begins, total), close=response.close)


def _chunks(response: Response, at: int, total: int | None) -> Iterator[bytes]:
    while total is None or at < total:
        # Waiting for a whole chunk would hide the progress of a slow line.
        chunk = response.read1(_CHUNK_BYTES if total is None else min(_CHUNK_BYTES, total - at))
        if not chunk:
            break
        at += len(chunk)
        yield chunk
    if total is not None and at < total:
        raise Unreachable("the connection was closed before the end of the file", may_pass=True)


def _extent(response: Response) -> tuple[int, int | None]:
    """Return the offset in the file of the body's first byte, and the file's size; the size is -1 for a part of unknown place."""
    if response.status == 206:
        part = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if part is None:
            return 0, -1
        return int(part[1]), None if part[2] == "*" else int(part[2])
    return 0, response.size


def _validator(headers: Mapping[str, str]) -> str | None:
    etag = headers.get("ETag")
    # A weak ETag is of two versions that mean the same, not that they are the same bytes.
    found = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
    return found if found and found.isascii() and found.isprintable() else None  # it is sent back, as a header


def _answered(status: int, reason: str) -> Unreachable:
    message = f"the server answered {status} {reason}".rstrip()
    if may_pass(status):
        return Unreachable(message, may_pass=True)
    return Unreachable(message, _CHECK_ACCESS if status in (401, 403, 407) else _CHECK_ADDRESS, may_pass=False)
