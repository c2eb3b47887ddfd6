"""Makes one model of a group's compiled models while they are laid out, and tells what became of them."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epbuild.catalog.catalog import BUILT_IN
from epbuild.compile.executor import COMPATIBILITY, node_document
from epbuild.core.errors import BuildError, Problem, StepId, VerifyError
from epbuild.onnxfile.headers import read_header
from epbuild.onnxfile.refusal import ChangeRefused
from epbuild.plan.key import action_key
from epbuild.plan.steps import Merging, Part

if TYPE_CHECKING:
    from epbuild.onnxfile.merge import Merged


@dataclass(frozen=True)
class MergedModel:
    """The merged model as a manifest tells of it: its EPContext nodes, and what its EPs wrote down, as plain data."""

    nodes: tuple[dict[str, Any], ...]
    compatibility: Mapping[str, str]


def settings_of(merging: Merging) -> dict[str, Any]:
    """All that merging depends on beside the models, as plain data."""
    connections = merging.connections
    return {
        "name": merging.name,
        "order": ", ".join(merging.members),
        "prefixes": dict(merging.prefixes),
        "connect": "same names" if connections is None else dict(_shown(merging, *item)[::-1] for item in connections),
    }


def merged_key(merging: Merging, keys: Mapping[str, str]) -> str:
    """The digest that names everything that a merged model depends on; `keys` are those of its members."""
    return action_key({"merge": settings_of(merging), "members": dict(keys)})


def draft_names(part: Part, merging: Merging) -> dict[str, str]:
    """Where the members lie while they are merged: beside the merged model, since that is where their references lead from."""
    folder = posixpath.dirname(part.models[merging.name])
    return {member: posixpath.join(folder, f".{member}.merging.onnx") for member in merging.members}


def merge(part: Part, merging: Merging, staged: Path, say: Callable[[str], None]) -> MergedModel:
    """Put the merged model in the place of the members' models below `staged`, where these and all that they refer to lie.

    `say` is told what was connected, and what was left out. Raises BuildError where the models cannot be merged.
    """
    from epbuild.onnxfile.merge import merge_models

    paths = {member: staged / name for member, name in draft_names(part, merging).items()}
    destination = staged / part.models[merging.name]
    own = {source: ep.entry.context_changes for ep in part.target.eps for source in ep.entry.sources}
    pairs = [(paths[member], merging.prefixes[member]) for member in merging.members]
    try:
        made = merge_models(pairs, merging.connections, destination, {**BUILT_IN.context_changes(), **own})
    except (ChangeRefused, VerifyError) as error:
        raise BuildError(*(_told(problem, paths, merging.step) for problem in error.problems)) from error
    for path in paths.values():
        path.unlink()
    for sentence in _notes(merging, made):
        say(sentence)
    header = read_header(destination)
    return MergedModel(
        nodes=tuple(node_document(node) for node in header.ep_context_nodes),
        compatibility={
            name.removeprefix(COMPATIBILITY): value for name, value in header.metadata.items() if name.startswith(COMPATIBILITY)
        },
    )


def _told(problem: Problem, paths: Mapping[str, Path], step: str) -> Problem:
    """A problem of files that nobody has seen, as one of the members, at the step."""
    message, hint = problem.message, problem.hint
    for member, path in paths.items():
        message = message.replace(str(path), f"'{member}'")
    if hint is not None:
        hint = hint.replace("--prefix", "the group's merge.prefixes")
    return replace(problem, message=message, hint=hint, where=StepId(step))


def _notes(merging: Merging, made: Merged) -> list[str]:
    fed = [f"{output} feeds {value}" for output, value in (_shown(merging, *item) for item in made.connections)]
    shared = [f"the input {name} is one for all models that have it" for name in made.shared_inputs]
    return [*(fed or ["no output feeds an input"]), *shared, *made.notes]


def _shown(merging: Merging, source: int, output: str, target: int, value: str) -> tuple[str, str]:
    """The two ends of a connection, as a recipe writes them."""
    return f"{merging.members[source]}.{output}", f"{merging.members[target]}.{value}"
