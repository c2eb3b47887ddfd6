"""Repackaging: embed, extract or rename the contexts of compiled models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from epbuild.catalog.entries import EpEntry
from epbuild.core.digest import hash_file
from epbuild.core.errors import ChangeRefused, Problem, VerifyError
from epbuild.core.safepath import BadReference, check_reference, resolve_links
from epbuild.core.shown import format_path
from epbuild.onnxfile.edit.compiled import References, find_binary, find_context_weights, find_data, read_compiled
from epbuild.onnxfile.edit.rewrite import PROTOBUF_LIMIT, embed, extract, relink
from epbuild.onnxfile.edit.staging import drafts, make_exists_error, overwrite, publish, split_destination, stage
from epbuild.onnxfile.read.epcontext import EPContextNode
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.payload import Payload
from epbuild.onnxfile.read.weights_files import FindEp, name_weights

Packaging = Literal["embed", "extract", "rename"]
"""Kind of change. `embed` an external context, `extract` an embedded context, or `rename` or move a context binary."""

# Upper limit for the growth of the lengths of all fields that enclose a context.
_LENGTHS = 1024


class Repackaged(Struct, frozen=True):
    """Files of repackaged models."""

    models: tuple[Path, ...]
    binaries: tuple[Path, ...]
    """Context binaries that the models now refer to, with the weights files beside them."""
    removed: tuple[Path, ...] = ()
    """Files of contexts that were removed, because no model in their folder still refers to them."""
    kept: tuple[Path, ...] = ()
    """Files of contexts that were kept, because `unreadable` files beside them may refer to them."""
    unreadable: tuple[Path, ...] = ()


class _Model(Struct, frozen=True):
    """Compiled model with one context. `binary` is the context's file, or None if the model embeds the context."""

    path: Path
    header: ModelHeader
    node: EPContextNode
    binary: Path | None
    ep: EpEntry | None
    weights: str | None
    """Reference to the file that contains the context's weights. None if there is none."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of the context."""
        weights = self.path.parent / self.weights if self.weights is not None else None
        return tuple(path for path in (weights, self.binary) if path is not None)

    def digest(self) -> str:
        embedded = Payload(self.path, *(self.node.payload or (0, 0)))
        return (Payload.whole(self.binary) if self.binary is not None else embedded).sha256()


class _Draft(Struct, frozen=True):
    """New form of a model: the names of the model, its context binary and the context's weights file in their folder.

    The binary's name is None if the model embeds its context.
    """

    old: _Model
    name: str
    reference: str | None
    weights: str | None

    @property
    def references(self) -> tuple[str, ...]:
        return tuple(name for name in (self.weights, self.reference) if name is not None)


def repackage(
    models: Sequence[Path], packaging: Packaging, *, binary: str | None, destination: Path | None, find_ep: FindEp
) -> Repackaged:
    """Embed, extract or rename the contexts of `models`. Each model has its own context, or all models share one.

    `binary` is the new reference, relative to the models' folder. If it is None, an extracted context is named after its
    model. The weights file of a context moves with it. `destination` is a folder for the results or, if it ends in `.onnx`,
    the file of a single result. If it is None, the models are changed in place, and the files of a context are removed if no
    model beside them still refers to them. Every byte outside the context stays the same.

    Raises ChangeRefused (EPB620 to EPB624, EPB626) if the change is impossible or the EP would not load the result. Raises
    VerifyError (EPB600, EPB602, EPB605) if a model is incomplete. In both cases, nothing was changed. After an OSError
    during an in-place change, each model is either old or new, and has its context binary.
    """
    opened = [_open(path, packaging, find_ep) for path in dict.fromkeys(models)]
    folder = _find_folder(opened)
    if binary is not None:
        _check_name(binary)
    unreadable = _check_sharing(opened, packaging, binary)
    target, file_name = split_destination(destination, folder)
    new = []
    for model in opened:
        name = file_name or model.path.name
        reference = None if packaging == "embed" else binary or f"{PurePosixPath(name).stem}.bin"
        new.append(_Draft(model, name, reference, _name_new_weights(model, reference)))
    _check_names(new, target, in_place=destination is None)
    references = list(dict.fromkeys(reference for draft in new for reference in draft.references))
    names = [] if destination is None else [draft.name for draft in new]
    with drafts(target, [*references, *names]) as draft_folder:
        for draft in new:
            _write(draft, draft_folder, packaging, in_place=destination is None)
            _check_draft(draft, draft_folder)
        if destination is not None:
            data = _stage_data(new, draft_folder) if resolve_links(target) != resolve_links(folder) else []
            publish(draft_folder, target, [*references, *data, *names])
        else:
            publish(draft_folder, target, references)
            for draft in new:
                overwrite(draft_folder, target, draft.name)
    paths = tuple(target / draft.name for draft in new), tuple(target / reference for reference in references)
    if destination is not None:
        return Repackaged(*paths)
    unused = tuple(dict.fromkeys(file for model in opened for file in model.files))
    if unreadable:
        return Repackaged(*paths, kept=unused, unreadable=unreadable)
    for path in unused:
        path.unlink()
        for parent in path.parents:
            if parent != folder and parent.is_relative_to(folder):
                with suppress(OSError):  # The folder is not empty.
                    parent.rmdir()
    return Repackaged(*paths, removed=unused)


def _locate_context(path: Path, header: ModelHeader, node: EPContextNode, ep: EpEntry | None) -> _Model:
    """Return a model with the files of the context of `node`. Raises VerifyError if a file is missing."""
    binary = find_binary(path, node) if node.reference is not None else None
    return _Model(path, header, node, binary, ep, find_context_weights(path, node, ep))


def _open(path: Path, packaging: Packaging, find_ep: FindEp) -> _Model:
    header = read_compiled(path)
    embedded = [node for node in header.ep_context_nodes if node.payload is not None]
    referring = [node for node in header.ep_context_nodes if node.reference is not None]
    if packaging == "extract" and not embedded:
        raise ChangeRefused(Problem("EPB620", f"{format_path(path)} has no embedded context to extract"))
    if packaging != "extract" and not referring:
        raise ChangeRefused(Problem("EPB620", f"{format_path(path)} refers to no context binary: its context is embedded"))
    contexts = [*dict.fromkeys(node.reference for node in referring), *embedded]
    if len(contexts) > 1:
        kinds = [*(str(node.reference) for node in referring), *("an embedded one" for _ in embedded)]
        message = f"{format_path(path)} has {len(contexts)} contexts ({', '.join(dict.fromkeys(kinds))}); only one can be changed"
        raise ChangeRefused(Problem("EPB621", message))
    if packaging == "embed" and len(referring) > 1:
        users = f"{len(referring)} nodes of {format_path(path)} refer to {referring[0].reference}"
        raise ChangeRefused(Problem("EPB621", f"{users}, but EPs load only one embedded context per model"))
    node = (referring or embedded)[0]
    model = _locate_context(path, header, node, find_ep(node.source))
    if packaging == "embed" and model.weights is not None:
        files = f"{node.reference} and {model.weights}"
        message = f"the context of {format_path(path)} is in two files, {files}, but a model can embed only one"
        raise ChangeRefused(Problem("EPB626", message, None, "Keep both files beside the model."))
    if packaging == "embed" and model.binary is not None:
        size = path.stat().st_size + model.binary.stat().st_size
        if size > PROTOBUF_LIMIT - _LENGTHS:
            large = f"{format_path(path)} with its context embedded would have {size:,} bytes"
            raise ChangeRefused(Problem("EPB623", f"{large}, but readers do not support models over 2 GiB"))
    return model


def _name_new_weights(model: _Model, reference: str | None) -> str | None:
    """Return the name of the weights file for a context that is renamed to `reference`. Raises ChangeRefused (EPB624)."""
    if model.weights is None or reference is None:
        return None
    name = name_weights(reference, model.ep)
    if name is None:
        suffix = PurePosixPath(str(model.node.reference)).suffix
        why = f"because the EP finds the weights in {PurePosixPath(model.weights).name} by this name"
        raise ChangeRefused(Problem("EPB624", f"'{reference}' must end in '{suffix}', {why}"))
    return name


def _find_folder(models: Sequence[_Model]) -> Path:
    folders = list(dict.fromkeys(resolve_links(model.path.parent) for model in models))
    if len(folders) > 1:
        where = f"the models are in different folders ({', '.join(map(format_path, folders))})"
        raise ChangeRefused(Problem("EPB622", f"{where}, but one command can change only models in the same folder"))
    return models[0].path.parent


def _check_name(reference: str) -> None:
    try:
        check_reference(reference)
    except BadReference as error:
        raise ChangeRefused(Problem("EPB624", str(error))) from error
    if reference.rsplit("/", maxsplit=1)[-1] in {"", "."}:
        raise ChangeRefused(Problem("EPB624", f"'{reference}' is a folder; add the file name of the context binary"))


def _check_sharing(models: Sequence[_Model], packaging: Packaging, binary: str | None) -> tuple[Path, ...]:
    """Reject changing a shared context for only some of its models. Return the unreadable files beside the binaries."""
    users: dict[str, list[_Model]] = {}
    for model in models:
        if model.binary is not None:
            users.setdefault(os.path.realpath(model.binary), []).append(model)
    references, unreadable = References(), dict[Path, None]()
    for sharing in users.values():
        name, named, folder = str(sharing[0].node.reference), [model.path for model in sharing], sharing[0].path.parent
        known = {os.path.realpath(path) for path in named}
        others = [path for path in references.find_users(folder / name, folder) if os.path.realpath(path) not in known]
        unreadable.update(dict.fromkeys(references.find_unreadable(folder / name, folder)))
        if packaging == "embed" and len(named) + len(others) > 1:
            listed = ", ".join(path.name for path in (*named, *others))
            message = f"{name} is shared by {listed}, but EPs do not load a shared context that is embedded"
            raise ChangeRefused(Problem("EPB622", message))
        if others:
            listed = ", ".join(path.name for path in others)
            message = f"{name} is also used by {listed}; changing only {named[0].name} would end the sharing"
            raise ChangeRefused(Problem("EPB622", message, None, "Pass all models that share it, or their folder."))
    if binary is not None and (len(users) > 1 or (packaging == "extract" and len(models) > 1)):
        message = f"the {len(models)} models have different contexts, but only one can have the name {binary}"
        raise ChangeRefused(Problem("EPB622", message, None, "Run the command for each model separately."))
    return tuple(unreadable)


def _check_names(new: Sequence[_Draft], target: Path, *, in_place: bool) -> None:
    for draft in new:
        for name in draft.references if in_place else (draft.name, *draft.references):
            if os.path.lexists(target / name):
                raise make_exists_error(target / name)
            if name == draft.name and name in draft.references:
                raise ChangeRefused(Problem("EPB624", f"{name} cannot be the name of both the model and its context binary"))
        for name in draft.references:
            if name in draft.old.header.external_data:
                message = f"{name} is external data of {format_path(draft.old.path)} and must not be replaced"
                raise ChangeRefused(Problem("EPB624", message))
        if in_place and draft.old.path.is_symlink():
            message = f"{format_path(draft.old.path)} is a link, which a change in place would replace"
            raise ChangeRefused(Problem("EPB624", message, None, "Pass the path of the file itself."))


def _write(draft: _Draft, folder: Path, packaging: Packaging, *, in_place: bool) -> None:
    old = draft.old
    binary = folder / draft.reference if draft.reference is not None else None
    if binary is not None:
        binary.parent.mkdir(parents=True, exist_ok=True)
    if packaging == "embed" and old.binary is not None:
        embed(old.path, folder / draft.name, old.binary)
    elif packaging == "extract" and binary is not None and draft.reference is not None:
        extract(old.path, folder / draft.name, binary, draft.reference)
    elif binary is not None and old.binary is not None and draft.reference is not None:
        if not binary.exists():
            stage(old.binary, binary, link=in_place)
            if old.weights is not None and draft.weights is not None:
                stage(old.path.parent / old.weights, folder / draft.weights, link=in_place)
        relink(old.path, folder / draft.name, {str(old.node.reference): draft.reference})


def _check_draft(draft: _Draft, folder: Path) -> None:
    """Raise VerifyError unless the result has the old context and is otherwise unchanged."""
    path, old = folder / draft.name, draft.old
    header = read_header(path)
    nodes = [node for node in header.ep_context_nodes if node.payload is not None or node.reference is not None]
    new = _locate_context(path, header, nodes[0], old.ep)
    linked = new.binary is not None and old.binary is not None and new.binary.samefile(old.binary)
    if {node.reference for node in nodes} != {draft.reference} or _strip_context(header) != _strip_context(old.header):
        difference = "differs in more than its context"
    elif not _has_same_weights(new, draft) or (not linked and new.digest() != old.digest()):
        difference = "has a different context"
    else:
        return
    raise VerifyError(Problem("EPB629", f"the result for {format_path(old.path)} {difference}; nothing was changed"))


def _has_same_weights(new: _Model, draft: _Draft) -> bool:
    old = draft.old
    if new.weights != draft.weights or new.weights is None or old.weights is None:
        return new.weights == draft.weights
    file, other = new.path.parent / new.weights, old.path.parent / old.weights
    return file.samefile(other) or hash_file(file) == hash_file(other)


def _strip_context(header: ModelHeader) -> ModelHeader:
    declared = header.declarations
    nodes = tuple(replace(node, reference=None, payload=None, embed_mode=0) for node in declared.ep_context_nodes)
    return replace(declared, ep_context_nodes=nodes)


def _stage_data(new: Sequence[_Draft], draft_folder: Path) -> list[str]:
    """Copy the models' external data for a new folder, where it must be beside the models. Return the names of the files."""
    locations = dict.fromkeys(location for draft in new for location in draft.old.header.external_data)
    for location in locations:
        stage(find_data(new[0].old.path, location), draft_folder / location, link=False)
    return list(locations)
