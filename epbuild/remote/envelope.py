"""The signed envelope of a record, and every reason why one is not usable.

An envelope is canonical JSON, `{format, kind, key, record, by, signature}`: the signature, by the key `by`, is over all but itself. It is
the standard output of a result as the Remote Execution API has it, which lists the files of the record; so servers that know that API
look after both. Nothing of a record is believed before its signature has been checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from enum import StrEnum
from typing import Any

from msgspec import Struct

from epbuild.core.canonical import canonical_json
from epbuild.core.digest import Blob
from epbuild.core.safepath import BadReference, check_reference, unportable
from epbuild.remote.keys import SigningKey, is_signed
from epbuild.remote.reapi import MalformedMessage, ReapiFile, ReapiResult

FORMAT = 1
MOST_BYTES = 16 << 20
"""What a record may come to, with its envelope."""

_WORKER = "epbuild"


class Reason(StrEnum):
    """Why a record is not usable."""

    MALFORMED = "it is damaged, or no record of epbuild's"
    TOO_LARGE = "it is larger than any record"
    UNSIGNED = "it is not signed"
    UNTRUSTED = "it is signed by a key that the recipe does not trust"
    BAD_SIGNATURE = "its signature does not hold"
    OTHER_KEY = "it is the record of another key"
    OTHER_KIND = "it is a record of another kind"
    WRONG_SHAPE = "it is not of the shape that this epbuild reads"
    UNSAFE_NAME = "a file in it has a name that could do harm"
    UNLISTED = "a file in it is not listed with it"


class RecordKind(Struct, frozen=True):
    """A kind of record, and what has to be known of it: the key that a record is for, its shape, and its blobs."""

    name: str
    key: Callable[[Mapping[str, Any]], str]
    """The key of a record of the right shape, by what is in it."""
    is_sound: Callable[[Mapping[str, Any]], bool]
    """Whether a record has the shape that its readers rely on."""
    files: Callable[[Mapping[str, Any]], Mapping[str, Blob]]
    """The files of a record of the right shape, by name."""
    log: Callable[[Mapping[str, Any]], Blob | None] = lambda record: None
    is_result: bool = True
    """Whether it is what an action came to, which statistics count."""


class RemoteRecord(Struct, frozen=True):
    """A record that may be used: it is what a trusted key signed for its key."""

    key: str
    record: Mapping[str, Any]
    files: Mapping[str, Blob]
    log: Blob | None
    by: str

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The contents of its files, each once."""
        return tuple(dict.fromkeys(self.files.values()))


class Unusable(Struct, frozen=True):
    """A record that is there and is not used."""

    reason: Reason
    by: str = ""
    """The key that it names as its signer's, if it does."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.by}" if self.by else str(self.reason)


def seal(kind: RecordKind, key: str, record: Mapping[str, Any], signer: SigningKey) -> bytes:
    """A record, signed, as it is put on a server. Raises ValueError for one that could not be read back."""
    content = {"format": FORMAT, "kind": kind.name, "key": key, "record": record, "by": signer.public}
    envelope = {**content, "signature": signer.sign(_signed(content))}
    files = tuple(ReapiFile(name, blob) for name, blob in sorted(kind.files(record).items()))
    data = ReapiResult(files, canonical_json(envelope).encode(), kind.log(record), _WORKER).encode()
    found = unseal(data, kind, key, frozenset((signer.public,)))
    if isinstance(found, Unusable):
        raise ValueError(str(found))  # noqa: TRY004 - it is the value that is wrong
    return data


def unseal(data: bytes, kind: RecordKind, key: str, trust: Set[str] | None) -> RemoteRecord | Unusable | None:
    """The record in bytes from a server; None for one of a format that only another epbuild knows. `trust`: None is any key."""
    if len(data) > MOST_BYTES:
        return Unusable(Reason.TOO_LARGE)
    try:
        result = ReapiResult.decode(data)
        envelope = json.loads(result.stdout)
    except (MalformedMessage, ValueError, RecursionError):
        return Unusable(Reason.MALFORMED)
    match envelope:
        case {"format": int(version)} if version != FORMAT and not isinstance(version, bool):
            return None
        case {
            "format": 1,
            "kind": str(name),
            "key": str(written),
            "record": dict(record),
            "by": str(by),
            "signature": str(signature),
        }:
            pass
        case {"format": 1, "record": _}:
            return Unusable(Reason.UNSIGNED)
        case _:
            return Unusable(Reason.MALFORMED)
    if trust is not None and by not in trust:
        return Unusable(Reason.UNTRUSTED, by if by.isascii() and by.isprintable() and len(by) < 100 else "")
    try:
        holds = is_signed(_signed({part: value for part, value in envelope.items() if part != "signature"}), signature, by)
    except (ValueError, RecursionError):  # what Python reads and no canonical JSON can hold: NaN, lone surrogates
        holds = False
    if not holds:
        return Unusable(Reason.BAD_SIGNATURE)
    if name != kind.name:
        return Unusable(Reason.OTHER_KIND)
    return _meant(kind, key, written, RemoteRecord(key, record, {}, None, by), result)


def _meant(kind: RecordKind, key: str, written: str, found: RemoteRecord, result: ReapiResult) -> RemoteRecord | Unusable:
    """What was signed, if it is what was asked for, and can be used without harm."""
    if not kind.is_sound(found.record):
        return Unusable(Reason.WRONG_SHAPE)
    if written != key or kind.key(found.record) != key:
        return Unusable(Reason.OTHER_KEY)
    files = kind.files(found.record)
    if not all(map(_is_safe, files)):
        return Unusable(Reason.UNSAFE_NAME)
    listed = {file.path: file.blob for file in result.files}
    if any(listed.get(name) != blob for name, blob in files.items()):
        return Unusable(Reason.UNLISTED)
    return RemoteRecord(key, found.record, files, kind.log(found.record), found.by)


def _signed(content: Mapping[str, Any]) -> bytes:
    return canonical_json(content).encode()


def _is_safe(name: str) -> bool:
    """Whether a name is that of a file in the folder of a result, on every platform."""
    try:
        check_reference(name)
    except BadReference:
        return False
    return unportable(name) is None and all(part not in ("", ".") for part in name.split("/"))
