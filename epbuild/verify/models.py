"""Each model of an artifact by itself: whole, of the operator's schema, and in need of nothing outside its folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from epbuild.core.safepath import BadReference, locate
from epbuild.onnxfile.embed import PROTOBUF_LIMIT
from epbuild.onnxfile.epcontext import SCHEMA_TYPES, EPContextNode, resolve
from epbuild.verify.artifact import Artifact, Model
from epbuild.verify.findings import Finding

_LONGEST_NAME = 60
_LONGEST_PATH = 1024


def check_models(artifact: Artifact) -> Iterator[Finding]:
    """Whether every model is a whole ONNX file, and compiled."""
    compiled = False
    for model in artifact.models:
        name = artifact.shown(model.file)
        header = model.header
        if isinstance(header, str):
            yield Finding("model", name, "failed", header, "EPB602", "Make or copy it again.")
        elif header.is_compiled:
            compiled = True
            yield Finding("model", name, "passed")
        elif artifact.manifest is not None or not artifact.whole:
            yield Finding("model", name, "failed", "It holds no EPContext node: nothing of it was compiled.", "EPB603")
        else:
            yield Finding("model", name, "skipped", "It holds no EPContext node: it is no compiled model.")
    if artifact.whole and not artifact.has_manifest and not compiled:
        yield Finding("model", artifact.title, "failed", "None of the models in this folder is a compiled one.", "EPB603")


def check_schema(artifact: Artifact) -> Iterator[Finding]:
    """Whether every EPContext node is as the operator's schema has it, with a context where one must be and nowhere else."""
    for model in artifact.models:
        if not model.nodes:
            continue
        flaws = [f"{shown(node)} {flaw}." for node in model.nodes for flaw in _flaws(node)]
        flaws += _flaws_between(model)
        for flaw in flaws:
            yield Finding("schema", artifact.shown(model.file), "failed", flaw, "EPB614")
        if not flaws:
            yield Finding("schema", artifact.shown(model.file), "passed")


def check_references(artifact: Artifact) -> Iterator[Finding]:
    """Whether everything that a model refers to is below its folder, also when links are followed, and is not empty or too short."""
    for model in artifact.models:
        header = model.header
        if isinstance(header, str) or not header.is_compiled:
            continue
        flaws = [flaw for node in header.ep_context_nodes if (flaw := _reference_flaw(model, node))]
        flaws += [flaw for location, needed in header.external_data.items() if (flaw := _data_flaw(model, location, needed))]
        flaws += _unlisted(artifact, model)
        for flaw in dict.fromkeys(flaws):
            yield Finding("references", artifact.shown(model.file), "failed", flaw, "EPB605")
        if not flaws:
            yield Finding("references", artifact.shown(model.file), "passed")


def check_source_data(artifact: Artifact) -> Iterator[Finding]:
    """Whether no model still needs the external data of its source, except what was emitted with it."""
    manifest = artifact.manifest
    by_file = {listed.file: listed for listed in manifest.models} if manifest is not None else {}
    for model in artifact.models:
        header = model.header
        if isinstance(header, str) or not header.is_compiled:
            continue
        name = artifact.shown(model.file)
        if manifest is None or model.file not in by_file:
            if header.external_data:
                message = "No manifest says whether its external data is its own, or the source's."
                yield Finding("source data", name, "skipped", message)
            else:
                yield Finding("source data", name, "passed")
            continue
        left = [
            location
            for location in header.external_data
            if location in by_file[model.file].source_data and _beside(model, location) not in manifest.files
        ]
        for location in left:
            message = f"It refers to {location}, external data of its source model that was not emitted with it."
            yield Finding("source data", name, "failed", message, "EPB616", "Set compile.initializers to inline or external.")
        if not left:
            yield Finding("source data", name, "passed")


def shown(node: EPContextNode) -> str:
    """A node as a sentence begins with it."""
    name = node.name if len(node.name) <= _LONGEST_NAME else f"{node.name[:_LONGEST_NAME]}…"
    return f"The EPContext node '{name}'" if name else "An EPContext node without a name"


def _flaws(node: EPContextNode) -> Iterator[str]:
    """What is wrong with a node, as the rest of a sentence."""
    for name, kind in node.written:
        if kind != (wanted := SCHEMA_TYPES.get(name, kind)):
            yield f"has the attribute {name} with the type {kind}, which must be {wanted}"
    for name, count in Counter(name for name, _ in node.written).items():
        if count > 1:
            yield f"has the attribute {name} {count} times"
    for name, value in (("embed_mode", node.embed_mode), ("main_context", node.main_context)):
        if value not in (0, 1):
            yield f"has {name} {value}, which must be 0 or 1"
    if node.max_size < 0:
        yield f"has max_size {node.max_size}, which must not be negative"
    has_context = bool(node.reference) or bool(node.payload and node.payload[1])
    if node.main_context == 1 and not has_context:
        yield "has main_context 1 and no context: ep_cache_context is missing or empty"
    elif node.main_context == 0 and has_context:
        yield "has main_context 0 and a context of its own, which no EP looks at"


def _flaws_between(model: Model) -> Iterator[str]:
    """What is wrong with the nodes of a model together, and with embedded contexts as a whole."""
    mains = {node.source for node in model.nodes if node.main_context != 0}
    for node in model.nodes:
        if node.main_context == 0 and node.source not in mains:
            yield f"{shown(node)} has main_context 0, and no node of '{node.source}' has main_context 1."
    for node in model.nodes:
        if (name := _embedded_name(model, node)) is not None:
            yield f"{shown(node)} embeds not a context but the name of a file, {name}: its embed_mode must be 0."
    if any(node.payload for node in model.nodes) and model.path.stat().st_size > PROTOBUF_LIMIT:
        yield "The model embeds its context and is over 2 GiB, which no reader takes."


def _embedded_name(model: Model, node: EPContextNode) -> str | None:
    """The file beside a model that the whole embedded context of a node is the name of."""
    if node.payload is None or not 0 < node.payload[1] <= _LONGEST_PATH:
        return None
    try:
        with model.path.open("rb") as file:
            file.seek(node.payload[0])
            name = file.read(node.payload[1]).decode("utf-8")
        locate(model.path.parent, name)
    except (ValueError, OSError):
        return None
    return name


def _reference_flaw(model: Model, node: EPContextNode) -> str | None:
    if node.reference is None:
        return None
    try:
        empty = resolve(model.path, node).stat().st_size == 0
    except BadReference as error:
        return str(error)
    except OSError as error:
        return f"The context binary '{node.reference}' cannot be read: {error.strerror or error}."
    return f"The context binary '{node.reference}' is empty." if empty else None


def _data_flaw(model: Model, location: str, needed: int) -> str | None:
    try:
        size = locate(model.path.parent, location, "external data file").stat().st_size
    except BadReference as error:
        return str(error)
    except OSError as error:
        return f"The external data file '{location}' cannot be read: {error.strerror or error}."
    return f"The external data file '{location}' has {size:,} bytes; the model needs {needed:,} of it." if size < needed else None


def _unlisted(artifact: Artifact, model: Model) -> Iterator[str]:
    """Files that a model refers to and the manifest does not list: nothing says that they are the right ones."""
    header = model.header
    if artifact.manifest is None or isinstance(header, str):
        return
    named = [node.reference for node in header.ep_context_nodes if node.reference] + list(header.external_data)
    for name in dict.fromkeys(named):
        if _beside(model, name) not in artifact.manifest.files:
            yield f"It refers to {name}, which the manifest does not list."


def _beside(model: Model, name: str) -> str:
    """A file that a model refers to, as a POSIX path below the artifact's folder."""
    return str(PurePosixPath(model.file).parent / name)
