"""Planner of a merge of compiled models: members, connections and prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from epbuild.core.errors import Problem, suggest_nearest
from epbuild.onnxfile.merge.connection import Connection
from epbuild.plan.steps import Merging
from epbuild.recipe.model import GroupSpec, Merge, Reference


def plan_merging(group: GroupSpec, merge: Merge, problems: list[Problem]) -> Merging | None:
    """Plan the merge of the members of `group` into one model. If the merge is invalid, add the reasons to `problems` and return None.

    The names of outputs and inputs are not checked here, but when the models are merged.
    """
    members = list(dict.fromkeys(member.name for member in group.members))
    found = len(problems)
    if len(members) < 2:
        message = f"the group '{group.name}' cannot be merged, because it has fewer than two models"
        problems.append(Problem("EPB234", message, merge.where, "List at least two models."))
    for member in group.members:
        if not member.compiled:
            message = f"the group '{group.name}' cannot be merged, because its model '{member.name}' is not compiled"
            problems.append(Problem("EPB234", message, merge.where, "Remove 'merge', or 'compile: none'."))
    for name, prefix in merge.prefixes.items():
        if name not in members:
            problems.append(_make_unknown_problem(f"'{name}' is not a model", group, members, Reference(name, prefix.name_where)))
    connections = None
    if merge.connect is not None:
        connections = [_plan_connection(group, members, *ends, problems) for ends in merge.connect]
        _check_fed_once(merge, connections, problems)
    if len(problems) > found:
        return None
    return Merging(
        name=merge.name,
        members=tuple(members),
        prefixes={name: str(merge.prefixes[name].value) if name in merge.prefixes else "" for name in members},
        connections=None if connections is None else tuple(made for made in connections if made is not None),
    )


def _plan_connection(
    group: GroupSpec, members: Sequence[str], output: Reference, value: Reference, problems: list[Problem]
) -> Connection | None:
    ends = [_split_end(group, members, end, problems) for end in (output, value)]
    if ends[0] is None or ends[1] is None:
        return None
    made = Connection(*ends[0], *ends[1])
    if made.source < made.target:
        return made
    message = f"'{output.name}' cannot feed '{value.name}': '{members[made.target]}' does not follow '{members[made.source]}' in the group"
    problems.append(Problem("EPB235", message, value.where, "List the group's models in the order in which they run."))
    return None


def _split_end(group: GroupSpec, members: Sequence[str], end: Reference, problems: list[Problem]) -> tuple[int, str] | None:
    """Split `model.value` into a member's number and the value's name. Names may contain dots, so use the longest matching member."""
    if not end.name.partition(".")[2]:
        problems.append(Problem("EPB235", f"'{end.name}' does not have the form model.value", end.where))
        return None
    fitting = [name for name in members if end.name.startswith(f"{name}.") and len(end.name) > len(name) + 1]
    if not fitting:
        problems.append(_make_unknown_problem(f"'{end.name}' does not start with the name of a model", group, members, end))
        return None
    name = max(fitting, key=len)
    return members.index(name), end.name[len(name) + 1 :]


def _check_fed_once(merge: Merge, connections: Sequence[Connection | None], problems: list[Problem]) -> None:
    fed = set()
    for (_, value), made in zip(merge.connect or (), connections, strict=True):
        if made is None:
            continue
        if (made.target, made.input) in fed:
            hint = "Connect each input to only one output."
            problems.append(Problem("EPB235", f"'{value.name}' is connected twice", value.where, hint))
        fed.add((made.target, made.input))


def _make_unknown_problem(what: str, group: GroupSpec, members: Sequence[str], reference: Reference) -> Problem:
    name = reference.name.partition(".")[0]
    hint = suggest_nearest(name, members) or f"Models of the group: {', '.join(members)}."
    return Problem("EPB234", f"{what} of the group '{group.name}'", reference.where, hint)
