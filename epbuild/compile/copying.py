"""Copies of models that a group emits without compiling them."""

from __future__ import annotations

import time
from pathlib import Path

from epbuild.compile.failure import make_staging_error, translate_size_errors
from epbuild.core.clone import copy_file
from epbuild.core.errors import StepId
from epbuild.core.safepath import resolve_links
from epbuild.onnxfile.edit.fix_sizes import fix_sizes
from epbuild.onnxfile.read.epcontext import read_compatibility
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.sizes import Shape
from epbuild.plan.member import Member
from epbuild.plan.result import CompileResult, ContextNode, Measurements, ModelResult
from epbuild.plan.shapes import resolve_header
from epbuild.plan.steps import SessionGroup
from epbuild.toolchain.execution import Execution
from epbuild.verify.signature import get_signature

_FOLDER = "out"


def copy_model(group: SessionGroup, execution: Execution) -> CompileResult:
    """Store the only model of a session group, with its external data, and return the result.

    Raises BuildError if the model's input sizes cannot be set, EnvironmentFailure if the model cannot be read, and StoreError.
    """
    begin = time.monotonic()
    [member] = group.members
    files = stage_copy(group, execution)
    file = _get_file_name(group)
    header = read_header(files[file])
    execution.log.write_text(f"{file} is emitted without being compiled\n", encoding="utf-8")
    # The store copies external data directly from its place.
    folder, data = execution.staging / _FOLDER, {name: path for name, path in files.items() if name != file}
    kept = execution.keep(group.id, folder, [file])
    with execution.counting(group.id, "storing", data.values()) as count:
        stored = {name: execution.store.put(resolve_links(path), count=count) for name, path in data.items()}
    execution.recheck()
    model = ModelResult(
        member=member.name,
        source=get_signature(header),
        file=file,
        binaries={},
        data=tuple(data),
        nodes=tuple(map(ContextNode.of, header.ep_context_nodes)),
        fallback_nodes=len(header.other_nodes),
        compatibility=read_compatibility(header.metadata),
        output_shapes={value.name: value.shape for value in header.outputs},
    )
    measured = Measurements(seconds=round(time.monotonic() - begin, 3), members={}, peak_memory=None)
    return CompileResult({**kept.artifacts, **stored}, kept.log, measured, (model,))


def stage_copy(group: SessionGroup, execution: Execution) -> dict[str, Path]:
    """Write the graph of a group's only model to the staging directory, with the input sizes of the recipe.

    Return the paths of the graph and of the external data by artifact name. Raises the errors of `copy_model`.
    """
    [member] = group.members
    graph = execution.staging / _FOLDER / _get_file_name(group)
    try:
        graph.parent.mkdir()
        with translate_size_errors(member.name, StepId(group.id)):
            if sizes := _find_new_shapes(member):
                fix_sizes(member.graph, graph, sizes)
            else:
                copy_file(resolve_links(member.graph), graph)
    except OSError as error:
        raise make_staging_error(group, error) from error
    return {graph.name: graph, **member.external}


def _find_new_shapes(member: Member) -> dict[str, Shape]:
    """Return the shapes of the inputs whose sizes the recipe sets, by input name."""
    header = read_header(member.graph)
    pairs = zip(header.inputs, resolve_header(member, header).inputs, strict=True)
    return {new.name: new.shape for old, new in pairs if new.shape is not None and new.shape != old.shape}


def _get_file_name(group: SessionGroup) -> str:
    return f"{group.members[0].name}.onnx"
