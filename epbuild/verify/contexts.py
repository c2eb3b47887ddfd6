"""The compiled contexts of an artifact: who made them, what for, of which graphs, and whether a sharing group has one of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from epbuild.catalog.catalog import entry, known_eps
from epbuild.catalog.entries import Entry
from epbuild.catalog.normalize import BadValue as BadOption
from epbuild.catalog.normalize import UnknownName, find_option, normalize
from epbuild.core.errors import nearest
from epbuild.onnxfile.epcontext import EPContextNode
from epbuild.verify.artifact import Artifact, Model
from epbuild.verify.checks import is_target, read_target
from epbuild.verify.findings import Finding
from epbuild.verify.models import shown
from epbuild.verify.payload import Payload

COMPATIBILITY = "ep_compatibility_info."
"""What the metadata keys begin with under which ONNX Runtime keeps the EPs' compatibility strings."""

_NUMBER = re.compile(r"[0-9]+")
_SHORTEST_GRAPH = 16
_LONGEST_GRAPH = 1024
_MOST_GRAPHS = 100_000


@dataclass(frozen=True)
class AskedFor:
    """An EP of the manifest's target: the sources that its nodes have, and what its contexts should say that they are for."""

    ep: str
    sources: tuple[str, ...]
    entry: Entry | None
    options: Mapping[str, str]

    @property
    def target(self) -> str | None:
        """The name that a context for these options holds; None where nobody knows."""
        return self.entry.binary_target(self.options) if self.entry is not None else None


def entry_of(source: str | None) -> Entry | None:
    """What the catalog knows of the EP whose EPContext nodes have this `source`."""
    return next((found for found in map(entry, known_eps()) if source in found.sources), None)


def check_source(artifact: Artifact) -> Iterator[Finding]:
    """Whether every node comes from an EP of the manifest's target, or, without a manifest, from one that the catalog knows."""
    asked = _asked_for(artifact)
    for model in artifact.models:
        name = artifact.shown(model.file)
        found = list(dict.fromkeys(node.source for node in model.nodes))
        wrong = [finding for source in found if (finding := _source_finding(name, source, asked)) is not None]
        yield from wrong
        if found and not wrong:
            yield Finding("source", name, "passed")


def check_target(artifact: Artifact) -> Iterator[Finding]:
    """Whether each context is for the target of the manifest, or else for the one that its model names; and whether models are."""
    asked = _asked_for(artifact)
    seen: dict[Payload, str | None] = {}
    told: set[tuple[Payload, str | None]] = set()
    for model in artifact.models:
        for node in model.nodes:
            made_by = next((ep for ep in asked if node.source in ep.sources), None)
            # A manifest tells what sessions need: several SoCs in one context are asked for when it is compiled, and never again.
            said = _said_by(model, node) if made_by is None or made_by.target is None else None
            by = said or made_by
            wanted = by.target if by is not None else None
            payload = model.payload(node)
            if payload is None or payload.size == 0 or (payload, wanted) in told:
                continue
            told.add((payload, wanted))
            name = artifact.shown(model.binary(node) or model.file)
            known = by.entry if by is not None else entry_of(node.source)
            pattern = known.target_pattern if known is not None else None
            try:
                if payload not in seen:
                    seen[payload] = read_target(payload, pattern) if pattern else None
            except OSError as error:
                yield Finding("target", name, "failed", f"It cannot be read: {error.strerror or error}.", "EPB600")
                continue
            by_whom = f", as {model.file} says" if said is not None else ""
            yield _target_finding(name, seen[payload], wanted, by_whom, pattern is not None)
    for model in artifact.models:
        yield from _compatibility_findings(artifact, model, asked)


def check_partitions(artifact: Artifact) -> Iterator[Finding]:
    """Whether each context holds the graph that its node runs, as far as the names of graphs in it tell."""
    graphs: dict[tuple[Payload, bytes], frozenset[bytes]] = {}
    for model in artifact.models:
        for node in model.nodes:
            payloads = [found for main in _mains(model, node) if (found := model.payload(main)) is not None]
            if not node.partition_name or len(node.partition_name) > _LONGEST_GRAPH or not payloads:
                continue
            name, pattern = artifact.shown(model.file), _names_like(node.partition_name)
            try:
                for payload in payloads:
                    if (payload, pattern) not in graphs:
                        names = (match[0] for match in payload.matches(pattern))
                        graphs[payload, pattern] = frozenset(itertools.islice(names, _MOST_GRAPHS))
            except OSError as error:
                yield Finding("partitions", name, "failed", f"A context cannot be read: {error.strerror or error}.", "EPB600")
                continue
            yield _partition_finding(name, node, sorted({graph for payload in payloads for graph in graphs[payload, pattern]}))


def check_sharing(artifact: Artifact) -> Iterator[Finding]:
    """Whether models that share weights have one context binary between them, and others one each."""
    manifest = artifact.manifest
    binaries = {
        model.file: list(dict.fromkeys(binary for node in model.nodes if node.main_context and (binary := model.binary(node))))
        for model in artifact.models
    }
    users: dict[str, list[str]] = {}
    for file, names in binaries.items():
        for name in names:
            users.setdefault(name, []).append(file)
    if manifest is None:
        for binary, files in users.items():
            if len(files) > 1:
                message = f"{len(files)} models refer to it; no manifest says whether these are the ones that should."
                yield Finding("sharing", artifact.shown(binary), "skipped", message)
        return
    if not manifest.models:
        return  # a package, whose models are in folders of their own
    subject = artifact.place or manifest.group
    if not manifest.share_weights:
        shared = {binary: files for binary, files in users.items() if len(files) > 1}
        for binary, files in shared.items():
            message = f"{', '.join(files)} refer to it, and are not a sharing group."
            yield Finding("sharing", artifact.shown(binary), "failed", message, "EPB607")
        if not shared:
            yield Finding("sharing", subject, "passed")
        return
    asked = [ep for ep in _asked_for(artifact) if ep.sources]
    if not all(ep.entry is not None and ep.entry.sharing.binaries == "one" for ep in asked):
        yield from _check_shared_data(artifact)
        return
    alone = [file for file, names in binaries.items() if not names]
    if len(users) == 1 and not alone:
        yield Finding("sharing", subject, "passed")
        return
    named = ", ".join(users) or "none"
    message = f"{len(artifact.models)} models that share weights must have one context binary; there are {len(users)}: {named}."
    if alone:
        message += f" {', '.join(alone)} refer{'s' if len(alone) == 1 else ''} to none."
    yield Finding("sharing", subject, "failed", message, "EPB607")


def _check_shared_data(artifact: Artifact) -> Iterator[Finding]:
    """For EPs that share weights through the sources' external data: whether that was emitted beside each model."""
    manifest = artifact.manifest
    if manifest is None:
        return
    through_data = any(ep.entry is not None and ep.entry.sharing.weights == "source" for ep in _asked_for(artifact))
    subject = artifact.place or manifest.group
    if not through_data:
        yield Finding("sharing", subject, "skipped", "The catalog does not say how this EP shares weights.")
        return
    missing = []
    for model in manifest.models:
        folder = model.file.rpartition("/")[0]
        missing += [
            place for data in sorted(model.source_data) if (place := f"{folder}/{data}" if folder else data) not in manifest.files
        ]
    for place in dict.fromkeys(missing):
        message = "The models share weights through this file of their sources, and it was not emitted."
        yield Finding("sharing", artifact.shown(place), "failed", message, "EPB616")
    if not missing:
        yield Finding("sharing", subject, "passed")


def _asked_for(artifact: Artifact) -> tuple[AskedFor, ...]:
    """The EPs of the manifest's target, with their options in the catalog's spelling; none without a manifest."""
    if artifact.manifest is None:
        return ()
    found = []
    for name, options in artifact.manifest.eps.items():
        try:
            known = entry(name, artifact.manifest.document["toolchain"]["distributions"])
        except KeyError:
            found.append(AskedFor(name, (name,), None, options))
            continue
        found.append(
            AskedFor(name, known.sources, known, {option: _canonical(known, option, options[option]) for option in options})
        )
    return tuple(found)


def _canonical(known: Entry, name: str, value: str) -> str:
    try:
        option = find_option(known, name)
        return normalize(option, value, booleans=known.booleans, names=known.names.get(name, {}), strict=False)
    except (UnknownName, BadOption):
        return value


def _source_finding(name: str, source: str | None, asked: tuple[AskedFor, ...]) -> Finding | None:
    if not source:
        message = "An EPContext node has no source: ONNX Runtime gives it to no EP."
        return Finding("source", name, "failed", message, "EPB604")
    if asked:
        if any(source in ep.sources for ep in asked):
            return None
        makers = ", ".join(ep.ep for ep in asked if ep.sources)
        message = f"An EPContext node comes from '{source}'; the manifest's target is {makers}."
        return Finding("source", name, "failed", message, "EPB604")
    if entry_of(source) is not None:
        return None
    hint = nearest(source, [known for ep in known_eps() for known in entry(ep).sources])
    return Finding("source", name, "skipped", f"The catalog knows no EP that makes nodes with the source '{source}'.", hint=hint)


def _target_finding(name: str, seen: str | None, wanted: str | None, by_whom: str, readable: bool) -> Finding:
    if seen is None:
        why = "It does not say what it was compiled for" if readable else "The catalog cannot read what it was compiled for"
        return Finding("target", name, "skipped", f"{why}.")
    if wanted is None:
        return Finding("target", name, "skipped", f"It was compiled for {seen}; nothing says what was asked for.")
    if not is_target(seen, wanted):
        hint = "Check the target's options; the EP ignores what it does not understand."
        return Finding("target", name, "failed", f"It was compiled for {seen}, not for {wanted}{by_whom}.", "EPB608", hint)
    return Finding("target", name, "passed", f"It was compiled for {seen}.")


def _said_by(model: Model, node: EPContextNode) -> AskedFor | None:
    """What a model says in its compatibility string that its EP was asked for; None where it does not say."""
    known = entry_of(node.source)
    text = _compatibility(model, known.ep) if known is not None else None
    if known is None or text is None:
        return None
    return AskedFor(known.ep, known.sources, known, known.compatibility(text) or {})


def _compatibility(model: Model, ep: str) -> str | None:
    return None if isinstance(model.header, str) else model.header.metadata.get(f"{COMPATIBILITY}{ep}")


def _names_like(graph: str) -> bytes:
    """A pattern for the names that an EP gives to graphs: they differ in their numbers only."""
    parts = _NUMBER.split(graph)
    # What is hardly more than numbers may be anything in a binary: it has to be the very name.
    if sum(map(len, parts)) < _SHORTEST_GRAPH:
        return re.escape(graph.encode())
    return b"[0-9]{1,40}".join(re.escape(part.encode()) for part in parts)


def _partition_finding(name: str, node: EPContextNode, graphs: Sequence[bytes]) -> Finding:
    asked = node.partition_name or ""
    if asked.encode() in graphs:
        return Finding("partitions", name, "passed")
    if graphs:
        # This EP does write names of graphs into its contexts, so that one which is not there is not in this context.
        message = f"{shown(node)} runs the graph {asked}; its context holds {graphs[0].decode()} and not that."
        return Finding("partitions", name, "failed", message, "EPB618", "It was compiled from another model: emit both again.")
    message = f"{shown(node)} runs a graph whose name is not in its context: it is not this model's, or the EP writes no names."
    return Finding("partitions", name, "skipped", message)


def _compatibility_findings(artifact: Artifact, model: Model, asked: Iterable[AskedFor]) -> Iterator[Finding]:
    """Whether a model's compatibility strings name the target too: they are what ONNX Runtime chooses a model by."""
    for ep in asked:
        text = _compatibility(model, ep.ep)
        option = ep.entry.target_option if ep.entry is not None else None
        if text is None or ep.entry is None or option is None or option not in ep.options:
            continue
        said = (ep.entry.compatibility(text) or {}).get(option)
        if said is None:
            continue
        name = artifact.shown(model.file)
        if said.casefold() == ep.options[option].casefold():
            yield Finding("target", name, "passed", f"Its compatibility string is for {said}.")
        else:
            message = f"Its compatibility string is for {said}, not for {ep.options[option]}."
            yield Finding("target", name, "failed", message, "EPB608")


def _mains(model: Model, node: EPContextNode) -> list[EPContextNode]:
    """The nodes that may hold the context of a node: itself, or, with main_context 0, those of its source that have 1."""
    if node.main_context != 0:
        return [node]
    return [main for main in model.nodes if main.main_context != 0 and main.source == node.source]
