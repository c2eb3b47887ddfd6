"""Signed envelope of a record, and all reasons why a record is not usable.

An envelope is canonical JSON: `{format, kind, key, record, by, signature}`. The signature of the key `by` covers all other fields. The
envelope is stored as the standard output of an `ActionResult` of the Remote Execution API, which also lists the files of the record. So
servers that implement the API keep the record and its files together. No part of a record is used before its signature has been verified.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from enum import StrEnum
from typing import Any

from msgspec import Struct

from epbuild.core.canonical import encode_canonical
from epbuild.core.digest import Blob
from epbuild.core.safepath import BadReference, check_reference, find_unportable_part
from epbuild.remote.keys import SigningKey, is_signed
from epbuild.remote.reapi import MalformedMessage, ReapiFile, ReapiResult

FORMAT = 1
MAX_BYTES = 16 << 20
"""Maximum size of a record with its envelope."""

_WORKER = "epbuild"


class Reason(StrEnum):
    """Reason why a record is not usable."""

    MALFORMED = "it is damaged, or not a record of epbuild"
    TOO_LARGE = "it is too large for a record"
    UNSIGNED = "it is not signed"
    UNTRUSTED = "it is signed by a key that the recipe does not trust"
    BAD_SIGNATURE = "its signature is invalid"
    OTHER_KEY = "it is a record for a different key"
    OTHER_KIND = "it is a record of a different kind"
    WRONG_SHAPE = "this release of epbuild does not support its structure"
    UNSAFE_NAME = "one of its files has an unsafe name"
    UNLISTED = "one of its files is missing from its file list"


class RecordKind(Struct, frozen=True):
    """Kind of records, with functions that return the key, the validity and the blobs of a record."""

    name: str
    key: Callable[[Mapping[str, Any]], str]
    """Function that returns the key of a valid record, computed from the record's content."""
    is_sound: Callable[[Mapping[str, Any]], bool]
    """Function that returns whether a record has the shape that readers rely on."""
    files: Callable[[Mapping[str, Any]], Mapping[str, Blob]]
    """Function that returns the files of a valid record, by name."""
    log: Callable[[Mapping[str, Any]], Blob | None] = lambda record: None
    is_result: bool = True
    """True if records of this kind are results of actions. Only results count in the statistics."""


class RemoteRecord(Struct, frozen=True):
    """Usable record, signed by a trusted key for the requested action key."""

    key: str
    record: Mapping[str, Any]
    files: Mapping[str, Blob]
    log: Blob | None
    by: str

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Distinct blobs of the record's files."""
        return tuple(dict.fromkeys(self.files.values()))


class Unusable(Struct, frozen=True):
    """Record that exists but must not be used, with the reason."""

    reason: Reason
    by: str = ""
    """Public key of the signer; empty if the record names no signer."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.by}" if self.by else str(self.reason)


def seal(kind: RecordKind, key: str, record: Mapping[str, Any], signer: SigningKey) -> bytes:
    """Return the signed envelope of a record as bytes. Raises ValueError for a record that readers would reject."""
    content = {"format": FORMAT, "kind": kind.name, "key": key, "record": record, "by": signer.public}
    envelope = {**content, "signature": signer.sign(_encode_signed(content))}
    files = tuple(ReapiFile(name, blob) for name, blob in sorted(kind.files(record).items()))
    data = ReapiResult(files, encode_canonical(envelope).encode(), kind.log(record), _WORKER).encode()
    found = unseal(data, kind, key, frozenset((signer.public,)))
    if isinstance(found, Unusable):
        raise ValueError(str(found))  # noqa: TRY004 - the value is wrong, not its type
    return data


def unseal(data: bytes, kind: RecordKind, key: str, trust: Set[str] | None) -> RemoteRecord | Unusable | None:
    """Return the record from the envelope `data`, or the reason why it is unusable. Return None for another format version.

    `trust` contains the trusted public keys (None: any key is trusted).
    """
    if len(data) > MAX_BYTES:
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
        holds = is_signed(_encode_signed({part: value for part, value in envelope.items() if part != "signature"}), signature, by)
    except (ValueError, RecursionError):  # Python's reader accepts NaN and lone surrogates, which canonical JSON cannot contain
        holds = False
    if not holds:
        return Unusable(Reason.BAD_SIGNATURE)
    if name != kind.name:
        return Unusable(Reason.OTHER_KIND)
    return _check_record(kind, key, written, RemoteRecord(key, record, {}, None, by), result)


def _check_record(kind: RecordKind, key: str, written: str, found: RemoteRecord, result: ReapiResult) -> RemoteRecord | Unusable:
    """Return a signed record with its files. If it is not the requested record, or not safe to use, return the reason."""
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


def _encode_signed(content: Mapping[str, Any]) -> bytes:
    return encode_canonical(content).encode()


def _is_safe(name: str) -> bool:
    """Return whether a name is a relative path inside a folder on every platform."""
    try:
        check_reference(name)
    except BadReference:
        return False
    return find_unportable_part(name) is None and all(part not in ("", ".") for part in name.split("/"))
