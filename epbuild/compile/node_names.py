"""Name prefix of EPContext nodes (`compile.node_name_prefix`).

Some EPs ignore this setting, so epbuild renames their nodes after the compile. `partition_name` gets the prefix too, unless the EP
finds the graph in the context by this attribute. The graph in the context keeps its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from epbuild.core.atomic import new_file
from epbuild.core.errors import BuildError, Problem, StepId, VerifyError
from epbuild.onnxfile.edit.rewrite import NewNames, rename_nodes
from epbuild.onnxfile.read.epcontext import EPContextNode
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.member import Member
from epbuild.plan.result import ContextNode
from epbuild.plan.steps import SessionGroup
from epbuild.plan.target import PlannedEp


def prefix_nodes(group: SessionGroup, member: Member, model: Path) -> None:
    """Rename the EPContext nodes of a compiled model that lack the prefix in the member's settings.

    A missing or malformed model is skipped, because the verifier reports it. Raises BuildError (EPB440) if the EP would not
    find its contexts under new names, VerifyError (EPB441) if anything but names would change, and OSError.
    """
    prefix = member.compile.node_name_prefix
    if not prefix:
        return
    try:
        header = read_header(model)
    except (MalformedModel, FileNotFoundError):
        return
    names = _choose_names(group, member, header.ep_context_nodes, prefix)
    if not names:
        return
    with new_file(model, durable=False) as draft:  # in the staging directory, which is temporary
        rename_nodes(model, draft, names)
        _check_renamed(group, member, header, read_header(draft), names)


def check_known_nodes(group: SessionGroup, member: Member, nodes: Sequence[EPContextNode | ContextNode]) -> None:
    """Raise BuildError (EPB440) if the nodes of an earlier compile of this model cannot have the prefix of the member."""
    if member.compile.node_name_prefix:
        _choose_names(group, member, nodes, member.compile.node_name_prefix)


def _choose_names(
    group: SessionGroup, member: Member, nodes: Sequence[EPContextNode | ContextNode], prefix: str
) -> dict[int, NewNames]:
    """Return the new names of the nodes to rename, by the index of the node."""
    eps = [_find_ep(group, node.source) for node in nodes]
    counts = Counter(ep.entry.ep for ep in eps if ep is not None)
    names = {}
    for index, (node, ep) in enumerate(zip(nodes, eps, strict=True)):
        if node.name.startswith(prefix) or ep is None:
            continue
        rule = ep.entry.node_names
        if rule is None:
            reason = f"{ep.entry.ep} ignores the prefix, and the catalog has no rule for renaming the nodes of this EP"
            raise _make_error(group, member, reason)
        names_graph = rule.found_by == "partition_name"
        # An EP that identifies a context by the name of its node accepts a new name only if the context has one node.
        if not names_graph and (counts[ep.entry.ep] > 1 or len(group.members) > 1):
            count = (
                f"the model was compiled to {counts[ep.entry.ep]} nodes"
                if counts[ep.entry.ep] > 1
                else "the models share a context"
            )
            raise _make_error(group, member, f"{count}, and {rule.why}")
        is_graph_renamed = node.partition_name is not None and not names_graph
        names[index] = NewNames(prefix + node.name, f"{prefix}{node.partition_name}" if is_graph_renamed else None)
    return names


def _find_ep(group: SessionGroup, source: str | None) -> PlannedEp | None:
    return next((ep for ep in group.target.eps if ep.entry.has_source(source)), None)


def _make_error(group: SessionGroup, member: Member, reason: str) -> BuildError:
    prefix = member.compile.node_name_prefix
    message = f"the EPContext nodes of '{member.name}' cannot have the node_name_prefix '{prefix}': {reason}"
    return BuildError(Problem("EPB440", message, StepId(group.id), "Remove compile.node_name_prefix for this model."))


def _check_renamed(
    group: SessionGroup, member: Member, before: ModelHeader, after: ModelHeader, names: dict[int, NewNames]
) -> None:
    """Raise VerifyError unless the nodes have distinct names, the nodes of `names` have their new names, and nothing else changed."""
    expected = list(before.ep_context_nodes)
    for index, (name, partition_name) in names.items():
        node = expected[index]
        expected[index] = replace(node, name=name, partition_name=partition_name or node.partition_name)
    if len({node.name for node in expected}) != len({node.name for node in before.ep_context_nodes}) or (
        _strip_offsets(after) != _strip_offsets(replace(before, ep_context_nodes=tuple(expected)))
    ):
        change = f"renaming the EPContext nodes of '{member.name}' changed more than their names"
        message = f"{change}; the renamed model was discarded"
        raise VerifyError(Problem("EPB441", message, StepId(group.id), "Report this bug in epbuild, and attach the model."))


def _strip_offsets(header: ModelHeader) -> ModelHeader:
    declared = header.declarations
    # New names change the offset of an embedded context in the file, but not its size.
    nodes = tuple(replace(node, payload=(0, node.payload[1]) if node.payload else None) for node in declared.ep_context_nodes)
    return replace(declared, ep_context_nodes=nodes)
