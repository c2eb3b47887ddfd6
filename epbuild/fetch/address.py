"""Addresses of remote models: which file, where, and what lies beside it. Nothing here touches a network."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import quote, unquote, urlsplit, urlunsplit

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NO_FILE_NAME = re.compile(r'[\x00-\x1f<>:"/\\|?*]')
_FORMS = {
    "https": "https://host/folder/model.onnx",
    "s3": "s3://bucket/folder/model.onnx",
    "gs": "gs://bucket/folder/model.onnx",
    "az": "az://container/folder/model.onnx",
    "hf": "hf://organisation/repository/folder/model.onnx@revision",
}


class BadAddress(ValueError):
    """A text that is no address of a remote file; the message is a sentence for the recipe's author."""


@dataclass(frozen=True)
class WebAddress:
    """A file on a web server."""

    url: str

    def __str__(self) -> str:
        """The address for people: without the query, which may hold a secret."""
        return self.url.partition("?")[0]

    @property
    def text(self) -> str:
        """The whole address as a recipe has it."""
        return self.url

    @property
    def path(self) -> str:
        """Where the file lies on its server, with '/' between the parts."""
        return unquote(urlsplit(self.url).path)

    def beside(self, location: str) -> WebAddress:
        """The address of the file at `location`, relative to the folder of this one; a query, such as an access token, goes along."""
        parts = urlsplit(self.url)
        folder = parts.path.rpartition("/")[0]
        return WebAddress(urlunsplit(parts._replace(path=f"{folder}/{quote(str(PurePosixPath(location)))}")))


@dataclass(frozen=True)
class ObjectAddress:
    """An object in a bucket of Amazon S3 or Google Cloud Storage, or in a container of Azure Blob Storage."""

    scheme: Literal["s3", "gs", "az"]
    bucket: str
    key: str

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The whole address as a recipe has it."""
        return f"{self.scheme}://{self.bucket}/{self.key}"

    @property
    def path(self) -> str:
        """Where the object lies in its bucket."""
        return self.key

    def beside(self, location: str) -> ObjectAddress:
        """The address of the object at `location`, relative to the folder of this one."""
        return replace(self, key=_beside(self.key, location))


@dataclass(frozen=True)
class HubAddress:
    """A file in a model repository of the Hugging Face Hub, at a revision: a branch, a tag or a commit."""

    repository: str
    file: str
    revision: str

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The whole address as a recipe has it."""
        return f"hf://{self.repository}/{self.file}@{self.revision}"

    @property
    def path(self) -> str:
        """Where the file lies in its repository."""
        return self.file

    def beside(self, location: str) -> HubAddress:
        """The address of the file at `location`, relative to the folder of this one, at the same revision."""
        return replace(self, file=_beside(self.file, location))


Address = WebAddress | ObjectAddress | HubAddress


def is_remote(path: str) -> bool:
    """Whether a model's path is an address, good or bad, and not a path."""
    return _SCHEME.match(path) is not None


def is_immutable(address: Address) -> bool:
    """Whether the address alone says which bytes are meant: only a commit of the hub does."""
    return isinstance(address, HubAddress) and _COMMIT.fullmatch(address.revision) is not None


def file_name(address: Address) -> str:
    """A name for the file here, on every platform."""
    return _NO_FILE_NAME.sub("_", address.path.rpartition("/")[2])


def parse_address(text: str) -> Address:
    """The address that `text` is. Raises BadAddress."""
    found = _SCHEME.match(text)
    scheme = found[1] if found else ""
    if scheme not in _FORMS:
        known = ", ".join(f"{name}://" for name in _FORMS)
        raise BadAddress(f"'{scheme or text}' is no way to fetch a model: the address must begin with one of {known}.")
    if not text.isprintable() or " " in text:
        raise BadAddress(f"The address {text!r} has a space or a control character; write it as %20 or the like.")
    rest = text[len(scheme) + 3 :]
    match scheme:
        case "s3" | "gs" | "az":
            return _object(text, scheme, rest)
        case "hf":
            return _hub(text, rest)
        case _:
            return _web(text)


def _web(text: str) -> WebAddress:
    try:
        parts = urlsplit(text)
        reachable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        reachable = False
    if not reachable:
        raise _malformed(text, "https", "it has no proper host")
    if "@" in parts.netloc:
        host = parts.netloc.rpartition("@")[2]
        raise BadAddress(f"The address of a model on {host} holds a user name or a password, which do not belong in a recipe.")
    if "#" in text:
        raise _malformed(text, "https", "what follows '#' names no file")
    if not text.isascii():
        raise _malformed(text, "https", "letters outside ASCII must be written with %")
    _check_path(text, "https", unquote(parts.path).removeprefix("/"))
    return WebAddress(text)


def _object(text: str, scheme: Literal["s3", "gs", "az"], rest: str) -> ObjectAddress:
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise _malformed(text, scheme, "it names no bucket")
    _check_path(text, scheme, key)
    return ObjectAddress(scheme, bucket, key)


def _hub(text: str, rest: str) -> HubAddress:
    place, at, revision = rest.rpartition("@")
    if not at or not revision:
        raise _malformed(text, "hf", "it names no revision")
    parts = place.split("/")
    if len(parts) < 3:
        raise _malformed(text, "hf", "it names no file in a repository")
    if any(not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", part) for part in parts[:2]):
        raise _malformed(text, "hf", f"no repository is named '{'/'.join(parts[:2])}'")
    file = "/".join(parts[2:])
    _check_path(text, "hf", file)
    return HubAddress("/".join(parts[:2]), file, revision)


def _check_path(text: str, scheme: str, path: str) -> None:
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise _malformed(text, scheme, "it names no file: a part of its path is empty, '.' or '..'")


def _malformed(text: str, scheme: str, reason: str) -> BadAddress:
    shown = text.partition("?")[0] if scheme == "https" else text
    return BadAddress(f"The address '{shown}' is malformed: {reason}. It must look like {_FORMS[scheme]}.")


def _beside(path: str, location: str) -> str:
    return str(PurePosixPath(path).parent / location)
