"""Sources of compiled models, checked against the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import MissingBlob
from epbuild.cache.location import find_cache_directory
from epbuild.core.clone import copy_file
from epbuild.core.digest import hash_file
from epbuild.core.safepath import BadReference, check_reference
from epbuild.core.shown import format_path
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.tables import find_table_sizes
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.member import Member, ModelFiles
from epbuild.plan.result import ModelSignature
from epbuild.plan.steps import Plan, SessionGroup
from epbuild.plan.target import PlannedEp
from epbuild.plan.verification import CheckedMember, Verification, make_verification_id
from epbuild.verify.manifest import find_source_signature
from epbuild.verify.signature import get_signature

_QUANTIZING_OPERATORS = {"QuantizeLinear", "DequantizeLinear"}


class RunnableSource(Struct, frozen=True, dict=True):
    """Source model that can be run. If there is a manifest, the source is the model that the manifest names."""

    graph: Path
    external: Mapping[str, Path]
    """External data files, by location in the graph."""
    header: ModelHeader
    sizes: Mapping[str, int]
    """Sizes of free dimensions, by name."""
    prepared: ModelFiles | None = None
    """Result of the source's preparations. None if the source has no preparations, or if the cache does not have the result."""

    @property
    def after_preparations(self) -> RunnableSource | None:
        """The result of the preparations as a source that can be run. None if there is no result, or if this source is the result."""
        if self.prepared is None or self.prepared.graph == self.graph:
            return None
        return RunnableSource(self.prepared.graph, self.prepared.external, read_header(self.prepared.graph), self.sizes)

    @cached_property
    def is_quantized(self) -> bool:
        """True if the model or the result of its preparations computes with quantized values."""
        headers = [self.header, *([read_header(self.prepared.graph)] if self.prepared is not None else [])]
        return any(name in _QUANTIZING_OPERATORS for header in headers for _, name in header.operators)

    @cached_property
    def tables(self) -> Mapping[str, int]:
        """Number of rows in the table that each input indexes, by input name. Empty if the file cannot be read."""
        try:
            return find_table_sizes(self.graph)
        except (MalformedModel, OSError):
            return {}

    def place_files(self, scratch: Path) -> Path:
        """Return the path of the graph, with its data beside it. Copy both to `scratch` if they are links or in different folders.

        ONNX Runtime rejects external data that is a link, and rejects external data of subgraphs if the file has several hard links.
        """
        linked = any(path.is_symlink() for path in (self.graph, *self.external.values()))
        linked = linked or any(self.external[location].stat().st_nlink > 1 for location in self.header.subgraph_data)
        beside = all(path == self.graph.parent / location for location, path in self.external.items())
        if beside and not linked:
            return self.graph
        for name, path in {self.graph.name: self.graph, **self.external}.items():
            target = scratch / name
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(path, target)
        return scratch / self.graph.name


class NoSource(Exception):
    """Error for a model without a source to compare with. The text is the reason."""


class WrongSource(NoSource):
    """Error for a source model that is damaged, or that is not the model that was compiled."""


class Sources(Struct, frozen=True):
    """Lookup of source models in files that the user names and in a recipe's plan."""

    named: Mapping[str, Path]
    """Files by model name. The empty name stands for all other models."""
    recipe: Path | None = None
    plan: Plan | None = None

    def find_group(self, document: Mapping[str, Any] | None, member: str | None = None) -> SessionGroup | None:
        """Return the recipe's session group for the artifact with this manifest. Return None if there is none.

        Without sharing, each member has its own session group, so `member` selects one.
        """
        if self.plan is None or document is None:
            return None
        name, target = document["group"], document["target"]["name"]
        for group in self.plan.session_groups.values():
            if (group.group, group.target.name) == (name, target) and member in (None, *(item.name for item in group.members)):
                return group
        return None

    def find_eps(self, document: Mapping[str, Any] | None) -> dict[str, PlannedEp]:
        """Return the recipe's EPs by name, with the user's own libraries, devices and catalog."""
        group = self.find_group(document)
        return {ep.entry.ep: ep for ep in group.target.eps} if group is not None else {}

    def find_checked(self, name: str, document: Mapping[str, Any] | None) -> CheckedMember | None:
        """Return the recipe's settings for checking a model's numbers, or None if the recipe does not check the numbers."""
        if self.plan is None or document is None:
            return None
        action = self.plan.actions.get(make_verification_id(document["group"], document["target"]["name"]))
        members = action.members if isinstance(action, Verification) else ()
        return next((checked for checked in members if checked.name == name), None)

    def find(self, name: str, document: Mapping[str, Any] | None) -> RunnableSource:
        """Return the source of a model. Raises NoSource. Raises WrongSource if the source is not the one in the manifest."""
        models = document["models"] if document is not None else ()
        model: Mapping[str, Any] = next((model for model in models if model["name"] == name), {})
        if "merged" in model and not self.named.get(name):
            members = ", ".join(item["name"] for item in model["merged"])
            raise NoSource(f"it was merged from {members}; specify an equivalent model with --source {name}=FILE")
        group = self.find_group(document, name)
        member = group.member(name) if group is not None else None
        sizes = member.model.dimensions if member is not None else {}
        prepared = _find_in_cache(model.get("source")) if member is not None and member.prepared is not None else None
        own = self.named.get(name) or self.named.get("")
        if own is not None:
            return _read_source(own, {}, sizes, prepared, model.get("source"))
        if member is None:
            raise NoSource(self._explain_missing(member, document, None))
        files, step = member.original, member.maker or member.prepared
        if member.maker is not None:
            files = _find_in_cache(_get_first_source(model))
        if member.prepared is not None and self._compares_prepared(name, files, document, model):
            files, step = prepared, member.prepared
        if files is None:
            raise NoSource(self._explain_missing(member, document, step))
        return _read_source(files.graph, files.external, sizes, prepared, model.get("source"))

    def _compares_prepared(
        self, name: str, source: ModelFiles | None, document: Mapping[str, Any] | None, model: Mapping[str, Any]
    ) -> bool:
        """Return whether to compare a model with its prepared source.

        The recipe can request this comparison. It is also necessary if the original source has other inputs or outputs.
        """
        checked = self.find_checked(name, document)
        if checked is not None and checked.choice.reference is not None:
            return checked.choice.reference == "prepared"
        compiled_from = find_source_signature(model)
        if compiled_from is None or source is None:
            return False
        try:
            return bool(find_other_values(read_header(source.graph), compiled_from))
        except (OSError, MalformedModel):  # The error is reported when the source is read for the comparison.
            return False

    def _explain_missing(self, member: Member | None, document: Mapping[str, Any] | None, step: str | None) -> str:
        """Return why there is no source. `step` makes the model to compare with; it is None if the model is a user's file."""
        if self.recipe is None:
            return "its source model is unknown; specify the recipe with --recipe, or the source model with --source"
        if document is None:
            return "no manifest says which model of the recipe it was compiled from; specify the source model with --source"
        if member is None:
            return f"{self.recipe} does not build the group '{document['group']}' for the target '{document['target']['name']}'"
        if step is not None:
            return f"the result of {step} is not in the store; run `epbuild run` to recreate it"
        return "its source model has not been fetched yet; run `epbuild run` to fetch it"


def _read_source(
    graph: Path,
    known: Mapping[str, Path],
    sizes: Mapping[str, int],
    prepared: ModelFiles | None,
    listed: Mapping[str, Any] | None,
) -> RunnableSource:
    """Read a source, and check it against the source that a manifest lists. Raises WrongSource.

    `known` has paths of external data by location. A file without a known path is beside the graph.
    """
    try:
        header = read_header(graph)
        for location in header.external_locations:
            check_reference(location)
        external = {location: known.get(location, graph.parent / location) for location in header.external_locations}
        digests = {location: hash_file(path) for location, path in external.items()}
        digest = hash_file(graph)
    except BadReference as error:
        raise WrongSource(f"the source model {format_path(graph)} cannot be used: {error}") from error
    except MalformedModel as error:
        raise WrongSource(f"the source model {format_path(graph)} is not a complete ONNX file: {error}") from error
    except OSError as error:
        raise WrongSource(
            f"the source model's file {format_path(error.filename)} cannot be read: {error.strerror or error}"
        ) from error
    if listed is not None:
        if digest != listed["sha256"]:
            listed = _get_first_source({"source": listed}) or listed
        if listed["sha256"] != digest:
            raise WrongSource(
                f"the source model {format_path(graph)} is not the one that the model was compiled from: its SHA-256 is {digest[:12]}…"
            )
        for location, expected in listed["external_data"].items():
            if digests.get(location) != expected:
                data = f"the external data {location} of the source model {format_path(graph)}"
                raise WrongSource(f"{data} is not the data that the model was compiled with")
    return RunnableSource(graph, external, header, sizes, prepared)


def _get_first_source(model: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the entry of a manifest for a model's source before its preparations, or None if the model has no preparations."""
    found: Mapping[str, Any] | None = model.get("source", {}).get("prepared", {}).get("from")
    return found


def _find_in_cache(source: Mapping[str, Any] | None) -> ModelFiles | None:
    """Return the files of a model that a manifest lists, or None if the cache lacks them."""
    if source is None:
        return None
    store = BlobStore(find_cache_directory())
    try:
        graph = store.place(source["sha256"])
        external = {location: store.place(digest) for location, digest in source["external_data"].items()}
        header = read_header(graph)
    except (MissingBlob, OSError, MalformedModel):
        return None
    return ModelFiles(graph, external, header.subgraph_data) if all(path.is_file() for path in external.values()) else None


def find_other_values(source: ModelHeader, compiled: ModelSignature) -> str:
    """Return the names of inputs and outputs that only one of the models has, or whose types differ."""
    sides = [
        {(kind, value.name, value.type) for kind, values in (("in", side.inputs), ("out", side.outputs)) for value in values}
        for side in (get_signature(source), compiled)
    ]
    return ", ".join(sorted({name for _, name, _ in sides[0] ^ sides[1]}))
