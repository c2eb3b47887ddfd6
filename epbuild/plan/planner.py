"""Planner that turns a `Recipe` into a `Plan`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.cache.digests import NONE_UNCHANGED, UnchangedFiles
from epbuild.cache.memo import NO_MEMO, Memo
from epbuild.catalog.catalog import Catalog
from epbuild.catalog.userfile import BadCatalog
from epbuild.core.errors import PlanError, Problem, ProblemRecord
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.baselines import Baselines
from epbuild.plan.custom_ops import CustomOpLibraries, plan_custom_ops
from epbuild.plan.group_problems import (
    find_prefix_problems,
    find_runtime_problems,
    find_session_problems,
    find_sharing_warnings,
    find_size_problems,
    find_weightless_problems,
)
from epbuild.plan.measuring import ModelMeasurement, plan_measurement, with_command_files
from epbuild.plan.member import Member, resolve_settings
from epbuild.plan.merging import plan_merging
from epbuild.plan.options import TargetPlanner, find_sharing_refusals
from epbuild.plan.outputs import (
    PartNames,
    find_collisions,
    find_data_problems,
    find_encryption_refusals,
    find_overlong_paths,
    find_package_refusals,
    make_part,
    name_outputs,
    plan_names,
    plan_registry,
    resolve_output_path,
)
from epbuild.plan.pipeline import plan_adapters, plan_genai
from epbuild.plan.preparing import Preparation, get_maker, plan_preparations, with_files
from epbuild.plan.selection import NOWHERE, Places, select_steps
from epbuild.plan.sessions import Session, find_sharing_set_problems, find_size_limit_problems, list_sessions
from epbuild.plan.shapes import find_model_size_problems, find_predicted_problems, fit_inputs, predict_header
from epbuild.plan.source_problems import find_data_name_problems, find_source_problems, find_source_warnings
from epbuild.plan.sources import Locate, SourceModel, find_source, make_compiled_problem
from epbuild.plan.steps import Action, CopiedModel, Emission, Genai, Merging, Part, Plan, SessionGroup, Step
from epbuild.plan.target import PlannedTarget
from epbuild.plan.toolchain_problems import find_toolchain_problems
from epbuild.plan.verification import Verification, plan_verification, with_inputs
from epbuild.recipe.model import GraphOptimization, GroupMember, GroupSpec, ModelSpec, Recipe
from epbuild.recipe.outputs import LAYOUT_FORMS
from epbuild.recipe.patterns import FileFinder

_Records = tuple[ProblemRecord, ...]


def make_plan(
    recipe: Recipe,
    selection: Sequence[str] = (),
    locate: Locate = lambda model: None,
    places: Places = NOWHERE,
    memo: Memo = NO_MEMO,
    unchanged: UnchangedFiles = NONE_UNCHANGED,
) -> Plan:
    """Plan a recipe, or only the steps that match a glob in `selection` and the steps that they need.

    `locate` finds the remote models that the planned steps need. `memo` provides cached results for unchanged models.
    The stats of files in `unchanged` are not read again.
    Raises PlanError with all problems. A glob that matches nothing is reported only if there are no other problems.
    """
    work = _Work(recipe, memo, unchanged)
    for group in recipe.groups.values():
        work.add_group(group)
    work.add_gathered()
    work.problems += find_collisions(work.emissions)
    work.problems += find_overlong_paths(work.emissions)
    steps, unmatched = select_steps(work.steps, selection, places)
    if not work.problems:
        # If there are other problems, a selected step may be missing only because a target or an output is invalid.
        work.problems += unmatched
    selected = {step.action for step in steps}
    work.resolve(selected, locate)
    if work.problems:
        raise PlanError(*work.problems)
    return Plan(
        steps=tuple(steps),
        actions={ident: action for ident, action in work.actions.items() if ident in selected},
        warnings=tuple(dict.fromkeys(work.warnings)),
        folders=tuple(dict.fromkeys((*recipe.folders, *work.folders))),
        defaults=recipe.defaults,
        reports=work.reports,
    )


def check_partial_recipe(recipe: Recipe) -> list[Problem]:
    """Return the problems of the targets, groups and models in the valid part of a recipe."""
    work = _Work(recipe, NO_MEMO)
    for group in recipe.groups.values():
        work.check_group(group, list_sessions(group))
    for model in recipe.models.values():
        if model.make is not None or model.parent is not None:
            continue
        try:
            find_source(model, recipe.directory, lambda model: None, may_be_compiled=True)
        except PlanError as error:
            work.problems += error.problems
    return work.problems


class _Work(Struct, dict=True):
    """Plan under construction: the steps, actions and problems so far."""

    recipe: Recipe
    memo: Memo
    unchanged: UnchangedFiles = NONE_UNCHANGED
    steps: list[Step] = field(default_factory=list)
    groups: dict[str, SessionGroup] = field(default_factory=dict)
    verifications: dict[str, Verification] = field(default_factory=dict)
    measurements: dict[str, ModelMeasurement] = field(default_factory=dict)
    emissions: dict[str, Emission] = field(default_factory=dict)
    preparations: dict[str, Preparation] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    gathered: dict[tuple[int, str], list[Part]] = field(default_factory=dict)
    """Parts of each output that combines several groups and targets, by the output's number and path."""
    names: dict[tuple[object, ...], PartNames] = field(default_factory=dict)
    """Names of files, by everything that they depend on. Thousands of targets may have the same names.

    EPs are identified by `id`, because their catalog entries cannot be hashed.
    """
    prepared: dict[str, str | None] = field(default_factory=dict)
    """Id of each model's last preparation, by model. None if it has no valid preparations."""
    members: dict[tuple[int, GraphOptimization], Member] = field(default_factory=dict)
    """Members before their files are located, by the `id()` of the recipe's member and the target's optimization level.

    Thousands of targets may share a member."""
    sessions: dict[tuple[int, ...], tuple[Member, ...]] = field(default_factory=dict)
    """Members of each session, by their ids."""
    checked: dict[tuple[object, ...], list[Problem]] = field(default_factory=dict)
    """Warnings about source models, by everything on which they depend: the id of the checked members' tuple, and facts of the target."""
    folders: tuple[Path, ...] = ()
    """Folders in which a new file may match a pattern of a preparation or a pattern of input files."""
    reports: tuple[Path, ...] = ()
    """Reports of earlier releases."""

    @property
    def actions(self) -> dict[str, Action]:
        """All actions, in dependency order."""
        return {**self.preparations, **self.groups, **self.verifications, **self.measurements, **self.emissions}

    def __post_init__(self) -> None:
        self.labels = list(name_outputs(self.recipe.outputs))
        self.targets: dict[str, PlannedTarget] = {}
        planner = TargetPlanner(self._load_catalog(), self.recipe.directory, self.problems)
        for target in self.recipe.targets.values():
            # The reader of the recipe has reported a missing or invalid toolchain.
            planned = planner.plan(target, self.recipe.toolchains.get(target.toolchain.name))
            if planned is not None:
                self.targets[target.name] = planned
        for name, eps in planner.needs.items():
            is_default = name in self.recipe.defaults.toolchains
            self.problems += find_toolchain_problems(self.recipe.toolchains[name], eps, planner.catalog, is_default=is_default)
        used = {target.toolchain.name for target in self.recipe.targets.values()}
        self.custom_ops: dict[str, tuple[CustomOpLibraries, ...]] = {
            name: plan_custom_ops(toolchain.custom_ops, self.recipe.directory, self.problems)
            for name, toolchain in self.recipe.toolchains.items()
            if name in used
        }

    def _load_catalog(self) -> Catalog:
        """Return the built-in catalog with the user's catalog files. Add a problem for each file that cannot be used."""
        paths: list[Path] = []
        for reference in self.recipe.catalogs:
            try:
                Catalog.with_files([*paths, self.recipe.directory / reference.name])
            except (BadCatalog, OSError) as error:
                self.problems.append(
                    Problem("EPB217", f"the catalog file '{reference.name}' cannot be used: {error}", reference.where)
                )
            else:
                paths.append(self.recipe.directory / reference.name)
        return Catalog.with_files(paths)

    def check_group(self, group: GroupSpec, sessions: Sequence[Session]) -> None:
        """Check a group with its members and targets, without reading model files."""
        self._check_members(group, sessions)
        for reference in group.targets:
            target = self.targets.get(reference.name)
            if target is None:
                continue
            if group.share_weights:
                self.problems += [
                    Problem(
                        "EPB231", f"the group '{group.name}' cannot share weights for '{target.name}': {reason}", reference.where
                    )
                    for reason in find_sharing_refusals(target)
                ]
                self.problems += find_prefix_problems(group, target)
            self.problems += find_runtime_problems(group, target)
            self.problems += find_session_problems(group, target)
            self.problems += find_weightless_problems(group, target)

    def add_group(self, group: GroupSpec) -> None:
        sessions = list_sessions(group)
        self.check_group(group, sessions)
        merging = plan_merging(group, group.merge, self.problems) if group.merge is not None else None
        genai = plan_genai(group, group.genai, self.recipe.directory, self.problems) if group.genai is not None else None
        adapters = plan_adapters(group, self.recipe.directory, self.problems)
        targets = [self.targets[reference.name] for reference in group.targets if reference.name in self.targets]
        if not targets or (merging is None and group.merge is not None):
            return
        members = {member.name: member for member in group.members}
        needs = {name: self._add_preparations(self.recipe.models[member.model.name]) for name, member in members.items()}
        for target in targets:
            self._add_steps(group, target, sessions, needs, merging, genai, adapters)

    def _check_members(self, group: GroupSpec, sessions: Sequence[Session]) -> None:
        if group.share_initializers and len(group.members) == 1:
            message = f"the group '{group.name}' has only one model, so it cannot share initializers"
            hint = "Add another model, or remove 'share_initializers'."
            self.problems.append(Problem("EPB238", message, group.share_initializers.where, hint))
        self.problems += find_sharing_set_problems(group)
        self.problems += find_size_limit_problems(sessions)
        sharing = {member.name for session in sessions if session.share for member in session.members}
        seen: set[str] = set()
        for member in group.members:
            name, settings = member.name, member.compile
            if name in seen:
                message = f"the group '{group.name}' lists the model '{name}' twice"
                hint = "List each model once, or set a different 'name' for one of the entries."
                self.problems.append(Problem("EPB232", message, member.model.where, hint))
            seen.add(name)
            self.problems += find_size_problems(member, self.recipe.models.get(member.model.name))
            if name in sharing and settings.embed:
                where = settings.embed_where or group.where
                message = (
                    f"the group '{group.name}' shares weights and embeds the context, but an embedded context cannot be shared"
                )
                self.problems.append(Problem("EPB230", message, where, "Set compile.embed to false, or share_weights to false."))
            external = settings.external_file
            if external and (PureWindowsPath(external).name != external or external == ".."):
                message = f"the file for external initializers of the group '{group.name}' is a path: '{external}'"
                self.problems.append(
                    Problem("EPB221", message, group.where, "Write only a file name. The file is written beside the model.")
                )
            if external and len(group.members) > 1 and "${model}" not in external:
                message = f"the models of '{group.name}' would write their external initializers to the same file, '{external}'"
                self.problems.append(Problem("EPB222", message, group.where, "Put ${model} into the file name."))

    def _add_steps(
        self,
        group: GroupSpec,
        target: PlannedTarget,
        sessions: Sequence[Session],
        needs: Mapping[str, tuple[str, ...]],
        merging: Merging | None,
        genai: Genai | None,
        adapters: Mapping[str, Path],
    ) -> None:
        place = f"{group.name}/{target.name}"
        groups = [self._add_session(group, target, session, needs) for session in sessions]
        verification = self._add_verification(groups, group.members)
        measurement = self._add_measurement(group, groups)
        for index, output in enumerate(self.recipe.outputs):
            if not output.is_for(group.name, target.name):
                continue
            # Each output has its own merge step, because file names differ between outputs.
            own_merging = (
                replace(merging, step=f"merge:{place}" + (f"/{index + 1}" if index else "")) if merging is not None else None
            )
            path = resolve_output_path(output, group, target, self.problems)
            key = (index, group.name, target.name if output.names_targets else "", *[id(ep.entry) for ep in target.eps])
            names = self.names.get(key) or plan_names(output, group, target, groups, own_merging, genai, self.problems)
            if not path or names is None:
                continue
            self.names[key] = names
            part = make_part(output, target, groups, names, own_merging, genai, verification)
            part = replace(part, adapters=adapters, measurement=measurement) if adapters or measurement else part
            self.problems += find_encryption_refusals(output, part, groups)
            if LAYOUT_FORMS[output.layout].gathers:
                self.gathered.setdefault((index, path), []).append(part)
            else:
                self._add_emission(index, path, [part], f"{place}/")

    def _add_verification(self, sessions: Sequence[SessionGroup], members: Sequence[GroupMember]) -> str | None:
        """Add the verify step of a group for one target. Return its id, or None if there is nothing to verify."""
        found = plan_verification(sessions, {member.name: member.verify for member in members})
        if found is None:
            return None
        self.verifications[found.id] = found
        last = {session.id: session.steps[-1] for session in sessions}
        self.steps.append(Step(found.id, "verify", tuple(last[ident] for ident in found.sessions), found.id))
        return found.id

    def _add_measurement(self, group: GroupSpec, sessions: Sequence[SessionGroup]) -> str | None:
        """Add the measure step of a group for one target. Return its id, or None if there is nothing to measure."""
        choice = group.measure or self.recipe.targets[sessions[0].target.name].measure
        found = plan_measurement(group, sessions, choice, self.problems)
        if found is None:
            return None
        self.measurements[found.id] = found
        self.steps.append(Step(found.id, "measure", tuple(session.steps[-1] for session in sessions), found.id))
        return found.id

    def _add_preparations(self, model: ModelSpec) -> tuple[str, ...]:
        """Add the preparations of a model and its ancestors once.

        Return a tuple with the id of the last preparation, or an empty tuple.
        """
        lineage = [model]
        while (parent := lineage[-1].parent) is not None and lineage[-1].name not in self.prepared:
            lineage.append(self.recipe.models[parent.name])
        last: str | None = None
        for one in reversed(lineage):
            if one.name not in self.prepared:
                added = plan_preparations(one, self.recipe.toolchains, last, self.problems)
                self.prepared[one.name] = added[-1].id if added else None
                for preparation in added:
                    self.preparations[preparation.id] = preparation
                    self.steps.append(Step(preparation.id, "prepare", preparation.needs, preparation.id))
            last = self.prepared[one.name]
        return (last,) if last is not None else ()

    def add_gathered(self) -> None:
        """Add the outputs that contain several groups and targets, one for each path."""
        for (index, path), parts in self.gathered.items():
            self.problems += find_package_refusals(self.recipe.outputs[index], parts)
            template = str(self.recipe.outputs[index].path.value)
            # The id contains the name of the group or target only if the template of the path contains that name.
            place = [name for name, key in ((parts[0].group, "${group}"), (parts[0].target.name, "${target}")) if key in template]
            self._add_emission(index, path, parts, "".join(f"{name}/" for name in place))

    def _add_emission(self, index: int, path: str, parts: Sequence[Part], place: str) -> None:
        output = self.recipe.outputs[index]
        emission = Emission(
            id=f"emit:{place}{self.labels[index]}",
            layout=output.layout,
            archive=output.archive,
            path=self.recipe.directory / path,
            parts=tuple(parts),
            where=output.path.where,
            registry=plan_registry(output, parts, self.problems),
            provenance=output.provenance,
            sbom=output.sbom,
            encryption=output.encryption,
            title=self.recipe.name,
            description=self.recipe.description,
        )
        self.emissions[emission.id] = emission
        needs: list[str] = []
        for part in emission.parts:
            if part.merging is None:
                needs += part.session_groups
            else:
                self.steps.append(Step(part.merging.step, "merge", part.session_groups, emission.id))
                needs.append(part.merging.step)
            needs += [ident for ident in (part.verification, part.measurement) if ident is not None]
        self.steps.append(Step(emission.id, "emit", tuple(dict.fromkeys(needs)), emission.id))

    def _add_session(
        self, group: GroupSpec, target: PlannedTarget, session: Session, needs: Mapping[str, tuple[str, ...]]
    ) -> SessionGroup:
        """Add the steps of a session, and return its action. `needs` has the steps that compile steps need, by member."""
        place, kind = f"{group.name}/{target.name}", session.step_kind
        steps = {f"{kind}:{place}/{member.name}": needs[member.name] for member in session.members}
        ident = f"share:{place}/{session.set_name}".rstrip("/") if session.share else next(iter(steps))
        self.steps += [Step(step, kind, needed, ident) for step, needed in steps.items()]
        if session.share:
            self.steps.append(Step(ident, "share", tuple(steps), ident))
        kind_of_group = SessionGroup if session.compiled else CopiedModel
        self.groups[ident] = found = kind_of_group(
            id=ident,
            group=group.name,
            target=target,
            members=self._make_members(session.members, target.graph_optimization_level),
            share=session.share,
            allow_nondeterminism=group.allow_nondeterminism or target.allow_nondeterminism,
            timeout=group.timeout,
            memory=group.memory,
            steps=(*steps, ident) if session.share else tuple(steps),
            initializer_threshold=group.share_initializers.threshold if group.share_initializers else None,
            custom_ops=self.custom_ops[target.toolchain.name],
            may_fail=target.name in group.allow_failure,
            set_name=session.set_name,
        )
        return found

    def _make_members(self, members: tuple[GroupMember, ...], level: GraphOptimization) -> tuple[Member, ...]:
        """Return the members of a session. Targets with the same optimization level share the tuple."""
        made = tuple([self._make_member(member, level) for member in members])
        return self.sessions.setdefault(tuple(map(id, made)), made)

    def _make_member(self, member: GroupMember, level: GraphOptimization) -> Member:
        """Return a member without files for targets with the default optimization `level`. `resolve` adds the files."""
        key = (id(member), level)
        if key not in self.members:
            model = self.recipe.models[member.model.name]
            if member.dimensions:
                sizes = {**model.dimensions, **member.dimensions}
                model = replace(model, dimensions=sizes, dimension_places={**model.dimension_places, **member.dimension_places})
            self.members[key] = Member(
                name=member.name,
                model=model,
                compile=resolve_settings(level, member.compile),
                expect=member.expect,
                # The input sizes of a prepared model apply to its first preparation, not to the compile.
                input_shapes={**(model.input_shapes if not model.prepare else {}), **member.input_shapes},
                where=member.model.where,
                prepared=self.prepared.get(model.name),
                maker=get_maker(model),
            )
        return self.members[key]

    def resolve(self, actions: set[str], locate: Locate) -> None:
        """Find and check the files of every model that any of the `actions` needs. Read each model only once."""
        wanted = {
            member.model.origin.name for ident, group in self.groups.items() if ident in actions for member in group.members
        }
        wanted |= {item.model.origin.name for ident, item in self.preparations.items() if ident in actions}
        found: dict[str, SourceModel] = {}
        for name, model in self.recipe.models.items():
            if name not in wanted or model.make is not None:
                continue
            try:
                source = find_source(model, self.recipe.directory, locate, self.memo, self.unchanged, may_be_compiled=True)
            except PlanError as error:
                self.problems += error.problems
            else:
                if source is not None:
                    found[name] = source
        finder = FileFinder(self.recipe.directory, self.problems)
        beginnings = {name: source.files.all for name, source in found.items()}
        for ident, item in self.preparations.items():
            if ident in actions:
                prepared = with_files(item, self.recipe.file, finder, self.problems)
                if item.is_make:
                    beginnings[item.model.name] = tuple(prepared.staged.values())
                source = found.get(item.model.origin.name) if item.after is None else None
                if source is not None and source.files.context_sources:
                    self.problems.append(make_compiled_problem(item.model))
                elif source is not None:
                    self.problems += find_model_size_problems(item.model, source.header, source.files.graph)
                    self.problems += find_data_name_problems(item.model.name, item.model, source.files.external)
                    prepared = replace(prepared, source=source.files).with_shapes(source.header)
                self.preparations[ident] = replace(prepared, beginning=beginnings.get(item.model.origin.name, ()))
        sharing: dict[tuple[str, str], list[Problem]] = {}  # by group and set, because all targets have the same warnings
        with_sources = {
            id(member): _add_files(
                replace(member, beginning=beginnings[member.model.origin.name]), found.get(member.model.origin.name)
            )
            for member in self.members.values()
            if member.model.origin.name in beginnings
        }
        located: dict[int, tuple[tuple[Member, ...], dict[str, SourceModel]]] = {}
        """Members of each session with their files, and the sources that are known, by the id of the session's members."""
        for session in self.sessions.values():
            members = tuple([with_sources.get(id(member), member) for member in session])
            # The content of a prepared model is unknown until it has been prepared.
            located[id(session)] = members, {member.name: found[member.model.name] for member in members if member.has_files}
        baselines = Baselines(self.recipe.directory, self.problems)
        for ident, group in self.groups.items():
            members, sources = located[id(group.members)]
            self.groups[ident] = replace(group, members=members)
            if ident not in actions:
                continue
            if group.members[0].expect.baseline is not None:
                self.groups[ident] = replace(
                    self.groups[ident], baseline=baselines.find_size(group, group.members[0].expect.baseline)
                )
            self._check_sources(self.groups[ident], sources)
            self.problems += self._find_predicted_problems(self.groups[ident], found)
            if group.share and len(sources) == len(members):
                weights = group.group, group.set_name
                if weights not in sharing:
                    sharing[weights] = self._find_sharing_warnings(self.groups[ident], sources)
                self.warnings += sharing[weights]

        for emission in self.emissions.values():
            if emission.id in actions:
                self.problems += find_data_problems(emission, self.groups)
        for ident, verification in self.verifications.items():
            if ident in actions:
                wanted_headers = {
                    checked.name: found[member.model.name].header
                    for checked in verification.members
                    for member in self.groups[checked.session].members
                    if member.name == checked.name and member.has_files and member.model.name in found
                }
                self.verifications[ident] = with_inputs(verification, self.groups, wanted_headers, finder, self.problems)
        for ident, measurement in self.measurements.items():
            if ident in actions:
                measured = baselines.add_figures(measurement, self.groups)
                self.measurements[ident] = with_command_files(measured, self.groups, self.recipe.directory, finder, self.problems)
        self.folders = finder.folders
        self.reports = baselines.files

    def _find_predicted_problems(self, group: SessionGroup, found: Mapping[str, SourceModel]) -> Iterator[Problem]:
        """Yield the problems that are certain before the models of a session group are prepared. `found` has the known sources."""
        for member in group.members if group.compiled else ():
            source = found.get(member.model.origin.name)
            if member.prepared is None or source is None:
                continue
            lineage = [member.model]
            while (parent := lineage[0].parent) is not None:
                lineage.insert(0, self.recipe.models[parent.name])
            header = predict_header(lineage, source.header)
            if header is not None:
                yield from find_predicted_problems(member, header, group.target)

    def _check_sources(self, group: SessionGroup, sources: Mapping[str, SourceModel]) -> None:
        """Check the members of a session group whose `sources` are known. Report a problem only once, even if several targets have it."""
        target = group.target
        known = (id(group.members), target.weightless_key, *[(id(ep.entry), ep.device.type) for ep in target.eps])
        if known not in self.checked:
            self.checked[known] = self._find_source_warnings(group, sources)
        self.warnings += self.checked[known]

    def _find_sharing_warnings(self, group: SessionGroup, sources: Mapping[str, SourceModel]) -> list[Problem]:
        def check() -> _Records:
            return _to_records(find_sharing_warnings(group, sources))

        try:
            return _to_problems(self.memo.value("sharing", _get_memo_inputs(group, sources), check, _Records))
        except (OSError, MalformedModel):  # caught outside the check, so that the memo stores no failure
            return []  # a compile reports the error

    def _find_source_warnings(self, group: SessionGroup, sources: Mapping[str, SourceModel]) -> list[Problem]:
        """Add the problems of the sources of a session group, and return the warnings."""

        def check() -> tuple[_Records, _Records]:
            headers = {name: source.header for name, source in sources.items()}
            return _to_records(find_source_problems(group, headers)), _to_records(find_source_warnings(group, headers))

        problems, warnings = self.memo.value("sources", _get_memo_inputs(group, sources), check, tuple[_Records, _Records])
        self.problems += _to_problems(problems)
        return _to_problems(warnings)


def _to_records(problems: Iterable[Problem]) -> _Records:
    return tuple(map(ProblemRecord.of, problems))


def _to_problems(records: _Records) -> list[Problem]:
    return [record.problem for record in records]


def _get_memo_inputs(group: SessionGroup, sources: Mapping[str, SourceModel]) -> object:
    """Return everything on which the checks of a session group's source models depend.

    Return None if the stat of a source file does not reliably identify its content.
    """
    stats = [(name, source.stats) for name, source in sources.items()]
    if any(files is None for _, files in stats):
        return None
    return group.fingerprint, stats


def _add_files(member: Member, source: SourceModel | None) -> Member:
    """Return a member with the files of its source model, if they are known. The files to compile of a prepared member remain unknown."""
    if source is None:
        return member
    if member.prepared is not None:
        return replace(member, original=source.files)
    found = replace(member, original=source.files, compiled_from=source.files)
    return fit_inputs(found, source.header) if member.input_shapes or member.model.dimensions else found
