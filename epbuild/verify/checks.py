"""Checks of compiled models before they are stored and after they are emitted.

EPs report success even if they compiled half a group, wrote no binary, compiled for another SoC or left the model on the
CPU. Therefore, no check trusts an exit status, a file name or an option.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from epbuild.catalog.entries import EpEntry
from epbuild.core.errors import Problem, StepId, VerifyError
from epbuild.onnxfile.edit.rewrite import PROTOBUF_LIMIT
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.payload import Payload
from epbuild.verify.facts import Model
from epbuild.verify.findings import Flaw


class ExpectedEp(Struct, frozen=True):
    """EP that may have compiled nodes, with its catalog entry and the target that its context binaries should contain."""

    name: str
    entry: EpEntry | None = None
    """None if the catalog has no entry."""
    target: str | None = None

    @property
    def target_pattern(self) -> str | None:
        return self.entry.binary.target_pattern if self.entry is not None else None

    @property
    def compiles(self) -> bool:
        """True if the EP writes EPContext nodes. An unknown EP may."""
        return self.entry is None or bool(self.entry.sources)

    def has_source(self, source: str | None) -> bool:
        """Return whether EPContext nodes with this `source` belong to the EP."""
        return source == self.name if self.entry is None else self.entry.has_source(source)


class ExpectedModel(Struct, frozen=True):
    """Compiled model that is expected for a member of the group. `file` is the name of the model's file."""

    member: str
    file: str
    embed: bool = False


class Expected(Struct, frozen=True):
    """Expected models of a session group, with the EPs that may have compiled them."""

    step: str
    eps: tuple[ExpectedEp, ...]
    models: tuple[ExpectedModel, ...]
    one_binary: bool = False


class CompiledModel(Struct, frozen=True):
    """EPContext model that passed the checks, with the files it refers to."""

    member: str
    file: str
    header: ModelHeader
    binaries: Mapping[str, str]
    """EP of each context binary, by the binary's name."""
    data: tuple[str, ...]


def find_node_ep(source: str | None, eps: Sequence[ExpectedEp]) -> ExpectedEp | None:
    """Return the EP in `eps` to which a node's `source` belongs, or None."""
    return next((ep for ep in eps if ep.has_source(source)), None)


def check_whole(model: Model) -> Flaw | None:
    """Check that a model is a complete ONNX file (EPB602) with an EPContext node (EPB603)."""
    if isinstance(model.header, str):
        return Flaw("EPB602", model.file, model.header)
    if not model.header.is_compiled:
        return Flaw("EPB603", model.file, "contains no EPContext node: no part of it was compiled")
    return None


def check_sources(model: Model, eps: Sequence[ExpectedEp]) -> Iterator[Flaw]:
    """Check that every EPContext node has a source. Unless `eps` is empty, the source must belong to one of them (EPB604)."""
    allowed = ", ".join(ep.name for ep in eps if ep.compiles)
    for source in dict.fromkeys(node.source for node in model.nodes):
        if not source:
            text = "an EPContext node has no source, so ONNX Runtime cannot assign it to an EP"
            yield Flaw("EPB604", model.file, text, standalone=True)
        elif eps and find_node_ep(source, eps) is None:
            text = f"an EPContext node was compiled by '{source}', not by {allowed}"
            yield Flaw("EPB604", model.file, text, standalone=True)


def check_references(model: Model) -> Iterator[Flaw]:
    """Check that the files that a model refers to are large enough, and below its folder after links are resolved (EPB605)."""
    flaws = (*(context.flaw for context in model.contexts if context.flaw is not None), *model.data_flaws)
    yield from (Flaw("EPB605", model.file, flaw, standalone=True) for flaw in dict.fromkeys(flaws))


def check_contexts(model: Model) -> Iterator[Flaw]:
    """Check that every node with main_context 1 embeds a context or refers to a context binary (EPB605)."""
    for node in model.nodes:
        if node.main_context and node.reference is None and not (node.payload and node.payload[1]):
            text = "an EPContext node neither embeds a context nor refers to a context binary"
            yield Flaw("EPB605", model.file, text, standalone=True)


def check_one_file(model: Model) -> Iterator[Flaw]:
    """Check that no context has its weights in a second file, for which a recipe has no name (EPB421)."""
    for context in model.contexts:
        if context.weights is not None:
            text = f"a context is in two files, {context.node.reference} and {context.weights}, but a recipe has only one name for it"
            yield Flaw("EPB421", model.file, text, standalone=True)


def check_embedding(model: Model, *, embed: bool) -> Iterator[Flaw]:
    """Check that contexts are embedded or in files, as requested (EPB606)."""
    for node in model.nodes:
        if bool(node.embed_mode) != embed and node.main_context:
            mode = "embeds its context" if node.embed_mode else "stores its context in a file"
            wanted = "true" if embed else "false"
            text = f"an EPContext node {mode}, but the recipe sets embed to {wanted}"
            yield Flaw("EPB606", model.file, text, standalone=True)
    if embed and (flaw := check_embedded_size(model)) is not None:
        yield flaw


def check_embedded_size(model: Model, limit: int = PROTOBUF_LIMIT) -> Flaw | None:
    """Check that a model with an embedded context is not too large to be read (EPB606). Raises OSError."""
    if any(node.payload for node in model.nodes) and model.size > limit:
        text = "embeds its context and exceeds 2 GiB, the size limit of ONNX files"
        return Flaw("EPB606", model.file, text, "Set embed to false.")
    return None


def check_one_binary(models: Sequence[Model]) -> Flaw | None:
    """Check that models that share weights refer to one common context binary (EPB607)."""
    binaries = list(dict.fromkeys(name for model in models for node in model.nodes if (name := model.find_binary(node))))
    alone = [model.file for model in models if not any(node.reference and node.main_context for node in model.nodes)]
    if len(binaries) == 1 and not alone:
        return None
    found = f"{len(binaries)}: {', '.join(binaries)}" if binaries else "none"
    text = f"{len(models)} models that share weights must refer to one context binary, but they refer to {found}"
    if alone:
        text += f". {', '.join(alone)} refer{'s' if len(alone) == 1 else ''} to no context binary"
    return Flaw("EPB607", "", text, standalone=True)


def check_target(file: str, seen: str | None, wanted: str | None, origin: str = "") -> Flaw | None:
    """Check that a context was compiled for the wanted target (EPB608). Return None if it was or if either target is unknown.

    Case and order of names are ignored. `origin` is a clause that says where `wanted` comes from, if not from the recipe.
    """
    if seen is None or wanted is None or set(seen.casefold().split(",")) == set(wanted.casefold().split(",")):
        return None
    hint = "Check the target's options, because the EP ignores unknown options."
    return Flaw("EPB608", file, f"was compiled for {seen}, not for {wanted}{origin}", hint)


def read_target(payload: Payload, pattern: str) -> str | None:
    """Return the target that a context contains, or None if the context contains no target. Raises OSError.

    The target is the first group of the first match of `pattern`. A context for several targets is a ZIP archive with one
    context for each target: the function returns the sorted targets, joined with commas.
    """
    matches = payload.find_matches(pattern.encode())
    if payload.begins_with(b"PK\x03\x04"):
        return ",".join(sorted({match[1].decode("ascii", "replace") for match in matches})) or None
    match = next(matches, None)
    return match[1].decode("ascii", "replace") if match else None


def check_compiled(folder: Path, expected: Expected) -> tuple[CompiledModel, ...]:
    """Check the EPContext models in `folder`, and return them. Raises VerifyError with every problem found."""
    models = {model.file: Model(folder, model.file, asked_for=True, name_nodes=True) for model in expected.models}
    flaws = {item.file: tuple(_find_flaws(models[item.file], item, expected)) for item in expected.models}
    sound = [model for model in models.values() if not flaws[model.file]]
    found = [flaw for several in flaws.values() for flaw in several]
    if not found and expected.one_binary and (flaw := check_one_binary(sound)) is not None:
        found.append(flaw)
    found += _find_target_flaws(sound, expected.eps)
    if found:
        raise VerifyError(*(_make_problem(flaw, expected.step) for flaw in found))
    return tuple(_make_compiled_model(models[item.file], item.member, expected.eps) for item in expected.models)


def _find_flaws(model: Model, item: ExpectedModel, expected: Expected) -> Iterator[Flaw]:
    if not model.path.is_file():
        text = f"the EP reported success for '{item.member}' but wrote no {model.file}"
        yield Flaw("EPB601", "", text, standalone=True)
    elif (flaw := check_whole(model)) is not None:
        yield flaw
    else:
        yield from check_sources(model, expected.eps)
        yield from check_embedding(model, embed=item.embed)
        yield from check_contexts(model)
        yield from check_references(model)
        yield from check_one_file(model)


def _find_target_flaws(models: Sequence[Model], eps: Sequence[ExpectedEp]) -> Iterator[Flaw]:
    """Yield one flaw for each context that was compiled for another target."""
    contexts: dict[Payload, tuple[str, ExpectedEp]] = {}
    for model in models:
        for context in model.contexts:
            ep = find_node_ep(context.node.source, eps)
            if ep is not None and context.payload is not None:
                contexts[context.payload] = context.node.reference or model.file, ep
    for payload, (name, ep) in contexts.items():
        if ep.target_pattern and ep.target and (flaw := check_target(name, read_target(payload, ep.target_pattern), ep.target)):
            yield flaw


def _make_compiled_model(model: Model, member: str, eps: Sequence[ExpectedEp]) -> CompiledModel:
    header = model.header
    assert not isinstance(header, str)  # noqa: S101 - a model with an unreadable header has a flaw and is not here
    context_eps = ((node.reference, find_node_ep(node.source, eps)) for node in model.nodes)
    binaries = {name: ep.name for name, ep in context_eps if name is not None and ep is not None}
    return CompiledModel(member, model.file, header, binaries, header.external_locations)


def _make_problem(flaw: Flaw, step: str) -> Problem:
    text = flaw.text.rstrip(".")
    message = text if not flaw.file else f"{flaw.file}: {text}" if flaw.standalone else f"{flaw.file} {text}"
    return Problem(flaw.code, message, StepId(step), flaw.hint)
