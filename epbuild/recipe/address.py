"""Addresses of remote models, and their parser, which uses no network."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.errors import BadText, Position, Problem, suggest_nearest
from epbuild.recipe.paths import PACKAGE, RELEASE, SCHEME
from epbuild.recipe.problems import MISSING_KEY, WRONG_VALUE, format_choices, quote_text
from epbuild.recipe.requirement import read_requirement

_PACKAGE_FORM = f"{PACKAGE}<name>==<version>/<file>"
BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FORMS = {
    "https": "https://<host>/<file>",
    "s3": "s3://<bucket>/<file>",
    "gs": "gs://<bucket>/<file>",
    "az": "az://<container>/<file>",
    "hf": "hf://<owner>/<repository>/<file>@<revision>",
}


class BadAddress(BadText):
    """Invalid address of a remote file. The message contains no secrets."""


class WebAddress(Struct, frozen=True):
    """File on a web server."""

    url: str

    def __str__(self) -> str:
        """Return the address without its query, because the query may contain a secret. Addresses never contain a user name."""
        return self.url.partition("?")[0]

    @property
    def text(self) -> str:
        return self.url

    @property
    def file(self) -> str:
        """Path of the file on its server."""
        return unquote(urlsplit(self.url).path)


class ObjectAddress(Struct, frozen=True):
    """Object in a bucket of Amazon S3 or Google Cloud Storage, or in a container of Azure Blob Storage."""

    scheme: Literal["s3", "gs", "az"]
    bucket: str
    file: str

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.file}"


class HubAddress(Struct, frozen=True):
    """File in a model repository of the Hugging Face Hub. The revision is a branch, a tag or a commit."""

    repository: str
    file: str
    revision: str

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        return f"hf://{self.repository}/{self.file}@{self.revision}"


class PackageAddress(Struct, frozen=True):
    """File in the wheel of one version of a Python distribution. The installer's settings select the package index."""

    distribution: str
    """Normalized name (PEP 503)."""
    version: str
    file: str
    """Path relative to the root of the wheel, or to the only folder of the wheel that contains such a path."""

    def __str__(self) -> str:
        return self.text

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def text(self) -> str:
        return f"{PACKAGE}{self.requirement}/{self.file}"


Address = WebAddress | ObjectAddress | HubAddress | PackageAddress
"""Address of a remote file. `text` is the address in the recipe, `str()` omits secrets, and `file` is the file's POSIX path."""


def resolve_beside(address: Address, location: str) -> Address:
    """Return the address of the file at `location`, a path relative to the folder of `address`. Keep the query of `address`."""
    file = str(PurePosixPath(location))
    if isinstance(address, WebAddress):
        parts = urlsplit(address.url)
        return WebAddress(urlunsplit(parts._replace(path=f"{parts.path.rpartition('/')[0]}/{quote(file)}")))
    return replace(address, file=str(PurePosixPath(address.file).parent / file))


def is_immutable(address: Address) -> bool:
    """Return whether the content at an address cannot change. Examples are a commit of the hub and a release of a package."""
    return isinstance(address, PackageAddress) or (
        isinstance(address, HubAddress) and _COMMIT.fullmatch(address.revision) is not None
    )


def find_address_problem(path: str, where: Position, *, pinned: bool) -> Problem | None:
    """Return the problem of a model's address, or None if the address is valid.

    `pinned` means that the recipe has the file's SHA-256.
    """
    try:
        address = parse_address(path)
    except BadAddress as error:
        return Problem(WRONG_VALUE, error.message, where, error.hint)
    if pinned or is_immutable(address):
        return None
    message = f"a model from {path.partition(':')[0]}:// needs a 'sha256': the content at an address can change"
    hint = "Add 'sha256', or use a full commit id (40 digits) as the revision." if isinstance(address, HubAddress) else None
    return Problem(MISSING_KEY, message, where, hint)


def parse_address(text: str) -> Address:
    """Parse the address of a remote file. Raises BadAddress."""
    if RELEASE.match(text):
        return _parse_package(text)
    found = SCHEME.match(text)
    scheme = found[1] if found else ""
    if scheme == "http":
        message = "http:// is not allowed: downloads can be altered in transit"
        raise BadAddress(message, "Use https://, or download the file yourself.")
    if found is None or scheme not in _FORMS:
        hint = suggest_nearest(scheme, _FORMS) or f"Supported schemes: {format_choices(_FORMS)}. A path has no scheme."
        raise BadAddress(f"models cannot be fetched from {quote_text(found[0] if found else text)}", hint)
    rest = text[found.end() :]
    server = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in server and (scheme != "hf" or ":" in server):
        message = "an address must not contain a user name or a password, because every manifest contains the address"
        raise BadAddress(message, f"Write {_FORMS[scheme]}.")
    if not text.isprintable() or " " in text:
        raise make_address_error(text, _FORMS[scheme], "contains a space or a control character")
    match scheme:
        case "s3" | "gs" | "az":
            return _parse_object(text, scheme, rest)
        case "hf":
            return _parse_hub(text, rest)
        case _:
            return _parse_web(text)


def _parse_web(text: str) -> WebAddress:
    if not has_host(text):
        raise make_address_error(text, _FORMS["https"], "has no valid host")
    if "#" in text:
        raise make_address_error(text, _FORMS["https"], "has a fragment ('#'), which does not name a file")
    if not text.isascii():
        raise make_address_error(text, _FORMS["https"], "contains non-ASCII characters, which must be percent-encoded")
    _check_path(text, _FORMS["https"], unquote(urlsplit(text).path).removeprefix("/"))
    return WebAddress(text)


def _parse_object(text: str, scheme: Literal["s3", "gs", "az"], rest: str) -> ObjectAddress:
    bucket, _, key = rest.partition("/")
    if not BUCKET.fullmatch(bucket):
        raise make_address_error(text, _FORMS[scheme], "does not name a bucket")
    _check_path(text, _FORMS[scheme], key)
    return ObjectAddress(scheme, bucket, key)


def _parse_hub(text: str, rest: str) -> HubAddress:
    place, _, revision = rest.rpartition("@")
    if not revision or not place:
        raise make_address_error(text, _FORMS["hf"], "has no revision")
    owner, _, more = place.partition("/")
    name, _, file = more.partition("/")
    if not file:
        raise make_address_error(text, _FORMS["hf"], "does not name a file in a repository")
    repository = f"{owner}/{name}"
    if not _REPOSITORY.fullmatch(repository):
        raise make_address_error(text, _FORMS["hf"], f"has an invalid repository name {quote_text(repository)}")
    _check_path(text, _FORMS["hf"], file)
    return HubAddress(repository, file, revision)


def _parse_package(text: str) -> PackageAddress:
    release, _, file = text.removeprefix(PACKAGE).partition("/")
    requirement = read_requirement(release)
    if requirement.version is None or not requirement.is_plain:
        message = f"{quote_text(release)} does not name exactly one version of a package"
        raise BadAddress(message, f"Write {_PACKAGE_FORM}, with one version.")
    if not file.isprintable():
        raise BadAddress(f"{quote_text(text)} contains a control character", f"Write {_PACKAGE_FORM}.")
    _check_path(text, _PACKAGE_FORM, file)
    return PackageAddress(requirement.distribution, requirement.version, file)


def _check_path(text: str, form: str, path: str) -> None:
    if not path or path.endswith("/"):
        raise make_address_error(text, form, "does not name a file")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise make_address_error(text, form, "does not name a file: part of the path is empty, '.' or '..'")


def has_host(url: str) -> bool:
    """Return whether a URL has a host, and no invalid port."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def make_address_error(text: str, form: str, reason: str) -> BadAddress:
    """Return the error for an address whose form should be `form`. The message omits the query, which may contain a secret."""
    return BadAddress(f"{quote_text(text.partition('?')[0])} {reason}", f"Write {form}.")
