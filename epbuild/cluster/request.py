"""`ActionRequest`: an action as JSON that another machine can execute.

It names nothing of the sending machine: files are named by their digests, and are fetched from the remote cache; EPs by the digests of
their catalog entries; positions in the recipe by the names of its files. The other machine must compute the same key: a mistake on the
way ends in a refusal, never in a wrong result.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import MissingBlob
from epbuild.catalog.catalog import entries_for
from epbuild.catalog.entries import EpEntry
from epbuild.core.digest import Blob, document_digest
from epbuild.core.errors import Position
from epbuild.core.typed_json import Forms, MalformedJson, from_json, to_json
from epbuild.plan.made import Made
from epbuild.plan.member import Member
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import CompileResult
from epbuild.plan.steps import Action, InTarget, SessionGroup, ToolchainNeeds
from epbuild.plan.target import PlannedTarget
from epbuild.plan.verification import CheckedMember, Verification
from epbuild.recipe.model import ModelSpec, ToolchainSpec
from epbuild.toolchain.lock import LockedEnvironment

T = TypeVar("T")

FORMAT = 1
TOOLCHAIN_KIND = "toolchain"
"""Kind of a request for the records of a toolchain, which is no action."""

_KINDS: Mapping[str, type] = {"prepare": Preparation, "compile": SessionGroup, "verify": Verification}


class LocalOnlyError(ValueError):
    """Action that only this machine can execute; the text is the reason, as a clause."""


class ActionRequest(Struct, frozen=True):
    """Self-contained action: its files are blobs in the remote cache."""

    key: str
    step: str
    """Step that its progress is reported for."""
    kind: str
    action: Mapping[str, Any]
    files: tuple[Blob, ...]
    """All files that it reads."""
    environment: LockedEnvironment | None = None
    """Locked content of its toolchain; None: the installer chooses versions."""
    memory: int = 0
    """Expected memory in bytes."""
    seconds: float = 0.0
    """Expected time. The longest action starts first."""
    format: int = FORMAT

    @property
    def text(self) -> str:
        """The request as it is sent: JSON."""
        return json.dumps(to_json(self), sort_keys=True, separators=(",", ":"))


def read_request(text: str) -> ActionRequest:
    """Return the request in a text. Raises MalformedJson."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedJson("the request is not JSON") from error
    if not isinstance(document, dict) or document.get("format", FORMAT) != FORMAT:
        raise MalformedJson("the request has another format")
    return from_json(ActionRequest, document)


def files_of(action: Action) -> tuple[Path, ...]:
    """Return the distinct files that another machine needs to execute an action."""
    if not isinstance(action, Verification):
        return action.files
    compiled = (path for item in action.compiled for path in item.group.files)
    return tuple(dict.fromkeys((*action.files, *compiled)))


def request_of(
    action: Action,
    key: str,
    digests: Mapping[Path, str],
    artifacts: Iterable[Blob] = (),
    environment: LockedEnvironment | None = None,
) -> ActionRequest:
    """Return the request for an action: `digests` has the SHA-256 of its files, `artifacts` its inputs from other actions.

    Raises LocalOnlyError, and OSError if a file cannot be read.
    """
    kind = next(name for name, known in _KINDS.items() if known is type(action))
    if (reason := only_here(action)) is not None:
        raise LocalOnlyError(reason)
    files = {blob.digest: blob for blob in artifacts}
    files.update((digest, Blob(digest, path.stat().st_size)) for path, digest in digests.items() if digest not in files)
    document = encode(_without_paths(action), digests)
    return ActionRequest(key, action.steps[0], kind, document, tuple(files.values()), environment)


class AskedToolchain(Struct, frozen=True):
    """Locked toolchain, and the keys of its records."""

    toolchain: ToolchainSpec
    entries: tuple[EpEntry, ...]
    records: tuple[str, ...]
    packages: Mapping[str, Position] = field(default_factory=dict)


def toolchain_request(needs: ToolchainNeeds, locked: LockedEnvironment, records: Iterable[str]) -> ActionRequest:
    """Return the request for the records of a toolchain, whose keys its lock decides."""
    asked = AskedToolchain(_sent_toolchain(needs.toolchain), needs.entries, tuple(sorted(records)), needs.packages)
    key = document_digest({"kind": TOOLCHAIN_KIND, "records": list(asked.records)})
    return ActionRequest(key, needs.toolchain.name, TOOLCHAIN_KIND, encode(asked, {}), (), locked)


def asked_toolchain(request: ActionRequest, store: BlobStore) -> AskedToolchain:
    """Return the requested toolchain. Raises MalformedJson."""
    return _decode(AskedToolchain, request.action, store)


def action_of(request: ActionRequest, store: BlobStore) -> Action:
    """Return the requested action, with its files at their paths in the store. Raises MalformedJson."""
    kind = _KINDS.get(request.kind)
    if kind is None:
        raise MalformedJson(f"there is no kind of action '{request.kind}'")
    action: Action = _decode(kind, request.action, store)
    return action


def encode(value: object, digests: Mapping[Path, str]) -> Any:
    """Return a value as JSON without paths of this machine: files are named by their `digests`."""
    return to_json(value, _Encoder(digests))


def _decode(kind: type[T], document: object, store: BlobStore) -> T:
    """Return the value of such a document, with files at their paths in the store. Raises MalformedJson."""
    return from_json(kind, document, _Decoder(store.root, store))


_TYPES = (Path, EpEntry, Position, Made)


@dataclass(frozen=True, eq=False)
class _Encoder(Forms):
    """Forms for sending: files as digests, EPs as names, positions without folders, session groups with their results."""

    digests: Mapping[Path, str]
    types = _TYPES

    def write(self, value: Any) -> Any:
        if isinstance(value, Path):
            return self.digests[value]
        if isinstance(value, EpEntry):
            return [value.ep, value.digest]
        if isinstance(value, Made):
            group = to_json(_sent_group(value.group), self)
            return {"group": group, "key": value.key, "document": value.document, "result": to_json(value.compiled)}
        return [Path(value.file).name, value.line, value.column]

    def read(self, kind: type, value: object) -> Any:
        raise MalformedJson(str(kind))


@dataclass(frozen=True)
class _Decoder(Forms):
    """Forms for reading, on a machine that has the files in its store."""

    root: Path
    store: BlobStore = field(compare=False)
    types = _TYPES

    def write(self, value: Any) -> Any:
        raise TypeError(value)

    def read(self, kind: type, value: object) -> Any:
        match value:
            case str(digest) if kind is Path:
                return self._place(digest)
            case [str(ep), str(digest)] if kind is EpEntry:
                return _entry_of(ep, digest)
            case [str(file), int(line), int(column)] if kind is Position:
                return Position(file, line, column)
            case {"group": group, "key": str(key), "document": dict(document), "result": result} if kind is Made:
                return Made(from_json(SessionGroup, group, self), key, document, from_json(CompileResult, result))
        raise MalformedJson(str(kind))

    def _place(self, digest: str) -> Path:
        try:
            return self.store.place(digest)
        except MissingBlob as error:
            raise MalformedJson(f"no digest of a file: {digest[:80]!r}") from error


def _entry_of(ep: str, digest: str) -> EpEntry:
    try:
        return next(entry for entry in entries_for(ep) if entry.digest == digest)
    except (KeyError, StopIteration):
        raise MalformedJson(f"{ep} is another one here") from None


def only_here(action: Action) -> str | None:
    """Return why only this machine can execute an action, as a clause: it depends on something that cannot be sent. Else None."""
    needs = action.runs_in
    if needs is not None and needs.toolchain.interpreter is not None:
        return "its toolchain is an environment of this machine's"
    if not isinstance(action, InTarget):
        return None
    for ep in action.target.eps:
        if ep.entry.user_file is not None:
            return f"{ep.entry.ep} is described by the catalog file {ep.entry.user_file}"
        if ep.library is not None:
            return f"{ep.entry.ep} is a library of this machine's"
    if any(ops.library is not None for ops in action.custom_ops):
        return "its custom operators are a library of this machine's"
    return None


def _without_paths(action: Action) -> Action:
    """Return an action without planning data and without the names of the user's folders."""
    match action:
        case Preparation():
            return replace(action, model=_sent_model(action.model), toolchain=_sent_toolchain(action.toolchain), folders=())
        case SessionGroup():
            return _sent_group(action)
        case Verification():
            return dataclasses.replace(
                action, members=tuple(map(_sent_check, action.members)), target=_sent_target(action.target)
            )
    raise TypeError(action)


def _sent_group(group: SessionGroup) -> SessionGroup:
    return replace(group, members=tuple(map(_sent_member, group.members)), target=_sent_target(group.target))


def _sent_target(target: PlannedTarget) -> PlannedTarget:
    return replace(target, toolchain=_sent_toolchain(target.toolchain))


def _sent_toolchain(toolchain: ToolchainSpec) -> ToolchainSpec:
    """Return a toolchain without the names of the user's folders."""
    return replace(toolchain, custom_ops=())  # each action has its own


def _sent_member(member: Member) -> Member:
    return replace(member, model=_sent_model(member.model), original=None)


def _sent_model(model: ModelSpec) -> ModelSpec:
    return ModelSpec(
        model.name,
        model.where,
        "",
        model.path_where,
        read=model.read,
        inputs=model.inputs,
        free_dimensions=model.free_dimensions,
        denoted_dimensions=model.denoted_dimensions,
    )


def _sent_check(checked: CheckedMember) -> CheckedMember:
    """Return the check with the member's reference model only."""
    source = checked.source
    member = None if checked.member is None else replace(_sent_member(checked.member), compiled_from=None, original=source)
    return replace(checked, member=member)
