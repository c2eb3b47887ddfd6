"""Compilation of a session group: stage, compile in a new process, verify, store.

If a group fails, none of its files are kept. `execute` depends only on its arguments and returns digests, so that another machine
could run it.
"""

from __future__ import annotations

import filecmp
import json
import os
import posixpath
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from epbuild.compile.failure import make_compile_error, make_staging_error, translate_size_errors
from epbuild.compile.node_log import MARK, VERBOSE, NodeLog
from epbuild.compile.node_names import check_known_nodes, prefix_nodes
from epbuild.core.clone import copy_file
from epbuild.core.errors import BuildError, EnvironmentFailure, EpbuildError, Problem, StepId, VerifyError, escape_controls
from epbuild.core.safepath import is_inside, is_regular, resolve_links
from epbuild.engine.events import StepOutput, StepStarted
from epbuild.onnxfile.edit.fix_sizes import fix_sizes
from epbuild.onnxfile.edit.initializers import share_initializers
from epbuild.onnxfile.edit.rewrite import raise_max_sizes
from epbuild.onnxfile.read.epcontext import read_compatibility
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.sizes import apply_shapes
from epbuild.onnxfile.read.weights import WeightBytes, count_weights, read_weights
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.key import compute_action_key
from epbuild.plan.member import Member
from epbuild.plan.request import build_worker_document, compile_document
from epbuild.plan.result import (
    DIAGNOSTICS,
    CompileResult,
    ContextNode,
    Measurements,
    ModelResult,
    find_result,
    open_action_records,
)
from epbuild.plan.steps import SessionGroup
from epbuild.toolchain.diagnosis import FREE_SPACE, extract_last_lines
from epbuild.toolchain.execution import REQUEST, Execution, StepLog, Worker
from epbuild.toolchain.process import Ending, LineHandling
from epbuild.toolchain.reports import BadReport
from epbuild.verify.checks import CompiledModel, Expected, ExpectedEp, ExpectedModel, check_compiled
from epbuild.verify.signature import get_source_signature
from epbuild.worker.scripts import COMPILE

_INPUT = "in"
_OUTPUT = "out"

# EP compilers allocate and free hundreds of megabytes at a time. The kernel spent half of a compile's time clearing these pages.
# Keeping freed memory saves a quarter of that. Large pages cost more than they save (docs/internals/performance.md).
# Only glibc reads these tunables:
# https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html
# Processes that only load models run without the tunables, like applications.
ALLOCATION = {
    "GLIBC_TUNABLES": ":".join(
        f"glibc.malloc.{name}={value}"
        for name, value in {"mmap_threshold": 1 << 30, "trim_threshold": 2 << 30, "top_pad": 64 << 20}.items()
    )
}
"""Environment variables that speed up a compile. A target's own variables take precedence."""


def execute(group: SessionGroup, document: Mapping[str, Any], execution: Execution) -> CompileResult:
    """Compile, verify and store a session group. Return its result, which identifies each artifact by digest.

    Raises BuildError or EnvironmentFailure if the worker fails, VerifyError if its output is not as requested, StoreError if the
    artifacts cannot be stored, and Cancelled.
    """
    begin = time.monotonic()
    models, shared, ending, node_log = _compile(group, document, execution)
    sources = {member.name: apply_shapes(read_header(member.graph), member.inputs) for member in group.members}
    weights_file = group.weights_file if shared is not None and shared.stored_bytes else None
    finished = [report for report in ending.reports if report.get("event") == "member_finished"]
    measured = Measurements(
        seconds=round(time.monotonic() - begin, 3),
        members={report["member"]: report["seconds"] for report in finished},
        peak_memory=ending.reports[-1].get("peak_memory"),
    )
    artifacts = _list_artifacts(models)
    diagnostics = _move_diagnostics(execution.staging, artifacts) if group.target.writes_diagnostics else ()
    kept = execution.keep(group.steps[-1], execution.staging / _OUTPUT, (*artifacts, *diagnostics))
    results = tuple(
        ModelResult(
            member=model.member,
            # Inputs and outputs of the source model, so that users who have only the artifacts can compare them.
            source=get_source_signature(sources[model.member], model.header.outputs, weights_file),
            file=model.file,
            binaries=model.binaries,
            data=tuple(model.data),
            nodes=tuple(map(ContextNode.of, model.header.ep_context_nodes)),
            fallback_nodes=len(model.header.other_nodes),
            compatibility=read_compatibility(model.header.metadata),
            left=node_log.list_fallback_nodes(model.member, model.header.other_nodes),
            output_shapes={value.name: value.shape for value in model.header.outputs},
        )
        for model in models
    )
    source_weights = _count_source_weights(group, execution)
    return CompileResult(
        kept.artifacts,
        kept.log,
        measured,
        results,
        shared_initializers=shared,
        source_weights=source_weights,
        diagnostics=diagnostics,
    )


def rebuild(group: SessionGroup, document: Mapping[str, Any], execution: Execution) -> dict[str, Path]:
    """Compile and verify a session group without storing it. Return its artifacts in the staging directory, by name.

    Raises the errors of `execute`.
    """
    models = _compile(group, document, execution).models
    return {name: execution.staging / _OUTPUT / name for name in _list_artifacts(models)}


def build_key_document(group: SessionGroup, execution: Execution) -> dict[str, Any]:
    """Return the key document of a group outside a plan, such as a probe or a single member of a sharing group."""
    try:
        digests = execution.digests(group.files)
    except OSError as error:
        raise make_staging_error(group, error) from error
    return compile_document(group, digests, execution.environment.identity(*group.identity_parts))


def _list_artifacts(models: Sequence[CompiledModel]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for model in models for name in (model.file, *model.binaries, *model.data)))


def _move_diagnostics(staging: Path, artifacts: Collection[str]) -> tuple[str, ...]:
    """Move all files of the worker except `artifacts` into the folder of diagnostic files. Return their new names."""
    ours = {REQUEST, *(f"{_OUTPUT}/{name}" for name in artifacts)}
    found = {path.relative_to(staging).as_posix(): path for path in sorted(staging.rglob("*")) if is_regular(path)}
    names = []
    for name in found.keys() - ours:
        _move(found[name], staging / _OUTPUT / DIAGNOSTICS / name)
        names.append(f"{DIAGNOSTICS}/{name}")
    return tuple(sorted(names))


def _keep_diagnostics_of_failure(group: SessionGroup, execution: Execution) -> None:
    """Move the diagnostic files of a failed compile beside its log."""
    ours = {REQUEST, *(file.name for file in _list_staged_files(group))}
    staging, kept = execution.staging, execution.log.with_suffix("")
    for path in [path for path in sorted(staging.rglob("*")) if is_regular(path)]:
        name = path.relative_to(staging)
        place = kept / name
        if name.parts[0] not in (_INPUT, _OUTPUT) and name.as_posix() not in ours and is_inside(place, kept.parent):
            place.unlink(missing_ok=True)
            _move(path, place)


def _move(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(path, place)


class _Compiled(NamedTuple):
    """Verified models of a group, size of the sources' shared initializers, and the worker's ending and log."""

    models: tuple[CompiledModel, ...]
    shared: WeightBytes | None
    ending: Ending
    node_log: NodeLog


def _compile(group: SessionGroup, document: Mapping[str, Any], execution: Execution) -> _Compiled:
    """Compile and verify the group's artifacts in the staging directory."""
    _check_prefixes(group, execution)
    try:
        return _compile_staged(group, document, execution)
    except EpbuildError:
        if group.target.writes_diagnostics:
            with suppress(OSError):  # the failure matters more
                _keep_diagnostics_of_failure(group, execution)
        raise


def _compile_staged(group: SessionGroup, document: Mapping[str, Any], execution: Execution) -> _Compiled:
    """Stage the group's inputs, and compile and verify its artifacts."""
    shared = _stage(group, document, execution)
    node_log = make_node_log(group)
    worker = Worker("worker", COMPILE, group.timeout, {**ALLOCATION, **group.target.environment})
    ending = execution.run(worker, StepId(group.id), _GroupLog(group, execution, node_log))
    error = make_compile_error(group, ending, execution.shown_log, node_log.list_refused_nodes())
    if error is not None:
        raise error
    execution.release_slot()
    try:
        for member in group.members:
            prefix_nodes(group, member, execution.staging / member.output)
        if group.share:
            raise_max_sizes([execution.staging / member.output for member in group.members])
        needed = {member.name: _copy_source_data(group, member, execution) for member in group.members}
    except OSError as failure:
        message = f"the compiled files could not be rewritten: {failure.strerror or failure}"
        raise EnvironmentFailure(Problem("EPB405", message, StepId(group.id), FREE_SPACE)) from failure
    models = tuple(
        replace(model, data=tuple(dict.fromkeys((*model.data, *needed[model.member]))))
        for model in _verify(group, execution.staging / _OUTPUT, ending)
    )
    execution.recheck()
    _unstage(group, execution)
    return _Compiled(models, shared, ending, node_log)


def _check_prefixes(group: SessionGroup, execution: Execution) -> None:
    """Raise BuildError (EPB440) if the store has this group without prefixes, and its nodes cannot have them."""
    if not any(member.compile.node_name_prefix for member in group.members):
        return
    members = tuple(replace(member, compile=replace(member.compile, node_name_prefix=None)) for member in group.members)
    key = compute_action_key(build_key_document(replace(group, members=members), execution))
    found = find_result(open_action_records(execution.store.root), execution.store, key, CompileResult)
    for member, result in zip(group.members, found.models if found is not None else (), strict=False):
        check_known_nodes(group, member, result.nodes)


class _StagedFile(Struct, frozen=True):
    """File that a session group's worker reads unchanged."""

    path: Path
    name: str
    """Path in the staging directory."""
    is_copy: bool = False
    """True if the staged file must be a copy, not a hard link to the user's file."""


def _list_staged_files(group: SessionGroup) -> Iterator[_StagedFile]:
    for member in group.members if group.weights_file is None else ():
        if not member.inputs:
            yield _StagedFile(member.graph, member.source)
        folder = member.source.rpartition("/")[0]
        # Two locations can be different spellings of the same file. If one location needs a copy, the other needs it too.
        copied = {posixpath.normpath(location).casefold() for location in member.compiled_files.subgraph_data}
        for location, path in member.external.items():
            yield _StagedFile(path, f"{folder}/{location}", posixpath.normpath(location).casefold() in copied)
    for file in group.target.option_files:
        yield _StagedFile(file.path, file.staged)


def _stage(group: SessionGroup, document: Mapping[str, Any], execution: Execution) -> WeightBytes | None:
    """Link the inputs into the staging directory under stable names. Return the sizes of initializers in the shared weights file.

    ONNX Runtime rejects symbolic links, so the files are hard links if the file system supports them. External data of subgraphs
    is copied, because ONNX Runtime rejects hard links there.
    """
    (execution.staging / _OUTPUT).mkdir()
    try:
        for file in _list_staged_files(group):
            _stage_file(group, file, execution)
        _fix_input_sizes(group, execution.staging)
        shared = _share_initializers(group, execution)
        # At this severity, the log contains the reasons for fallback nodes and the start of each model.
        node_log = {"severity": VERBOSE, "mark": MARK} if make_node_log(group).is_wanted else None
        request = json.dumps(build_worker_document(group, document, node_log), indent=1, sort_keys=True)
        (execution.staging / REQUEST).write_text(request, encoding="utf-8")
    except OSError as error:
        raise make_staging_error(group, error) from error
    return shared


def _fix_input_sizes(group: SessionGroup, staging: Path) -> None:
    """For each member whose input sizes the recipe sets, write a graph with these sizes to the staging directory."""
    for member in group.members:
        if member.inputs:
            graph = staging / _get_sized_path(group, member)
            graph.parent.mkdir(parents=True, exist_ok=True)
            with translate_size_errors(member.name, StepId(group.id)):
                fix_sizes(member.graph, graph, member.inputs)


def _get_sized_path(group: SessionGroup, member: Member) -> str:
    """Return the staging path of a member's graph with fixed sizes.

    This is the path from which the member is compiled, unless the graph is rewritten again to share initializers.
    """
    return member.source if group.weights_file is None else f"{_INPUT}/{member.name}.sized.onnx"


def _share_initializers(group: SessionGroup, execution: Execution) -> WeightBytes | None:
    """Write the sources and their shared weights file, if the group shares initializers. Return the sizes of the initializers.

    The weights file is written beside each source.
    """
    if group.weights_file is None or group.initializer_threshold is None:
        return None
    staging = execution.staging
    try:
        models = {
            staging / member.source: staging / _get_sized_path(group, member) if member.inputs else member.graph
            for member in group.members
        }
        data = {staging / member.source: member.external for member in group.members}
        read = [*models.values(), *(path for files in data.values() for path in files.values())]
        with execution.counting(group.steps[0], "sharing the weights of", read) as count:
            return share_initializers(models, group.weights_file, group.initializer_threshold, data, count)
    except MalformedModel as error:
        message = f"the initializers cannot be written into one file: {error}"
        raise BuildError(Problem("EPB418", message, StepId(group.id), "Export or copy the model again.")) from error


def _unstage(group: SessionGroup, execution: Execution) -> None:
    for file in _list_staged_files(group):
        with execution.relinking([file.path]):
            (execution.staging / file.name).unlink(missing_ok=True)
    shutil.rmtree(execution.staging / _INPUT)


def _stage_file(group: SessionGroup, file: _StagedFile, execution: Execution) -> None:
    staged = execution.staging / file.name
    staged.parent.mkdir(parents=True, exist_ok=True)
    real = resolve_links(file.path)
    if staged.exists() and staged.samefile(real):
        return  # the same file under two spellings of its name
    staged.unlink(missing_ok=True)  # another file; it is not overwritten in place, because it may be a link to a user's file
    if file.is_copy:
        _copy(group.steps[0], real, staged, execution)
        return
    try:
        if sys.platform == "win32" and not os.access(real, os.W_OK):
            raise PermissionError  # a link to a read-only file could not be removed again
        with execution.relinking([file.path]):
            os.link(real, staged)
    except OSError:
        _copy(group.steps[0], real, staged, execution)


def _copy(step: str, source: Path, target: Path, execution: Execution) -> None:
    """Copy a file as work of a step. Raises OSError."""
    with execution.counting(step, "copying", [source]) as count:
        copy_file(source, target, count)


class _GroupLog(StepLog):
    """Log of a group's worker. Each line is assigned to the step of the member that is being compiled."""

    def __init__(self, group: SessionGroup, execution: Execution, node_log: NodeLog) -> None:
        super().__init__(group.steps[0], execution.progress)
        self._share = group.share
        self._steps = dict(zip((member.name for member in group.members), group.steps, strict=False))
        self._node_log = node_log

    def reported(self, report: Mapping[str, Any]) -> None:
        if report["event"] == "member_started":
            if report["member"] not in self._steps:
                raise BadReport(f"the start of '{escape_controls(report['member'])}'")
            self.step = self._steps[report["member"]]
            self.progress.report(StepStarted(self.step, "compiling"))
        elif report["event"] == "member_finished" and self._share:
            self.progress.report(StepOutput(self.step, "compiled; its group is not finished yet"))

    def classify(self, line: str) -> LineHandling:
        return self._node_log.read(line)


def _copy_source_data(group: SessionGroup, member: Member, execution: Execution) -> tuple[str, ...]:
    """Copy the source's external data beside a compiled model that still uses the data, because ONNX Runtime does not copy it.

    A model uses the data if its initializers stay in the source, if its EP shares weights through the source's data, or if its
    context is weightless. In the last two cases, return the locations of the data. The data includes the context binaries of a source
    that is partly compiled.
    """
    shared = group.share and any(ep.entry.sharing.weights == "source" for ep in group.target.eps)
    shared = shared or group.target.weightless_key is not None
    if not shared and member.compile.initializers != "source" and not member.compiled_files.context_sources:
        return ()
    external, staging = member.external, execution.staging
    if group.weights_file is not None:
        weights = (staging / member.source).parent / group.weights_file
        external = {group.weights_file: weights} if weights.exists() else {}
    if not shared:
        used = _list_references(staging / member.output)
        external = {location: path for location, path in external.items() if posixpath.normpath(location) in used}
    for location, path in external.items():
        target = (staging / member.output).parent / location
        if target.exists() and not filecmp.cmp(path, target, shallow=False):
            message = f"the external data {location} of '{member.name}' has the name of a file that the EP wrote"
            raise BuildError(Problem("EPB417", message, StepId(group.id), "Rename the data or the model."))
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy(group.steps[-1], resolve_links(path), target, execution)
    return tuple(external) if shared else ()


def _list_references(model: Path) -> set[str]:
    """Return the locations of a compiled model's external data and context binaries.

    A missing or malformed model has none, because the verifier reports it.
    """
    try:
        header = read_header(model)
    except (MalformedModel, FileNotFoundError):
        return set()
    binaries = (node.reference for node in header.ep_context_nodes if node.reference is not None)
    return {posixpath.normpath(location) for location in (*header.external_locations, *binaries)}


def _verify(group: SessionGroup, folder: Path, ending: Ending) -> tuple[CompiledModel, ...]:
    expected = Expected(
        step=group.id,
        eps=tuple(ExpectedEp(ep.entry.ep, ep.entry, ep.binary_target) for ep in group.target.eps),
        models=tuple(
            ExpectedModel(
                member=member.name,
                file=member.output.removeprefix(f"{_OUTPUT}/"),
                embed=member.compile.embed,
            )
            for member in group.members
        ),
        one_binary=group.share and group.target.one_binary,
    )
    try:
        return check_compiled(folder, expected)
    except VerifyError as error:
        quote = extract_last_lines(ending.tail)
        if not quote:
            raise
        logged = Problem("EPB610", f"the EP logged during the compile: {quote}", StepId(group.id))
        raise VerifyError(*error.problems, logged) from error


def make_node_log(group: SessionGroup) -> NodeLog:
    """Return a reader for the log of a group's worker."""
    return NodeLog(ep.entry.node_log for ep in group.target.eps if ep.entry.node_log is not None)


def _count_source_weights(group: SessionGroup, execution: Execution) -> WeightBytes | None:
    """Return the sizes of the weights in a sharing group's sources, with and without duplicates.

    Return None if the group does not share or if the weights cannot be read.
    """
    if not group.share or len(group.members) < 2:
        return None
    try:
        weights = count_weights([read_weights(member.graph, member.external) for member in group.members])
    except (OSError, MalformedModel):
        return None  # no compiled file depends on these sizes
    execution.recheck()
    return weights
