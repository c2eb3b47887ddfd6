"""Checks of contexts: their EPs, targets and graphs, and sharing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath

from msgspec import field

from epbuild.catalog.catalog import entry, find_source_entry, known_eps, name_source_ep
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.normalize import BadValue as BadOption
from epbuild.catalog.normalize import UnknownName, find_option, normalize
from epbuild.core.errors import suggest_nearest
from epbuild.onnxfile.read.epcontext import EPContextNode
from epbuild.onnxfile.read.payload import Payload
from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.checks import ExpectedEp, check_one_binary, check_sources, check_target, find_node_ep, read_target
from epbuild.verify.facts import Model, format_node_title
from epbuild.verify.findings import Finding, format_sentence, make_failed
from epbuild.verify.manifest import Manifest

_NUMBER = re.compile(r"[0-9]+")
_MIN_GRAPH_LENGTH = 16
_MAX_GRAPH_LENGTH = 1024
_MAX_GRAPHS = 100_000


class ContextEp(ExpectedEp, frozen=True):
    """EP that compiled contexts, and its options in the catalog's spelling."""

    options: Mapping[str, str] = field(default_factory=dict)


def read_context_target(payload: Payload, source: str | None) -> str | None:
    """Return the target that a context contains. None if the catalog has no pattern for the EP's targets. Raises OSError."""
    ep_entry = find_source_entry(source)
    if ep_entry is None or not ep_entry.binary.target_pattern:
        return None
    return read_target(payload, ep_entry.binary.target_pattern)


def list_manifest_eps(manifest: Manifest | None) -> tuple[ContextEp, ...]:
    """Return the EPs of a manifest's target. Return an empty tuple if there is no manifest."""
    if manifest is None:
        return ()
    context_eps = []
    for name, options in manifest.eps.items():
        try:
            ep_entry = entry(name, manifest.document["toolchain"]["distributions"])
        except KeyError:
            context_eps.append(ContextEp(name, options=options))
            continue
        context_eps.append(
            _make_context_ep(ep_entry, {option: _normalize_option(ep_entry, option, value) for option, value in options.items()})
        )
    return tuple(context_eps)


def _make_context_ep(ep_entry: EpEntry, options: Mapping[str, str]) -> ContextEp:
    return ContextEp(ep_entry.ep, ep_entry, ep_entry.binary_target(options), options)


def _normalize_option(known: EpEntry, name: str, value: str) -> str:
    try:
        option = find_option(known, name)
        return normalize(option, value, booleans=known.booleans, names=known.canonical_names(name), strict=False)
    except (UnknownName, BadOption):
        return value


def check_node_sources(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that every node was compiled by an EP of the manifest's target, or without a manifest, by an EP in the catalog."""
    context_eps = list_manifest_eps(artifact.manifest)
    for model in artifact.models:
        name = artifact.format_path(model.file)
        found = [make_failed("source", name, flaw) for flaw in check_sources(model, context_eps)]
        sources = dict.fromkeys(node.source for node in model.nodes)
        if not context_eps:
            for source in (source for source in sources if source and find_source_entry(source) is None):
                message = f"No EP in the catalog has the source '{source}'."
                hint = suggest_nearest(source, [known for ep in known_eps() for known in entry(ep).sources])
                found.append(Finding("source", name, "skipped", message, hint=hint))
        yield from found
        if sources and not found:
            yield Finding("source", name, "passed")


def check_targets(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that contexts and compatibility strings are for the manifest's target.

    Without a target in the manifest, contexts must be for the target in the model's compatibility string.
    """
    context_eps = list_manifest_eps(artifact.manifest)
    read = cache(read_target)
    judged: set[tuple[Payload, str | None]] = set()
    for model in artifact.models:
        for context in model.contexts:
            payload, binary = context.payload, model.find_binary(context.node)
            if payload is None or payload.size == 0 or binary in artifact.encrypted:
                continue
            ep, origin = _find_wanted_ep(model, context.node, context_eps)
            wanted = ep.target if ep is not None else None
            if (payload, wanted) in judged:
                continue
            judged.add((payload, wanted))
            name = artifact.format_path(binary or model.file)
            known = find_source_entry(context.node.source)
            pattern = ep.target_pattern if ep is not None else known.binary.target_pattern if known is not None else None
            try:
                seen = read(payload, pattern) if pattern else None
            except OSError as error:
                yield Finding("target", name, "failed", f"It cannot be read: {error.strerror or error}.", "EPB600")
                continue
            yield _make_target_finding(name, seen, wanted, origin, readable=pattern is not None)
    for model in artifact.models:
        yield from _check_compatibility(artifact, model, context_eps)


def _find_wanted_ep(model: Model, node: EPContextNode, context_eps: Sequence[ContextEp]) -> tuple[ExpectedEp | None, str]:
    """Return the EP that a node's context should be for: the manifest's, or else one with the target in the compatibility string.

    Also return a clause about the origin of the target if that is not the manifest. A manifest lists only session options. An option that
    compiles one context for several SoCs is not among them.
    """
    listed, ep_entry = find_node_ep(node.source, context_eps), find_source_entry(node.source)
    text = model.compatibility.get(ep_entry.ep) if ep_entry is not None else None
    if ep_entry is None or text is None or (listed is not None and listed.target is not None):
        return listed, ""
    return _make_context_ep(ep_entry, ep_entry.read_compatibility(text) or {}), f", the target in {model.file}"


def check_partitions(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that each context contains the graph that its node runs. Contexts without graph names are skipped.

    The node's name for the graph may have a prefix that the context lacks.
    """

    @cache
    def find_graphs(payload: Payload, pattern: bytes) -> frozenset[bytes]:
        return frozenset(itertools.islice((match[0] for match in payload.find_matches(pattern)), _MAX_GRAPHS))

    for model in artifact.models:
        for node in model.nodes:
            payloads = _find_payloads(model, node)
            if not node.partition_name or len(node.partition_name) > _MAX_GRAPH_LENGTH or not payloads:
                continue
            if any(model.find_binary(holder) in artifact.encrypted for holder in model.nodes):
                continue
            graph = _strip_prefix(node.partition_name, find_source_entry(node.source))
            name, pattern = artifact.format_path(model.file), _make_name_pattern(graph)
            try:
                graphs = {graph for payload in payloads for graph in find_graphs(payload, pattern)}
            except OSError as error:
                yield Finding("partitions", name, "failed", f"A context cannot be read: {error.strerror or error}.", "EPB600")
                continue
            yield _make_partition_finding(name, node, graph, sorted(graphs))


def check_sharing(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that models that share weights refer to one common context binary, and that other models share no binary."""
    manifest = artifact.manifest
    shared = _find_shared_binaries(artifact.models)
    if manifest is None:
        for binary, files in shared.items():
            message = f"{len(files)} models refer to it. Without a manifest, it is unknown whether all of them should."
            yield Finding("sharing", artifact.format_path(binary), "skipped", message)
        return
    if not manifest.models:
        return  # The artifact is a package: each of its models is a separate artifact.
    subject = artifact.place or manifest.group
    if not manifest.share_weights:
        for binary, files in shared.items():
            message = f"{', '.join(files)} refer to it, but their group does not share weights."
            yield Finding("sharing", artifact.format_path(binary), "failed", message, "EPB607")
        if not shared:
            yield Finding("sharing", subject, "passed")
        return
    context_eps = [context_ep for context_ep in list_manifest_eps(manifest) if context_ep.compiles]
    if not all(context_ep.entry is not None and context_ep.entry.sharing.binaries == "one" for context_ep in context_eps):
        yield from _check_shared_data(artifact, manifest)
        return
    for models in list_sharing_sets(artifact, manifest):
        flaw = check_one_binary(models)
        yield Finding("sharing", subject, "passed") if flaw is None else make_failed("sharing", subject, flaw)


def list_sharing_sets(artifact: ArtifactFolder, manifest: Manifest) -> list[list[Model]]:
    """Return the sets of models that share weights. Models with one action key were compiled together.

    A single set may have one model, if the other models of the group are not compiled.
    """
    keys = {listed.file: listed.action_key for listed in manifest.models if listed.compiled}
    sets: dict[str, list[Model]] = {}
    for model in artifact.models:
        if model.file in keys:
            sets.setdefault(keys[model.file], []).append(model)
    found = list(sets.values())
    return found if len(found) == 1 else [models for models in found if len(models) > 1]


def _find_shared_binaries(models: Sequence[Model]) -> dict[str, list[str]]:
    """Return each context binary that several models refer to, with the files of these models."""
    users: dict[str, list[str]] = {}
    for model in models:
        for binary in dict.fromkeys(model.find_binary(node) for node in model.nodes if node.main_context and node.reference):
            if binary is not None:
                users.setdefault(binary, []).append(model.file)
    return {binary: files for binary, files in users.items() if len(files) > 1}


def _check_shared_data(artifact: ArtifactFolder, manifest: Manifest) -> Iterator[Finding]:
    """Check that the external data of the sources was emitted, if EPs share weights through this data."""
    subject = artifact.place or manifest.group
    if not any(
        context_ep.entry is not None and context_ep.entry.sharing.weights == "source"
        for context_ep in list_manifest_eps(manifest)
    ):
        yield Finding("sharing", subject, "skipped", "The catalog does not know how this EP shares weights.")
        return
    needed = (str(PurePosixPath(model.file).parent / data) for model in manifest.models for data in sorted(model.source_data))
    missing = [place for place in dict.fromkeys(needed) if place not in manifest.files]
    for place in missing:
        message = "The models share the weights in this file, which belongs to their sources, but the file was not emitted."
        yield Finding("sharing", artifact.format_path(place), "failed", message, "EPB616")
    if not missing:
        yield Finding("sharing", subject, "passed")


def _make_target_finding(name: str, seen: str | None, wanted: str | None, origin: str, *, readable: bool) -> Finding:
    if seen is None:
        why = "It does not record its target" if readable else "The catalog does not know how this EP records targets"
        return Finding("target", name, "skipped", f"{why}.")
    if wanted is None:
        return Finding("target", name, "skipped", f"It was compiled for {seen}; the requested target is unknown.")
    flaw = check_target(name, seen, wanted, origin)
    return (
        Finding("target", name, "passed", f"It was compiled for {seen}.") if flaw is None else make_failed("target", name, flaw)
    )


def _make_name_pattern(graph: str) -> bytes:
    """Return a pattern that matches `graph` and all names that differ only in their numbers, as graph names of one EP often do."""
    parts = _NUMBER.split(graph)
    # A name with few other characters would match anywhere in a binary, so its numbers must match too.
    if sum(map(len, parts)) < _MIN_GRAPH_LENGTH:
        return re.escape(graph.encode())
    return b"[0-9]{1,40}".join(re.escape(part.encode()) for part in parts)


def _strip_prefix(partition_name: str, ep_entry: EpEntry | None) -> str:
    """Return the name of a graph without the prefix of its node, if the EP allows one.

    ONNX Runtime starts the names of an EP's graphs with the name of the EP.
    """
    if ep_entry is None or ep_entry.node_names is None or ep_entry.node_names.found_by != "name":
        return partition_name
    return partition_name[max(0, partition_name.find(ep_entry.ep)) :]


def _make_partition_finding(name: str, node: EPContextNode, graph: str, graphs: Sequence[bytes]) -> Finding:
    if graph.encode() in graphs:
        return Finding("partitions", name, "passed")
    subject = format_sentence(format_node_title(node)).rstrip(".")
    if graphs:
        # The context contains names of graphs, so a graph whose name is missing is not in the context.
        message = f"{subject} runs the graph '{graph}', but its context contains '{graphs[0].decode()}' instead."
        return Finding(
            "partitions",
            name,
            "failed",
            message,
            "EPB618",
            "The context was compiled from another model. Emit the model and its context again.",
        )
    message = f"{subject} runs a graph whose name is not in its context. "
    message += "Either the context belongs to another model, or the EP writes no graph names."
    return Finding("partitions", name, "skipped", message)


def _check_compatibility(artifact: ArtifactFolder, model: Model, context_eps: Iterable[ContextEp]) -> Iterator[Finding]:
    """Check that compatibility strings name the target, because ONNX Runtime chooses models by these strings."""
    for context_ep in context_eps:
        text = model.compatibility.get(context_ep.name)
        option = context_ep.entry.binary.target_option if context_ep.entry is not None else None
        if text is None or context_ep.entry is None or option is None or option not in context_ep.options:
            continue
        written = (context_ep.entry.read_compatibility(text) or {}).get(option)
        if written is None:
            continue
        name = artifact.format_path(model.file)
        if written.casefold() == context_ep.options[option].casefold():
            yield Finding("target", name, "passed", f"Its compatibility string is for {written}.")
        else:
            message = f"Its compatibility string is for {written}, not for {context_ep.options[option]}."
            yield Finding("target", name, "failed", message, "EPB608")


def _find_payloads(model: Model, node: EPContextNode) -> list[Payload]:
    """Return the payloads that can contain a node's context.

    These are the node's own payload or, with main_context 0, the payloads of nodes with main_context 1 and the same EP.
    """
    ep = name_source_ep(node.source)
    mains = (found for found in model.contexts if found.node.main_context and name_source_ep(found.node.source) == ep)
    holders = mains if node.main_context == 0 else (found for found in model.contexts if found.node is node)
    return [found.payload for found in holders if found.payload is not None]
