"""Files over HTTPS: never over anything else, also not after a redirect, and resumed only where the server still has the same version."""

from __future__ import annotations

import http.client
import re
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from email.message import Message
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from epbuild import __version__
from epbuild.fetch.transfer import Interrupted, Refused, Reply

_CHUNK_BYTES = 256 * 1024
_TIMEOUT_SECONDS = 30.0
_MAY_PASS = frozenset({408, 425, 429})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_CHECK_ADDRESS = "Check the address."
_CHECK_ACCESS = "Check that this user may read it."


class _SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https only, and shows a token to no host but the one that it was meant for."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != "https":
            fp.close()
            raise Refused("the server redirects to an address that is not https", "Ask for another address of the file.")
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            redirected.remove_header("Authorization")
        return redirected


def make_opener(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """An opener that knows https and nothing else, through the proxy that the environment names; `handlers` come first."""
    opener = urllib.request.OpenerDirector()
    defaults: tuple[urllib.request.BaseHandler, ...] = (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(),
        _SecureRedirects(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    )
    replaced = tuple(default for default in defaults if not any(isinstance(handler, type(default)) for handler in handlers))
    for handler in (*handlers, *replaced):
        opener.add_handler(handler)
    return opener


class WebSource:
    """The file at `url`, asked for with `headers`."""

    def __init__(self, url: str, opener: urllib.request.OpenerDirector, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._opener = opener
        self._headers = {"User-Agent": f"epbuild/{__version__}", **(headers or {})}

    def open(self, start: int, validator: str | None) -> Reply:
        """See Source."""
        request = urllib.request.Request(self._url, headers=self._headers)  # noqa: S310 - the opener knows https only
        resuming = start > 0 and validator is not None
        if validator is not None and resuming:
            request.add_header("Range", f"bytes={start}-")
            request.add_header("If-Range", validator)
        try:
            response = self._opener.open(request, timeout=_TIMEOUT_SECONDS)
        except HTTPError as error:
            with error:
                if error.code == 416 and resuming:  # there is no such part: the file has become smaller
                    return self.open(0, None)
                raise _answered(error) from error
        except ValueError as error:  # urllib reads where a redirect leads before `redirect_request` is asked
            raise Refused("the server redirects to an address that cannot be read", _CHECK_ADDRESS) from error
        except (OSError, http.client.HTTPException) as error:
            raise _failed(error) from error
        begins, total = _extent(response)
        if begins not in (0, start) or total == -1:
            response.close()
            if resuming:
                return self.open(0, None)
            raise Refused("the server answered with a part of the file, which was not asked for", _CHECK_ADDRESS)
        return Reply(begins, total, _validator(response.headers), _chunks(response, begins, total), close=response.close)


def _extent(response: Any) -> tuple[int, int | None]:
    """Where the bytes of `response` begin in the file, and the file's size; the size is -1 for a part of unknown place."""
    if response.status == 206:
        part = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if part is None:
            return 0, -1
        return int(part[1]), None if part[2] == "*" else int(part[2])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def _validator(headers: Message) -> str | None:
    etag = headers.get("ETag")
    # A weak ETag says that two versions mean the same, not that they are the same bytes.
    found = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
    return found if found and found.isascii() and found.isprintable() else None  # it is sent back, as a header


def _chunks(response: Any, at: int, total: int | None) -> Iterator[bytes]:
    while total is None or at < total:
        try:
            # What has arrived, without waiting for a whole chunk: so that a slow line shows progress and can be cancelled.
            chunk: bytes = response.read1(_CHUNK_BYTES if total is None else min(_CHUNK_BYTES, total - at))
        except (OSError, http.client.HTTPException) as error:
            raise _failed(error) from error
        if not chunk:
            break
        at += len(chunk)
        yield chunk
    if total is not None and at < total:
        raise Interrupted("the connection was closed before the end of the file")


def _answered(error: HTTPError) -> Interrupted | Refused:
    reason = f"the server answered {error.code} {error.reason}"
    if error.code >= 500 or error.code in _MAY_PASS:
        return Interrupted(reason)
    return Refused(reason, _CHECK_ACCESS if error.code in (401, 403, 407) else _CHECK_ADDRESS)


def _failed(error: OSError | http.client.HTTPException) -> Interrupted | Refused:
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        hint = "Where a proxy signs with a certificate of its own, name its authority in SSL_CERT_FILE."
        return Refused(f"the server's certificate does not hold: {cause.verify_message}", hint)
    if isinstance(cause, TimeoutError):
        return Interrupted(f"the server was silent for {_TIMEOUT_SECONDS:.0f} s")
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return Interrupted(text or type(cause).__name__)
