"""`Recipe` → `Plan`: the ordered graph of steps. Reads model headers; writes nothing, starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import PureWindowsPath

from epbuild.errors import PlanError, Problem, nearest
from epbuild.onnxfile import ModelHeader
from epbuild.plan.options import plan_target, sharing_refusals
from epbuild.plan.outputs import collisions, plan_emission
from epbuild.plan.sources import SourceModel, find_source
from epbuild.plan.steps import Emission, Member, Plan, PlannedTarget, SessionGroup, Step
from epbuild.recipe import Group, Recipe


def make_plan(recipe: Recipe, selection: Sequence[str] = ()) -> Plan:
    """The plan of `recipe`, or of the steps whose ids match a glob in `selection` and what these need.

    Raises PlanError with every problem found. The files of a model that no selected step needs are not looked at.
    """
    work = _Work(recipe)
    for group in recipe.groups.values():
        work.add_group(group)
    work.problems += collisions(work.emissions)
    steps, unmatched = _select(work.steps, selection)
    if not work.problems:
        # Otherwise it may be a wrong target or output that keeps the wanted steps out of the plan.
        work.problems += unmatched
    kept = {step.action for step in steps}
    work.resolve(kept)
    if work.problems:
        raise PlanError(*dict.fromkeys(work.problems))
    return Plan(
        steps=tuple(steps),
        session_groups={ident: group for ident, group in work.groups.items() if ident in kept},
        emissions={ident: emission for ident, emission in work.emissions.items() if ident in kept},
        warnings=tuple(dict.fromkeys(work.warnings)),
    )


@dataclass
class _Work:
    """A plan in the making: what has been found so far, right and wrong."""

    recipe: Recipe
    steps: list[Step] = field(default_factory=list)
    groups: dict[str, SessionGroup] = field(default_factory=dict)
    emissions: dict[str, Emission] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.targets: dict[str, PlannedTarget] = {}
        for target in self.recipe.targets.values():
            planned = plan_target(target, self.recipe.toolchains[target.toolchain.name], self.problems)
            if planned is not None:
                self.targets[target.name] = planned

    def add_group(self, group: Group) -> None:
        if group.share_weights and group.compile.embed:
            where = group.compile.embed_where or group.where
            message = f"the group '{group.name}' shares weights and embeds: an embedded context cannot be shared"
            self.problems.append(Problem("EPB230", message, where, "Set compile.embed to false, or share_weights to false."))
        self._check_members(group)
        for reference in group.targets:
            target = self.targets.get(reference.name)
            if target is None:
                continue
            if group.share_weights:
                self.problems += [
                    Problem(
                        "EPB231", f"the group '{group.name}' cannot share weights for '{target.name}': {reason}", reference.where
                    )
                    for reason in sharing_refusals(target)
                ]
            self._add_steps(group, target)

    def _check_members(self, group: Group) -> None:
        seen: set[str] = set()
        for reference in group.models:
            if reference.name in seen:
                message = f"the group '{group.name}' names the model '{reference.name}' twice"
                self.problems.append(Problem("EPB232", message, reference.where, "Name each model once."))
            seen.add(reference.name)
        external = group.compile.external_file
        if external and (PureWindowsPath(external).name != external or external == ".."):
            message = f"the external initializers of the group '{group.name}' would be written to '{external}', which is a path"
            self.problems.append(Problem("EPB221", message, group.where, "Write the name of a file: it lies beside the model."))
        if external and len(group.models) > 1 and "${model}" not in external:
            message = (
                f"the models of the group '{group.name}' would write their external initializers into one file, '{external}'"
            )
            self.problems.append(Problem("EPB222", message, group.where, "Put ${model} into its name."))

    def _add_steps(self, group: Group, target: PlannedTarget) -> None:
        place = f"{group.name}/{target.name}"
        names = list(dict.fromkeys(reference.name for reference in group.models))
        compiles = [f"compile:{place}/{name}" for name in names]
        share = f"share:{place}"
        if group.share_weights:
            self._add_session(share, group, target, names, (*compiles, share))
            self.steps += [Step(ident, "compile", (), share) for ident in compiles]
            self.steps.append(Step(share, "share", tuple(compiles), share))
            sessions: list[str] = [share]
        else:
            for name, ident in zip(names, compiles, strict=True):
                self._add_session(ident, group, target, [name], (ident,))
                self.steps.append(Step(ident, "compile", (), ident))
            sessions = compiles
        counts: dict[str, int] = {}
        for output in self.recipe.outputs:
            counts[output.layout] = number = counts.get(output.layout, 0) + 1
            ident = f"emit:{place}/{output.layout}" + (f"-{number}" if number > 1 else "")
            groups = [self.groups[session] for session in sessions]
            emission = plan_emission(output, ident, group, target, groups, self.recipe.directory, self.problems)
            if emission is not None:
                self.emissions[ident] = emission
                self.steps.append(Step(ident, "emit", tuple(sessions), ident))

    def _add_session(self, ident: str, group: Group, target: PlannedTarget, names: list[str], steps: tuple[str, ...]) -> None:
        sources = (self.recipe.models[name] for name in names)
        self.groups[ident] = SessionGroup(
            id=ident,
            group=group.name,
            target=target,
            # The files are found once it is known which groups are wanted.
            members=tuple(Member(source.name, self.recipe.file, {}, source.sha256, source.path_where) for source in sources),
            share=group.share_weights,
            compile=group.compile,
            expect=group.expect,
            timeout=group.timeout,
            steps=steps,
        )

    def resolve(self, actions: set[str]) -> None:
        """Find the files of every model that an action needs; each model is read once, however many groups use it."""
        wanted = {member.name for ident, group in self.groups.items() if ident in actions for member in group.members}
        found: dict[str, SourceModel] = {}
        for name in (name for name in self.recipe.models if name in wanted):
            try:
                found[name] = find_source(self.recipe.models[name], self.recipe.directory)
            except PlanError as error:
                self.problems += error.problems
        for ident, group in self.groups.items():
            if all(member.name in found for member in group.members):
                members = tuple(
                    replace(member, graph=found[member.name].graph, external=found[member.name].external)
                    for member in group.members
                )
                self.groups[ident] = replace(group, members=members)
                if group.share and ident in actions:
                    self.warnings += _lonely(group, {member.name: found[member.name].header for member in members})


def _select(steps: Iterable[Step], selection: Sequence[str]) -> tuple[list[Step], list[Problem]]:
    """The steps that match a glob, and all that they need: whole actions, in the plan's order; and the globs that match nothing."""
    ordered = list(steps)
    if not selection:
        return ordered, []
    by_id = {step.id: step for step in ordered}
    by_action: dict[str, list[Step]] = {}
    for step in ordered:
        by_action.setdefault(step.action, []).append(step)
    waiting: list[str] = []
    unmatched: list[Problem] = []
    for glob in selection:
        matching = [ident for ident in by_id if fnmatchcase(ident, glob)]
        if not matching:
            hint = nearest(glob, by_id) or "`epbuild plan` lists the steps."
            unmatched.append(Problem("EPB240", f"no step matches '{glob}'", None, hint))
        waiting += matching
    kept: set[str] = set()
    while waiting:
        step = by_id[waiting.pop()]
        for sibling in by_action[step.action]:
            if sibling.id not in kept:
                kept.add(sibling.id)
                waiting += sibling.needs
    return [step for step in ordered if step.id in kept], unmatched


def _lonely(group: SessionGroup, headers: dict[str, ModelHeader]) -> list[Problem]:
    """A warning for each member of a sharing group that has no weight of a name and shape that another member has."""
    weights = {name: {(weight.name, weight.dims) for weight in header.initializers} for name, header in headers.items()}
    problems = []
    for member in group.members:
        others = set().union(*(mine for name, mine in weights.items() if name != member.name))
        if len(weights) > 1 and not weights[member.name] & others:
            message = f"the model '{member.name}' has no weight in common with the others of '{group.group}': it shares nothing"
            problems.append(Problem("EPB233", message, member.where))
    return problems
