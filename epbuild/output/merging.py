"""Merging of a group's compiled models into one."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from epbuild.catalog.catalog import find_source_entry
from epbuild.catalog.entries import EpEntry
from epbuild.core.errors import BuildError, ChangeRefused, Problem, StepId, VerifyError
from epbuild.core.shown import format_path
from epbuild.onnxfile.read.epcontext import read_compatibility
from epbuild.onnxfile.read.headers import read_header
from epbuild.output.files import MergedHeader, MergedModel
from epbuild.plan.key import compute_action_key
from epbuild.plan.result import ContextNode
from epbuild.plan.steps import Merging, Part

if TYPE_CHECKING:
    from epbuild.onnxfile.merge.merge import Merged


def describe_merging(merging: Merging) -> dict[str, Any]:
    """Return everything that merging depends on except the models, as plain data."""
    connect: str | dict[str, str] = "same names"
    if merging.connections is not None:
        ends = (_format_ends(merging, *connection) for connection in merging.connections)
        connect = {target: source for source, target in ends}
    return {
        "name": merging.name,
        "order": ", ".join(merging.members),
        "prefixes": dict(merging.prefixes),
        "connect": connect,
    }


def compute_merged_key(merging: Merging, keys: Mapping[str, str]) -> str:
    """Return the digest of everything that a merged model depends on. `keys` has the action keys of its members."""
    return compute_action_key({"merge": describe_merging(merging), "members": dict(keys)})


def name_drafts(part: Part, merging: Merging) -> dict[str, str]:
    """Return a temporary path for each member's model. It is beside the merged model, so that relative references stay valid."""
    folder = posixpath.dirname(part.models[merging.name])
    return {member: posixpath.join(folder, f".{member}.merging.onnx") for member in merging.members}


def merge(model: MergedModel, staged: Path) -> list[str]:
    """Replace the members' models below `staged` with the merged model, and return notes on connections and omissions.

    All files that the models refer to are below `staged`. Raises BuildError if the models cannot be merged.
    """
    from epbuild.onnxfile.merge.merge import merge_models

    part, merging = model.part, model.merging
    paths = {member: staged / name for member, name in model.drafts.items()}
    destination = staged / part.models[merging.name]

    def find_ep(source: str | None) -> EpEntry | None:
        own = next((ep.entry for ep in part.target.eps if ep.entry.has_source(source)), None)
        return own or find_source_entry(source)

    models = [(paths[member], merging.prefixes[member]) for member in merging.members]
    try:
        merged = merge_models(models, merging.connections, destination, find_ep)
    except (ChangeRefused, VerifyError) as error:
        raise BuildError(*(_name_members(problem, paths, merging.step) for problem in error.problems)) from error
    for path in paths.values():
        path.unlink()
    return _describe_merged(merging, merged)


def read_merged(model: Path) -> MergedHeader:
    """Read the header of a merged model."""
    header = read_header(model)
    return MergedHeader(
        nodes=tuple(msgspec.to_builtins(ContextNode.of(node)) for node in header.ep_context_nodes),
        compatibility=read_compatibility(header.metadata),
    )


def _name_members(problem: Problem, paths: Mapping[str, Path], step: str) -> Problem:
    """Return a copy of a problem whose message has the members' names instead of paths of drafts. Its location is the step."""
    message, hint = problem.message, problem.hint
    for member, path in paths.items():
        message = message.replace(format_path(path), f"'{member}'")
    if hint is not None:
        hint = hint.replace("--prefix", "the group's merge.prefixes")
    return replace(problem, message=message, hint=hint, where=StepId(step))


def _describe_merged(merging: Merging, merged: Merged) -> list[str]:
    ends = (_format_ends(merging, *connection) for connection in merged.connections)
    connected = [f"{source} feeds {target}" for source, target in ends]
    shared = [f"all models that have the input {name} share it" for name in merged.shared_inputs]
    return [*(connected or ["no output of a model feeds an input of another model"]), *shared, *merged.notes]


def _format_ends(merging: Merging, source: int, output: str, target: int, value: str) -> tuple[str, str]:
    """Return the two ends of a connection as recipes write them."""
    return f"{merging.members[source]}.{output}", f"{merging.members[target]}.{value}"
