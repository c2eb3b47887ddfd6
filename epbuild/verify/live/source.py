"""Sources of compiled models, and whether they are the ones compiled from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import MissingBlob
from epbuild.cache.location import cache_directory
from epbuild.core.digest import file_digest
from epbuild.core.safepath import BadReference, check_reference
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.member import Member, ModelFiles
from epbuild.plan.steps import Plan, SessionGroup
from epbuild.plan.target import PlannedEp
from epbuild.plan.verification import CheckedMember, Verification, verification_id
from epbuild.verify.live.model import RunnableSource, other_values
from epbuild.verify.manifest import source_signature_of


class NoSource(Exception):
    """There is nothing to compare with; the text is the reason."""


class WrongSource(NoSource):
    """There is a source model, and it is another one, or not whole."""


@dataclass(frozen=True)
class Sources:
    """Where source models are: named one by one, and in a recipe."""

    named: Mapping[str, Path]
    """Files by model; under the empty name, that of every other model."""
    recipe: Path | None = None
    plan: Plan | None = None
    """The plan of the recipe."""

    def group(self, document: Mapping[str, Any] | None, member: str | None = None) -> SessionGroup | None:
        """The session group of the recipe that an artifact came from; `member` chooses among those of a group that shares nothing."""
        if self.plan is None or document is None:
            return None
        name, target = document["group"], document["target"]["name"]
        for group in self.plan.session_groups.values():
            if (group.group, group.target.name) == (name, target) and member in (None, *(item.name for item in group.members)):
                return group
        return None

    def eps(self, document: Mapping[str, Any] | None) -> dict[str, PlannedEp]:
        """The EPs as the recipe has them, by name: with the user's own libraries, devices and catalog."""
        group = self.group(document)
        return {ep.entry.ep: ep for ep in group.target.eps} if group is not None else {}

    def checked(self, name: str, document: Mapping[str, Any] | None) -> CheckedMember | None:
        """How the recipe itself has the numbers of a model checked; None where it does not."""
        if self.plan is None or document is None:
            return None
        action = self.plan.actions.get(verification_id(document["group"], document["target"]["name"]))
        members = action.members if isinstance(action, Verification) else ()
        return next((checked for checked in members if checked.name == name), None)

    def find(self, name: str, document: Mapping[str, Any] | None) -> RunnableSource:
        """The source of a model; raises NoSource; WrongSource when it is not what the manifest has."""
        models = document["models"] if document is not None else ()
        model: Mapping[str, Any] = next((model for model in models if model["name"] == name), {})
        if "merged" in model and not self.named.get(name):
            members = ", ".join(item["name"] for item in model["merged"])
            raise NoSource(f"it was merged from {members}; name one model that computes the same with --source {name}=FILE")
        group = self.group(document, name)
        member = group.member(name) if group is not None else None
        own = self.named.get(name) or self.named.get("")
        files = member.original if member is not None else None
        is_prepared = member is not None and member.prepared is not None
        prepared = _prepared(model) if is_prepared else None
        if own is None and files is not None and is_prepared and self._compares_prepared(name, files.graph, document, model):
            files = prepared
        graph = own or (files.graph if files is not None else None)
        if graph is None:
            raise NoSource(self._missing(member, document))
        try:
            header = read_header(graph)
            for location in header.external_locations:
                check_reference(location)
            known = files.external if files is not None and own is None else {}
            external = {location: known.get(location, graph.parent / location) for location in header.external_locations}
            digests = {location: file_digest(path) for location, path in external.items()}
            digest = file_digest(graph)
        except BadReference as error:
            raise WrongSource(f"the source model {graph} cannot be used: {error}") from error
        except MalformedModel as error:
            raise WrongSource(f"the source model {graph} is not a whole ONNX file: {error}") from error
        except OSError as error:
            raise WrongSource(f"the source model's file {error.filename} cannot be read: {error.strerror or error}") from error
        listed = model.get("source")
        if listed is not None and "prepared" in listed and digest != listed["sha256"]:
            listed = listed["prepared"]["from"]  # the model as the recipe has it, which was compiled after that was done to it
        if listed is not None and listed["sha256"] != digest:
            raise WrongSource(f"the source model {graph} is not the one that it was compiled from: its SHA-256 is {digest[:12]}…")
        for location, expected in (listed["external_data"] if listed is not None else {}).items():
            if digests.get(location) != expected:
                raise WrongSource(f"the external data {location} of the source model {graph} is not what it was compiled from")
        return RunnableSource(graph, external, header, member.model.free_dimensions if member is not None else {}, prepared)

    def _compares_prepared(self, name: str, source: Path, document: Mapping[str, Any] | None, model: Mapping[str, Any]) -> bool:
        """Return whether a model is compared with what was prepared: the recipe asks for it, or the source has other values."""
        checked = self.checked(name, document)
        if checked is not None and checked.choice.reference is not None:
            return checked.choice.reference == "prepared"
        return _has_other_values(source, model)

    def _missing(self, member: Member | None, document: Mapping[str, Any] | None) -> str:
        if self.recipe is None:
            return "its source model is not known; name the recipe with --recipe, or the model with --source"
        if document is None:
            return "without a manifest, it is unknown which model of the recipe it was compiled from; name that with --source"
        if member is None:
            return f"{self.recipe} does not build it: {document['group']} for {document['target']['name']}"
        if member.prepared is not None:
            return f"what {member.prepared} made is not in the cache; `epbuild run` makes it again"
        return "its source model has not been fetched yet; `epbuild run` does that"


def _prepared(model: Mapping[str, Any]) -> ModelFiles | None:
    """What preparations made and a model of a manifest was compiled from, out of the cache; None where it is not there."""
    store, source = BlobStore(cache_directory()), model.get("source")
    if source is None:
        return None
    try:
        graph = store.place(source["sha256"])
        external = {location: store.place(digest) for location, digest in source["external_data"].items()}
        header = read_header(graph)
    except (MissingBlob, OSError, MalformedModel):
        return None
    return ModelFiles(graph, external, header.subgraph_data) if all(path.is_file() for path in external.values()) else None


def _has_other_values(graph: Path, model: Mapping[str, Any]) -> bool:
    """Return whether a source has other inputs or outputs than what a model of a manifest was compiled from."""
    compiled_from = source_signature_of(model)
    if compiled_from is None:
        return False
    try:
        return bool(other_values(read_header(graph), compiled_from))
    except (OSError, MalformedModel):  # which is an error where it is read
        return False
