"""`ActionRequest`: an action as JSON that another machine can execute.

A request contains no paths of the sending machine. Files are identified by their digests and fetched from the remote cache. EPs are
identified by the digests of their catalog entries, and positions in the recipe by file name. The executing machine must compute the same
action key, so a mistake in the encoding leads to a refusal, never to a wrong result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, ValidationError, field
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import MissingBlob
from epbuild.catalog.catalog import entries_for, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.core.digest import Blob, hash_document
from epbuild.core.errors import Position
from epbuild.core.records import convert
from epbuild.plan.made import Made
from epbuild.plan.measuring import MeasuredMember, ModelMeasurement
from epbuild.plan.member import Member
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import ActionResult, CompileResult
from epbuild.plan.steps import Action, CopiedModel, InTarget, SessionGroup, ToolchainNeeds
from epbuild.plan.verification import CheckedMember, Verification
from epbuild.recipe.model import ModelSpec, ToolchainSpec
from epbuild.toolchain.lock import LockedEnvironment

T = TypeVar("T")
_Check = TypeVar("_Check", Verification, ModelMeasurement)

FORMAT = 1
TOOLCHAIN_KIND = "toolchain"
"""Kind of a request for the records of a toolchain. Such a request is not an action."""

_KINDS: Mapping[type, str] = {
    Preparation: "prepare",
    SessionGroup: "compile",
    Verification: "verify",
    ModelMeasurement: "measure",
}

_LOCAL_FIELDS: Mapping[type, frozenset[str]] = {
    MeasuredMember: frozenset({"growth", "baseline"}),
    Member: frozenset({"original", "beginning"}),
    ModelSpec: frozenset(ModelSpec.__struct_fields__)
    - {"name", "where", "path", "path_where", "load_from", "input_shapes", "dimensions"},
    Preparation: frozenset({"beginning"}),
    **dict.fromkeys((SessionGroup, CopiedModel), frozenset({"baseline"})),
    ToolchainSpec: frozenset({"custom_ops"}),  # each action has its own custom operators
}
"""Fields that are not sent. They contain planning data, or paths of the user's folders."""


class LocalOnlyError(ValueError):
    """Error for an action that only this machine can execute. The message is the reason, as a clause."""


class ActionRequest(Struct, frozen=True):
    """Request to execute an action. It is self-contained: the action's files are blobs in the remote cache."""

    key: str
    step: str
    """Step for which progress is reported."""
    kind: str
    action: Mapping[str, Any]
    files: tuple[Blob, ...]
    """All files that the action reads."""
    environment: LockedEnvironment | None = None
    """Locked packages of the toolchain, or None if the installer chooses the versions."""
    memory: int = 0
    """Expected memory use in bytes."""
    seconds: float = 0.0
    """Expected duration. The longest action starts first."""
    format: int = FORMAT

    @property
    def text(self) -> str:
        """The request as JSON text, as it is sent."""
        # json, not msgspec: names of staged files need not be UTF-8.
        return json.dumps(msgspec.to_builtins(self), separators=(",", ":"))


def read_request(text: str) -> ActionRequest:
    """Parse the JSON text of a request. Raises ValidationError."""
    try:
        request = convert(json.loads(text), ActionRequest)
    except (ValueError, RecursionError) as error:
        raise ValidationError(str(error)) from error
    if request.format != FORMAT:
        raise ValidationError("the request has an unsupported format")
    return request


def list_files(action: Action) -> tuple[Path, ...]:
    """Return the distinct files that another machine needs to execute an action."""
    if not isinstance(action, Verification | ModelMeasurement):
        return action.files
    compiled = (path for item in action.compiled for path in item.group.files)
    return tuple(dict.fromkeys((*action.files, *compiled)))


def build_request(
    action: Action,
    key: str,
    digests: Mapping[Path, str],
    artifacts: Iterable[Blob] = (),
    environment: LockedEnvironment | None = None,
) -> ActionRequest:
    """Return the request for an action.

    `digests` has the SHA-256 of the action's files, and `artifacts` are its inputs from other actions. Raises LocalOnlyError, and OSError
    if a file cannot be read.
    """
    if (reason := find_local_reason(action)) is not None:
        raise LocalOnlyError(reason)
    files = {blob.digest: blob for blob in artifacts}
    files.update((digest, Blob(digest, path.stat().st_size)) for path, digest in digests.items() if digest not in files)
    document = encode(action, digests)
    return ActionRequest(key, action.steps[0], _KINDS[type(action)], document, tuple(files.values()), environment)


class AskedToolchain(Struct, frozen=True):
    """Requested toolchain, with the keys of its records."""

    toolchain: ToolchainSpec
    entries: tuple[EpEntry, ...]
    records: tuple[str, ...]
    packages: Mapping[str, Position] = field(default_factory=dict)


def build_toolchain_request(needs: ToolchainNeeds, locked: LockedEnvironment, records: Iterable[str]) -> ActionRequest:
    """Return the request for the records of a locked toolchain. `records` are their keys."""
    asked = AskedToolchain(needs.toolchain, needs.entries, tuple(sorted(records)), needs.packages)
    key = hash_document({"kind": TOOLCHAIN_KIND, "records": list(asked.records)})
    return ActionRequest(key, needs.toolchain.name, TOOLCHAIN_KIND, encode(asked, {}), (), locked)


def parse_toolchain(request: ActionRequest, store: BlobStore) -> AskedToolchain:
    """Parse the toolchain in a request. Raises ValidationError."""
    names = request.action.get("entries")
    if not isinstance(names, list):
        raise ValidationError("the toolchain of the request has no list of EPs")
    return _decode(AskedToolchain, {**request.action, "entries": [_find_entry(name) for name in names]}, store)


def parse_action(request: ActionRequest, store: BlobStore) -> Action:
    """Parse the action in a request. The action's files get their paths in the store. Raises ValidationError."""
    document = request.action
    match request.kind:
        case "prepare":
            return _decode(Preparation, document, store)
        case "compile":
            return _decode(SessionGroup, _restore_entries(document), store)
        case "verify":
            return _decode_check(Verification, document, store)
        case "measure":
            return _decode_check(ModelMeasurement, document, store)
    raise ValidationError(f"unknown kind of action '{request.kind}'")


def _decode_check(kind: type[_Check], document: Mapping[str, Any], store: BlobStore) -> _Check:
    """Decode an action that runs compiled models, with the results that it needs. Raises ValidationError."""
    compiled = _decode(tuple[_SentResult, ...], _restore_groups(document.get("compiled")), store)
    action = _decode(kind, {**_restore_entries(document), "compiled": []}, store)
    return replace(action, compiled=tuple(sent.made for sent in compiled))


class _SentResult(Struct, frozen=True):
    """Result of a session group, in a request for a verification or a measurement."""

    group: SessionGroup
    key: str
    document: Mapping[str, Any]
    result: CompileResult

    @classmethod
    def of(cls, made: Made) -> _SentResult:
        return cls(made.group, made.key, dict(made.document), made.compiled)

    @property
    def made(self) -> Made:
        return Made(self.group, self.key, self.document, self.result)


def encode(value: object, digests: Mapping[Path, str]) -> Any:
    """Return a value as JSON, without local fields and paths of this machine.

    Files are named by their `digests`, EPs by the digests of their entries.
    """
    match value:
        case None | str() | int() | float():
            return value
        case Path():
            return digests[value]
        case EpEntry():
            return [value.ep, value.digest]
        case Position():
            return [Path(value.file).name, value.line, value.column]
        case Made():
            return encode(_SentResult.of(value), digests)
        case ActionResult():
            return msgspec.to_builtins(value)
        case ModelSpec() if value.path:
            return encode(replace(value, path=""), digests)
        case CheckedMember() if value.member is not None:
            # Of the member's files, only those of the reference model are sent.
            member = encode(replace(value.member, compiled_from=None), digests)
            return {
                **encode(replace(value, member=None), digests),
                "member": {**member, "original": encode(value.source, digests)},
            }
        case Struct():
            names = [name for name in value.__struct_fields__ if name not in _LOCAL_FIELDS.get(type(value), ())]
            return {name: encode(getattr(value, name), digests) for name in names}
        case Mapping():
            return {name: encode(item, digests) for name, item in value.items()}
        case tuple() | list():
            return [encode(item, digests) for item in value]
        case frozenset():
            return sorted(value)
    raise TypeError(value)


def _decode(kind: type[T], document: object, store: BlobStore) -> T:
    """Decode a document that `encode` returned. Files get their paths in the store. Raises ValidationError."""

    def read(kind: type, value: object) -> Path:
        if kind is not Path or not isinstance(value, str):
            raise ValidationError(f"expected the digest of a file, got {value!r:.80}")
        try:
            return store.place(value)
        except MissingBlob as error:
            raise ValidationError(f"not the digest of a file: {value[:80]!r}") from error

    return convert(document, kind, dec_hook=read)


def _restore_entries(document: Any) -> dict[str, Any]:
    """Return the document of an action, with EPs replaced by this machine's catalog entries. Raises ValidationError."""
    match document:
        case {"target": {"eps": list(eps)}} if all(isinstance(ep, dict) for ep in eps):
            found = [{**ep, "entry": _find_entry(ep.get("entry"))} for ep in eps]
            return {**document, "target": {**document["target"], "eps": found}}
    raise ValidationError("the action has no EPs")


def _restore_groups(documents: Any) -> list[dict[str, Any]]:
    match documents:
        case list() if all(isinstance(document, dict) for document in documents):
            return [{**document, "group": _restore_entries(document.get("group"))} for document in documents]
    raise ValidationError("the verification has no results")


def _find_entry(name: Any) -> EpEntry:
    match name:
        case [str(ep), str(digest)]:
            entry = next((entry for entry in entries_for(ep) if entry.digest == digest), None) if ep in known_eps() else None
            if entry is None:
                raise ValidationError(f"the catalog entry of {ep} differs on the worker")
            return entry
    raise ValidationError("expected the name of an EP and the digest of its catalog entry")


def find_local_reason(action: Action) -> str | None:
    """Return why only this machine can execute an action, as a clause. Return None if the action can be sent."""
    needs = action.runs_in
    if needs is not None and needs.toolchain.interpreter is not None:
        return "its toolchain is an environment on this machine"
    if isinstance(action, ModelMeasurement) and action.choice.command:
        return "its command measures on a device of this machine"
    if isinstance(action, Verification) and any(checked.choice.command is not None for checked in action.members):
        return "its command runs models on a device of this machine"
    if isinstance(action, SessionGroup) and not action.compiled:
        return "it copies a file of this machine"
    if not isinstance(action, InTarget):
        return None
    for ep in action.target.eps:
        if ep.entry.user_file is not None:
            return f"{ep.entry.ep} comes from the catalog file {ep.entry.user_file}"
        if ep.library is not None:
            return f"{ep.entry.ep} is a library on this machine"
    if any(ops.library is not None for ops in action.custom_ops):
        return "its custom operators are a library on this machine"
    return None
