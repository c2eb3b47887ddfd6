"""`ActionRequest`: an action as JSON that another machine can execute.

It names nothing of the machine that asks: files go by their digests, and are fetched from the remote cache; EPs by the digests of their
catalog entries; places in the recipe by the names of its files. What the other machine makes of it has to come to the same key, so
that a mistake on the way ends in a refusal, never in a wrong result.
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
from epbuild.core.digest import Blob
from epbuild.core.errors import Position
from epbuild.core.typed_json import Forms, MalformedJson, from_json, to_json
from epbuild.plan.made import Made
from epbuild.plan.member import Member
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import CompileResult
from epbuild.plan.steps import Action, InTarget, SessionGroup
from epbuild.plan.target import PlannedTarget
from epbuild.plan.verification import CheckedMember, Verification
from epbuild.recipe.model import ModelSpec, ToolchainSpec
from epbuild.toolchain.lock_facts import LockedEnvironment

T = TypeVar("T")

FORMAT = 1

_KINDS: Mapping[str, type] = {"prepare": Preparation, "compile": SessionGroup, "verify": Verification}


class NotForOthers(ValueError):
    """An action can only be executed on this machine; the text is why, as a clause."""


class ActionRequest(Struct, frozen=True):
    """An action that is complete in itself: its files are blobs, which the remote cache has."""

    key: str
    step: str
    """What its progress is reported for."""
    kind: str
    action: Mapping[str, Any]
    files: tuple[Blob, ...]
    """All that it reads."""
    environment: LockedEnvironment | None = None
    """What its toolchain holds on the platform that it is for; None: what the installer chooses for the toolchain's packages."""
    memory: int = 0
    """The bytes of memory that it is expected to take."""
    seconds: float = 0.0
    """The time that it is expected to take: of several that could begin, the longest goes first."""
    format: int = FORMAT

    @property
    def text(self) -> str:
        """The request as it is sent: JSON."""
        return json.dumps(to_json(self), sort_keys=True, separators=(",", ":"))


def read_request(text: str) -> ActionRequest:
    """A request that was sent. Raises MalformedJson."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedJson("the request is not JSON") from error
    if not isinstance(document, dict) or document.get("format", FORMAT) != FORMAT:
        raise MalformedJson("the request has another format")
    return from_json(ActionRequest, document)


def files_of(action: Action) -> tuple[Path, ...]:
    """The files that another machine needs to execute an action, each once."""
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
    """The request for an action: `digests` are the SHA-256 of its files, `artifacts` what it takes of other actions' results.

    Raises NotForOthers, and OSError where a file cannot be looked at.
    """
    kind = next(name for name, known in _KINDS.items() if known is type(action))
    if (reason := only_here(action)) is not None:
        raise NotForOthers(reason)
    files = {blob.digest: blob for blob in artifacts}
    files.update((digest, Blob(digest, path.stat().st_size)) for path, digest in digests.items() if digest not in files)
    document = written(_without_paths(action), digests)
    return ActionRequest(key, action.steps[0], kind, document, tuple(files.values()), environment)


def action_of(request: ActionRequest, store: BlobStore) -> Action:
    """The action that is asked for, whose files lie in a store, once they are there. Raises MalformedJson."""
    kind = _KINDS.get(request.kind)
    if kind is None:
        raise MalformedJson(f"there is no kind of action '{request.kind}'")
    action: Action = received(kind, request.action, store)
    return action


def written(value: object, digests: Mapping[Path, str]) -> Any:
    """A value as JSON that names nothing of this machine: files go by their `digests`."""
    return to_json(value, _Written(digests))


def received(kind: type[T], document: object, store: BlobStore) -> T:
    """What was written as such a document, with files where a store has them. Raises MalformedJson."""
    return from_json(kind, document, _Read(store.root, store))


_TYPES = (Path, EpEntry, Position, Made)


@dataclass(frozen=True, eq=False)
class _Written(Forms):
    """Files as digests, EPs as names, places without folders, session groups with what they came to."""

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
class _Read(Forms):
    """The same back, on a machine that has the files in its store."""

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
    """Why an action can be executed on this machine alone, as a clause: it depends on what cannot be sent. None where it does not."""
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
    """An action without what only its planning needs, and what would name the user's folders."""
    match action:
        case Preparation():
            return replace(action, model=_sent_model(action.model), toolchain=sent_toolchain(action.toolchain), folders=())
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
    return replace(target, toolchain=sent_toolchain(target.toolchain))


def sent_toolchain(toolchain: ToolchainSpec) -> ToolchainSpec:
    """A toolchain without what would name the user's folders."""
    return replace(toolchain, custom_ops=())  # which what runs in it has of its own


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
    """Of the member, only what it is compared with is asked of it."""
    source = checked.source
    member = None if checked.member is None else replace(_sent_member(checked.member), compiled_from=None, original=source)
    return replace(checked, member=member)
