"""Checks of artifacts that only read files, in the order in which they run.

No EP is loaded, and no file outside the artifact's folder is opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from epbuild.catalog.catalog import name_source_ep
from epbuild.core.safepath import BadReference, locate
from epbuild.onnxfile.read.epcontext import SCHEMA_TYPES, WEIGHTLESS_MODE, EPContextNode
from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.checks import check_embedded_size, check_references, check_whole
from epbuild.verify.contexts import check_node_sources, check_partitions, check_sharing, check_targets
from epbuild.verify.facts import Context, Model, format_node_title
from epbuild.verify.findings import Finding, format_sentence, make_failed
from epbuild.verify.listing import check_digests, check_encryption, check_files, check_manifest, check_provenance
from epbuild.verify.signature import describe_signature_differences, describe_wrong_declarations, get_signature

_MAX_PATH_LENGTH = 1024
_FILE_FAULT = "one of its files failed a check"
_WITH_WEIGHTS, _WITHOUT_DATA, _WITHOUT_WEIGHTS = "0", "1", "2"


def check_models(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that models are complete, and that at least one is compiled."""
    for model in artifact.models:
        name = artifact.format_path(model.file)
        flaw, listed = check_whole(model), artifact.listed.get(model.file)
        if flaw is None or (flaw.code == "EPB603" and listed is not None and not listed.compiled):
            yield Finding("model", name, "passed")
        elif flaw.code == "EPB603" and artifact.manifest is None and artifact.whole:
            yield Finding("model", name, "skipped", "It contains no EPContext node: it is not a compiled model.")
        else:
            yield make_failed("model", name, flaw)
    if artifact.whole and not artifact.has_manifest and not any(model.is_compiled for model in artifact.models):
        yield Finding("model", artifact.title, "failed", "None of the models in this folder is compiled.", "EPB603")


def check_schema(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check every EPContext node against the operator's schema. Nodes that need a context must have one, and other nodes must have none."""
    for name, model, _ in artifact.compiled:
        flaws = [f"{format_node_title(node)} {flaw}" for node in model.nodes for flaw in _find_node_flaws(node)]
        yield from _make_findings("schema", name, [*flaws, *_find_model_flaws(model)], "EPB614")


def check_model_references(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that the files that a model refers to are below its folder, large enough, and listed in the manifest."""
    listed = artifact.manifest.files if artifact.manifest is not None else None
    for name, model, _ in artifact.compiled:
        flaws = [flaw.text for flaw in check_references(model)]
        if listed is not None:  # Without a manifest, the expected files are unknown.
            unlisted = [other for other in model.references if model.resolve_beside(other) not in listed]
            flaws += [f"it refers to {other}, which the manifest does not list" for other in unlisted]
        yield from _make_findings("references", name, flaws, "EPB605")


def check_source_data(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that the external data of sources was emitted if compiled models need this data.

    Models with weightless contexts need all of it. If their contexts contain no weights at all, they also need the source model.
    """
    manifest, listed = artifact.manifest, artifact.listed
    for name, model, header in artifact.compiled:
        mode = header.metadata.get(WEIGHTLESS_MODE, _WITH_WEIGHTS)
        if mode not in (_WITH_WEIGHTS, _WITHOUT_DATA, _WITHOUT_WEIGHTS):
            yield Finding("source data", name, "skipped", f"Its {WEIGHTLESS_MODE} '{mode}' is unknown.")
            continue
        if mode == _WITHOUT_WEIGHTS and (missing := list(_find_missing_sources(model))):
            yield from _make_findings("source data", name, missing, "EPB616", "Put the source model beside the compiled model.")
            continue
        if manifest is None or model.file not in listed:
            if header.external_data or mode != _WITH_WEIGHTS:
                message = "Without a manifest, it is unknown whether the external data belongs to the model or to its source."
                yield Finding("source data", name, "skipped", message)
            else:
                yield Finding("source data", name, "passed")
            continue
        source_data, is_weightless = listed[model.file].source_data, mode != _WITH_WEIGHTS or manifest.asks_for_weightless
        needed = sorted(source_data) if is_weightless else [place for place in header.external_data if place in source_data]
        flaws = [
            f"it {'needs' if is_weightless else 'refers to'} {location}, the external data of its source model, "
            "but this file was not emitted"
            for location in needed
            if model.resolve_beside(location) not in manifest.files
        ]
        hint = None if is_weightless else "Set compile.initializers to inline or external."
        yield from _make_findings("source data", name, flaws, "EPB616", hint)


def _find_missing_sources(model: Model) -> Iterator[str]:
    """Yield a flaw for each source model of weightless contexts that is not beside the compiled model."""
    for source in dict.fromkeys(node.onnx_model_filename for node in model.nodes if node.onnx_model_filename):
        try:
            locate(model.path.parent, source, "source model")
        except BadReference as error:
            yield f"its contexts contain no weights, and {error}"


def check_signatures(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that each model has the inputs and outputs of its source.

    A free dimension of the source may have a fixed size in the model.
    """
    for name, model, header in artifact.compiled:
        source = artifact.listed.get(model.file)
        if source is None or source.signature is None:
            yield Finding("signature", name, "skipped", "The inputs and outputs of its source are unknown.")
            continue
        flaws = list(describe_signature_differences(source.signature, get_signature(header)))
        if flaws:
            yield from _make_findings("signature", name, flaws, "EPB617")
        else:
            yield Finding("signature", name, "passed", describe_wrong_declarations(source.signature.outputs))


def _make_findings(check: str, name: str, flaws: list[str], code: str, hint: str | None = None) -> Iterator[Finding]:
    """Yield a failure for each flaw, or a pass if there are no flaws."""
    for flaw in dict.fromkeys(flaws):
        yield Finding(check, name, "failed", format_sentence(flaw), code, hint)
    if not flaws:
        yield Finding(check, name, "passed")


def _find_node_flaws(node: EPContextNode) -> Iterator[str]:
    for name, kind in node.written:
        if kind != (wanted := SCHEMA_TYPES.get(name, kind)):
            yield f"has the attribute {name} of type {kind}, but the type must be {wanted}"
    for name, count in Counter(name for name, _ in node.written).items():
        if count > 1:
            yield f"has the attribute {name} {count} times"
    for name, value in (("embed_mode", node.embed_mode), ("main_context", node.main_context)):
        if value not in (0, 1):
            yield f"has {name} {value}, but the value must be 0 or 1"
    if node.max_size < 0:
        yield f"has the negative max_size {node.max_size}"
    has_context = bool(node.reference) or bool(node.payload and node.payload[1])
    if node.main_context == 1 and not has_context:
        yield "has main_context 1 but no context: ep_cache_context is missing or empty"
    elif node.main_context == 0 and has_context:
        yield "has main_context 0 but contains a context, which EPs ignore"


def _find_model_flaws(model: Model) -> Iterator[str]:
    mains = {name_source_ep(node.source) for node in model.nodes if node.main_context != 0}
    for node in model.nodes:
        if node.main_context == 0 and name_source_ep(node.source) not in mains:
            yield f"{format_node_title(node)} has main_context 0, but no node with the source '{node.source}' has main_context 1"
    for context in model.contexts:
        if (name := _find_embedded_name(model, context)) is not None:
            yield f"{format_node_title(context.node)} embeds the file name '{name}' instead of a context; its embed_mode must be 0"
    if (flaw := check_embedded_size(model)) is not None:
        yield f"the model {flaw.text}"


def _find_embedded_name(model: Model, context: Context) -> str | None:
    """Return the file name that a node embeds instead of its context, or None. The file is beside the model."""
    node, payload = context.node, context.payload
    if node.payload is None or payload is None or not 0 < payload.size <= _MAX_PATH_LENGTH:
        return None
    try:
        name = payload.read().decode("utf-8")
        locate(model.path.parent, name)
    except (ValueError, OSError):
        return None
    return name


CHECKS = (
    check_manifest,
    check_files,
    check_digests,
    check_encryption,
    check_provenance,
    check_models,
    check_schema,
    check_model_references,
    check_source_data,
    check_node_sources,
    check_targets,
    check_partitions,
    check_sharing,
    check_signatures,
)


def check_artifact(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Run all checks, and yield each finding as soon as it is known."""
    for check in CHECKS:
        yield from check(artifact)


def find_faulty_models(artifact: ArtifactFolder, findings: Iterable[Finding]) -> dict[str, str]:
    """Return the models that must not be loaded, by file, with the reason as the end of a sentence.

    A fault in a model, or in a file that it refers to, excludes only that model. A fault in another listed file excludes no
    model. Any other fault, such as a fault in the manifest, excludes all models.
    """
    users: dict[str, list[str]] = {}
    for model in artifact.models:
        for name in {model.file, *map(model.resolve_beside, model.references)}:
            users.setdefault(artifact.format_path(name), []).append(model.file)
    listed = artifact.manifest.files if artifact.manifest is not None else ()
    others = {artifact.format_path(name) for name in listed}
    faulty: dict[str, str] = {}
    for finding in findings:
        if finding.outcome != "failed":
            continue
        if finding.subject in users:
            faulty.update(dict.fromkeys(users[finding.subject], _FILE_FAULT))
        elif finding.subject not in others:
            faulty.update({model.file: f"the check '{finding.check}' of {finding.subject} failed" for model in artifact.models})
    return faulty
