"""References to images in registries, and their parser, which uses no network."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address

from msgspec import Struct

from epbuild.core.errors import BadText
from epbuild.recipe.problems import quote_text

DEFAULT_TAG = "latest"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Hosts that epbuild accesses without TLS, as Docker does."""

_FORM = "Write HOST/REPOSITORY:TAG, such as registry.example/team/models:1.0."
_MAX_LENGTH = 255
_MAX_TAG_LENGTH = 128

# The parts of a name follow the OCI distribution specification 1.1, "Pulling manifests". The host follows Docker's references.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{{1,5}}))?")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class BadImageReference(BadText):
    """Invalid reference to an image. The message contains no secrets."""

    def __init__(self, message: str, hint: str = _FORM) -> None:
        super().__init__(message, hint)


class ImageReference(Struct, frozen=True):
    """Reference to an image in a registry. `host` includes an optional port, and the brackets of an IPv6 address."""

    host: str
    repository: str
    tag: str

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}:{self.tag}"

    @property
    def is_local(self) -> bool:
        """True if the registry is on this machine. epbuild accesses such a registry without TLS."""
        return re.sub(r":[0-9]+$", "", self.host) in LOOPBACK


def parse_image_reference(text: str) -> ImageReference:
    """Parse `HOST[:PORT]/REPOSITORY[:TAG]`, with the default tag `latest`. Raises BadImageReference.

    There is no default host. The first part must contain a dot or a port, or be `localhost`.
    """
    host, slash, rest = text.partition("/")
    if "://" in text:
        raise BadImageReference("an image reference must not contain '://': it is not a URL")
    if "@" in host:
        raise BadImageReference("an image reference must not contain a user name or a password, because the build log shows it")
    if len(text) > _MAX_LENGTH + 1 + _MAX_TAG_LENGTH:
        raise BadImageReference(f"{quote_text(text)} is too long for an image reference", "Shorten the reference.")
    if not slash or not ("." in host or ":" in host or host in LOOPBACK):
        hint = f"{_FORM} A host without a dot needs its port: {host}:443." if slash and _HOST.fullmatch(host) else _FORM
        raise BadImageReference(f"{quote_text(text)} does not name a registry", hint)
    _check_host(text, host)
    if "@" in rest:
        raise BadImageReference(
            "the reference of an image to push must not contain a digest, because epbuild computes the digest"
        )
    repository, colon, tag = rest.partition(":")
    if colon and not _TAG.fullmatch(tag):
        hint = "A tag has up to 128 letters, digits, '.', '_' and '-', and does not begin with '.' or '-'."
        raise BadImageReference(f"invalid tag {quote_text(tag)}", hint)
    _check_repository(host, repository)
    return ImageReference(host.lower(), repository, tag or DEFAULT_TAG)


def _check_host(text: str, host: str) -> None:
    found = _HOST.fullmatch(host)
    good = found is not None and (found[1] is None or 0 < int(found[1]) < 65536)
    if good and host.startswith("["):
        try:
            IPv6Address(host[1 : host.index("]")])
        except AddressValueError:
            good = False
    if not good:
        raise BadImageReference(f"invalid host {quote_text(host)} in {quote_text(text)}")


def _check_repository(host: str, repository: str) -> None:
    for part in repository.split("/"):
        if not _PART.fullmatch(part):
            hint = "Use lower-case letters and digits, joined by '.', '_', '__' or '-', and separate the parts with '/'."
            if part != part.lower() and _PART.fullmatch(part.lower()):
                hint = "Use lower-case letters. Put values that may contain capital letters, such as ${target}, into the tag."
            raise BadImageReference(f"invalid repository {quote_text(repository)}", hint)
    if len(host) + 1 + len(repository) > _MAX_LENGTH:
        raise BadImageReference(
            f"the reference is too long: host and repository have more than {_MAX_LENGTH} characters", "Shorten the repository."
        )
