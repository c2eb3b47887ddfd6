"""Merging of compiled models into one model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.core.errors import ChangeRefused, Problem, VerifyError
from epbuild.core.safepath import BadReference
from epbuild.core.shown import format_path
from epbuild.onnxfile.edit.compiled import References, find_binary, read_compiled
from epbuild.onnxfile.edit.rewrite import PROTOBUF_LIMIT
from epbuild.onnxfile.edit.staging import drafts, make_exists_error, publish
from epbuild.onnxfile.merge.connection import (
    ConnectedModel,
    Connection,
    check_connections,
    connect_same_names,
    format_type,
    have_same_type,
)
from epbuild.onnxfile.merge.files import stage_files
from epbuild.onnxfile.merge.graphs import find_equal_inputs, is_context, read_text_attribute, walk_nodes
from epbuild.onnxfile.merge.naming import GraphPart, connect, name_ep, name_nodes, rename
from epbuild.onnxfile.read.epcontext import COMPATIBILITY, EPContextNode, resolve
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ValueInfo
from epbuild.onnxfile.read.weights_files import FindEp, find_weights

# Upper limit for the bytes that longer names can add to the models.
_NAMES = 1024 * 1024


class Merged(Struct, frozen=True):
    """Merged model with its files."""

    model: Path
    files: tuple[Path, ...]
    """Context binaries and external data files that the model refers to."""
    connections: tuple[Connection, ...]
    shared_inputs: tuple[str, ...]
    """Inputs that several models had under the same name, and that are now one input."""
    notes: tuple[str, ...]
    """Parts of the models that the merged model lacks, as one sentence each."""


def merge_models(
    inputs: Sequence[tuple[Path, str]], connections: Sequence[Connection] | None, destination: Path, find_ep: FindEp
) -> Merged:
    """Merge compiled models, each with a prefix for its names, into `destination`. Write the files of the merged model beside it.

    The models are in the order in which they run. `connections` lists the outputs that feed inputs. If it is None, an output is
    connected to each later input with the same name. All other inputs and outputs stay. Inputs with the same name in
    several models become one input. EPContext nodes keep their names unless two are equal, because EPs find a graph in its
    context by the node's name. `find_ep` returns the EP of a node, with the changes that it allows.

    Raises ChangeRefused (EPB620, EPB623, EPB624, EPB626 to EPB628) if the models do not fit together or an EP would not
    load the result. Raises VerifyError (EPB600, EPB602, EPB605) if a model is incomplete. Raises OSError. Nothing is
    written after an error.
    """
    opened = read_members([path for path, _ in inputs])
    _check_size(opened)
    _check_contexts(opened, find_ep)
    joined = connect_same_names(opened) if connections is None else tuple(connections)
    check_connections(opened, joined)
    if os.path.lexists(destination):
        raise make_exists_error(destination)
    import onnx

    references = References()
    parts = [
        GraphPart(item.label, prefix, onnx.load(item.path, load_external_data=False), not _is_shared(item, references), find_ep)
        for item, (_, prefix) in zip(opened, inputs, strict=True)
    ]
    connect(parts, joined)
    shared = _check_shared_inputs(parts, opened)
    name_nodes(parts)
    notes: list[str] = []
    merged = _assemble(parts, opened, notes)
    _check_equal_inputs(parts, merged)
    with drafts(destination.parent, [destination.name]) as folder:
        files, new = stage_files(opened, parts, folder, destination)
        for part in parts:
            merged.graph.node.extend(part.proto.graph.node)
        (folder / destination.name).write_bytes(merged.SerializeToString())
        _check_merged(folder / destination.name, merged, opened, find_ep)
        publish(folder, destination.parent, [*new, destination.name])
    return Merged(destination, tuple(destination.parent / name for name in files), joined, shared, tuple(notes))


def read_members(paths: Sequence[Path]) -> tuple[ConnectedModel, ...]:
    """Read the compiled models at `paths`. Raises VerifyError (EPB600, EPB602) and ChangeRefused (EPB620)."""
    seen = Counter[Path]()
    members = []
    for path in paths:
        seen[path] += 1
        label = format_path(path) if seen[path] == 1 else f"{format_path(path)} ({seen[path]})"
        members.append(ConnectedModel(path, label, read_compiled(path)))
    return tuple(members)


def _is_shared(item: ConnectedModel, references: References) -> bool:
    """Return whether another model refers to a context binary of this model. The context then has graphs for both models."""
    binaries = [find_binary(item.path, node) for node in item.header.ep_context_nodes if node.reference is not None]
    own = os.path.realpath(item.path)
    users = (path for binary in binaries for path in references.find_users(binary, item.path.parent))
    return any(os.path.realpath(path) != own for path in users)


def _check_size(opened: Sequence[ConnectedModel]) -> None:
    size = sum(item.path.stat().st_size for item in opened)
    if size > PROTOBUF_LIMIT - _NAMES:
        message = f"the merged model would have {size:,} bytes, but readers do not support models over 2 GiB"
        raise ChangeRefused(Problem("EPB623", message, None, "Extract the embedded contexts first: epbuild relink --extract."))


def _check_contexts(opened: Sequence[ConnectedModel], find_ep: FindEp) -> None:
    """Raise an error if the models have more compiled contexts than an EP loads from one model."""
    contexts: dict[str, dict[object, str]] = {}
    most_contexts: dict[str, int | None] = {}
    for number, item in enumerate(opened):
        for place, node in enumerate(item.header.ep_context_nodes):
            if node.reference is not None:
                context: object = os.path.realpath(find_binary(item.path, node))
            elif node.payload is not None:
                context = (number, place)
            else:
                continue
            ep, name = find_ep(node.source), name_ep(find_ep, node.source)
            contexts.setdefault(name, {})[context] = item.label
            most_contexts[name] = ep.context_changes.contexts if ep is not None else None
    for name, found in contexts.items():
        most = most_contexts[name]
        if most is not None and len(found) > most:
            owners = ", ".join(found.values())
            message = f"{name} loads only {most} context per model, but the merged model would have {len(found)}: {owners}"
            raise ChangeRefused(Problem("EPB626", message, None, "Keep them in separate models."))


def _check_shared_inputs(parts: Sequence[GraphPart], opened: Sequence[ConnectedModel]) -> tuple[str, ...]:
    """Return the inputs that become one input in the merged model. Raises an error if their types differ."""
    first: dict[str, tuple[ConnectedModel, ValueInfo]] = {}
    shared: dict[str, None] = {}
    for part, item in zip(parts, opened, strict=True):
        for value in item.header.inputs:
            if value.name in part.fed:
                continue
            name = part.names[value.name]
            other, known = first.setdefault(name, (item, value))
            if other is item:
                continue
            shared[name] = None
            if not have_same_type(known, value):
                message = f"the input '{name}' is {format_type(known)} in {other.label} but {format_type(value)} in {item.label}"
                raise ChangeRefused(Problem("EPB628", message, None, "Add a prefix to the names of one model with --prefix."))
    return tuple(shared)


def _assemble(parts: Sequence[GraphPart], opened: Sequence[ConnectedModel], notes: list[str]) -> Any:
    """Build the merged model without its nodes, because their references are not final yet."""
    from onnx import ModelProto

    merged = ModelProto(ir_version=max(part.proto.ir_version for part in parts), producer_name="epbuild")
    merged.graph.name = "_".join(dict.fromkeys(part.proto.graph.name for part in parts if part.proto.graph.name)) or "merged"
    for domain, version in _merge_opsets(parts).items():
        merged.opset_import.add(domain=domain, version=version)
    for key, text in _merge_metadata(opened, parts[0].find_ep, notes).items():
        merged.metadata_props.add(key=key, value=text)
    functions: dict[tuple[str, str, str], tuple[bytes, str]] = {}
    inputs: set[str] = set()
    inner: list[Any] = []
    for part in parts:
        graph = part.proto.graph
        fed, feeding = {part.names[name] for name in part.fed}, {part.names[name] for name in part.feeding}
        rename(part)
        for value in graph.input:
            if value.name not in fed and value.name not in inputs:
                inputs.add(value.name)
                merged.graph.input.append(value)
        for value in graph.output:
            # EPContext nodes do not declare the types of their outputs, but ONNX Runtime needs the type of each inner value.
            (inner.append if value.name in feeding else merged.graph.output.append)(value)
        inner.extend(graph.value_info)
        merged.graph.initializer.extend(graph.initializer)
        merged.graph.sparse_initializer.extend(graph.sparse_initializer)
        merged.graph.quantization_annotation.extend(graph.quantization_annotation)
        for function in part.proto.functions:
            identity = (function.domain, function.name, getattr(function, "overload", ""))
            content, label = functions.setdefault(identity, (function.SerializeToString(deterministic=True), part.label))
            if content != function.SerializeToString(deterministic=True):
                message = f"{label} and {part.label} have different functions named {function.domain}.{function.name}"
                raise ChangeRefused(Problem("EPB628", message))
            if label == part.label:
                merged.functions.append(function)
    outer = {value.name for value in merged.graph.output}
    merged.graph.value_info.extend({value.name: value for value in inner if value.name not in outer}.values())
    return merged


def _check_equal_inputs(parts: Sequence[GraphPart], merged: Any) -> None:
    """Raise an error if two inputs of an EPContext node would be the same value, even through other nodes."""
    owned = [(part.label, node) for part in parts for node in part.proto.graph.node]
    for number, first, second in find_equal_inputs([node for _, node in owned], merged.graph.initializer):
        owner, node = owned[number]
        values = f"'{first}'" if first == second else f"'{first}', which is '{second}'"
        message = (
            f"two inputs of the EPContext node '{node.name}' of {owner} would be the same value, {values}; "
            f"{read_text_attribute(node, 'source')} accepts each value only once"
        )
        hint = "Connect only one of them, or change the source model to use the value only once and recompile it."
        raise ChangeRefused(Problem("EPB626", message, None, hint))


def _merge_opsets(parts: Sequence[GraphPart]) -> dict[str, int]:
    """Return the version of each operator set. EPContext nodes work with any version.

    Models whose other nodes use an operator set must agree on its version. Raises ChangeRefused.
    """
    merged: dict[str, int] = {}
    needed: dict[str, tuple[int, str]] = {}
    for part in parts:
        used = {_normalize_domain(node.domain) for node in walk_nodes(part.proto.graph) if not is_context(node)}
        used |= {_normalize_domain(node.domain) for function in part.proto.functions for node in function.node}
        for opset in part.proto.opset_import:
            domain, version = _normalize_domain(opset.domain), opset.version
            merged[domain] = max(merged.get(domain, 0), version)
            if domain in used:
                known, label = needed.setdefault(domain, (version, part.label))
                if known != version:
                    first = f"{label} uses version {known} of the operators '{domain or 'ai.onnx'}'"
                    message = f"{first} but {part.label} uses version {version}"
                    raise ChangeRefused(Problem("EPB628", message, None, "Convert one of the source models, and recompile it."))
    return {**merged, **{domain: version for domain, (version, _) in needed.items()}}


def _merge_metadata(opened: Sequence[ConnectedModel], find_ep: FindEp, notes: list[str]) -> dict[str, str]:
    """Merge the models' metadata. An EP's compatibility string must be equal in all models with a context of this EP."""

    def is_of(node: EPContextNode, ep: str | None) -> bool:
        return ep is not None and name_ep(find_ep, node.source) == name_ep(find_ep, ep)

    merged: dict[str, str] = {}
    for key in dict.fromkeys(key for item in opened for key in item.header.metadata):
        holders = [item for item in opened if key in item.header.metadata]
        ep = key.removeprefix(COMPATIBILITY) if key.startswith(COMPATIBILITY) else None
        users = [item for item in holders if any(is_of(node, ep) for node in item.header.ep_context_nodes)]
        values = {item.header.metadata[key]: item.label for item in reversed(users or holders)}
        if len(values) == 1:
            merged[key] = next(iter(values))
        elif ep is not None:
            targets = "; ".join(f"{label} for {value}" for value, label in reversed(values.items()))
            raise ChangeRefused(Problem("EPB628", f"the models were compiled by {ep} for different targets: {targets}"))
        else:
            notes.append(f"the metadata '{key}' was left out, since the models have different values for it")
    return merged


def _check_merged(path: Path, merged: Any, opened: Sequence[ConnectedModel], find_ep: FindEp) -> None:
    """Raise VerifyError unless the result has all nodes, inputs and outputs of the models, and a file for each reference."""
    header = read_header(path)
    operators = sum((Counter(item.header.operators) for item in opened), Counter[tuple[str, str]]())
    try:
        for node in header.ep_context_nodes:
            if node.reference is not None:
                resolve(path, node)
                find_weights(path, node, find_ep(node.source))
    except BadReference as error:
        raise VerifyError(Problem("EPB629", f"the merged model is invalid: {error}")) from error
    written = ([value.name for value in header.inputs], [value.name for value in header.outputs])
    initialized = {tensor.name for tensor in merged.graph.initializer}
    initialized |= {tensor.values.name for tensor in merged.graph.sparse_initializer}
    inputs = [value.name for value in merged.graph.input if value.name not in initialized]
    asked = (inputs, [value.name for value in merged.graph.output])
    if Counter(header.operators) != operators or written != asked:
        raise VerifyError(Problem("EPB629", "the merged model does not have all nodes, inputs and outputs of its models"))


def _normalize_domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
