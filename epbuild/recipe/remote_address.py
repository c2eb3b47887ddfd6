"""Addresses of remote caches, their parser, and a recipe's `cache` section."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from epbuild.core.errors import Position, suggest_nearest
from epbuild.recipe.address import BUCKET, BadAddress, has_host, make_address_error
from epbuild.recipe.paths import SCHEME
from epbuild.recipe.problems import format_choices, quote_text

Scheme = Literal["directory", "http", "https", "s3", "gs", "az"]

_FORMS = {
    "https": "https://<host>/<path>",
    "http": "http://<host>/<path>",
    "s3": "s3://<bucket>/<prefix>",
    "gs": "gs://<bucket>/<prefix>",
    "az": "az://<container>/<prefix>",
}


PUBLIC_KEY = re.compile(r"ed25519:[A-Za-z0-9+/]{43}=")
"""Form of a public key for signatures: 32 bytes in Base64."""


def is_loopback(host: str) -> bool:
    """Return whether a host name refers to this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class RemoteAddress(Struct, frozen=True):
    """Address of a remote cache: a directory, a URL without a trailing slash, or a bucket with a prefix.

    An address contains no secrets, because the parser rejects user names and queries.
    """

    scheme: Scheme
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def is_directory(self) -> bool:
        """True if the address is the path of a directory."""
        return self.scheme == "directory"

    @property
    def host(self) -> str:
        """Host name of a web server, or name of a bucket in cloud storage."""
        return urlsplit(self.text).hostname or ""

    @property
    def bucket(self) -> tuple[str, str]:
        """Bucket or container, and the prefix of all objects. The prefix may be empty."""
        bucket, _, prefix = self.text.partition("://")[2].partition("/")
        return bucket, prefix

    @property
    def is_local(self) -> bool:
        """True if the host of the address is this machine."""
        return is_loopback(self.host)


class CacheChoice(Struct, frozen=True):
    """Section `cache` of a recipe: a remote cache and the trusted public keys."""

    where: Position
    remote: RemoteAddress | None
    """Address of the remote cache. A directory is relative to the folder of the recipe."""
    trust: tuple[str, ...]


def parse_remote(text: str) -> RemoteAddress:
    """Parse the address of a remote cache. Raises BadAddress."""
    found = SCHEME.match(text)
    if found is None:
        if not text.strip() or "\0" in text:
            hint = "Write a path, or an address such as s3://<bucket>/<prefix>."
            raise BadAddress("the address of the remote cache is not a valid path", hint)
        return RemoteAddress("directory", text)
    scheme = found[1]
    if scheme not in _FORMS:
        supported = f"Supported schemes: {format_choices(_FORMS)}. The path of a directory has no scheme."
        hint = suggest_nearest(scheme, _FORMS) or supported
        raise BadAddress(f"remote caches do not support {quote_text(found[0])}", hint)
    rest = text[found.end() :]
    server, _, path = rest.partition("/")
    if "@" in server:
        message = "the address of a remote cache must not contain a user name or a password, because recipes are shared"
        hint = (
            "Set EPBUILD_REMOTE_CACHE to the address, and EPBUILD_REMOTE_AUTHORIZATION to the value of the Authorization header."
        )
        raise BadAddress(message, hint)
    if not text.isascii() or not text.isprintable() or any(character in text for character in ' ?#"<>\\'):
        reason = "contains a query, a space or another character that is not allowed in the address of a cache"
        raise make_address_error(text, _FORMS[scheme], reason)
    if any(part in (".", "..") for part in path.split("/")) or "//" in path:
        raise make_address_error(text, _FORMS[scheme], "contains a part that is empty, '.' or '..'")
    is_web = scheme in ("http", "https")
    if not has_host(text) or not (is_web or BUCKET.fullmatch(server)):
        raise make_address_error(text, _FORMS[scheme], "has no valid host" if is_web else "does not name a bucket")
    return RemoteAddress(scheme, text.rstrip("/"))  # type: ignore[arg-type] # the scheme is a key of `_FORMS`
