"""Planner of outputs, which expands the templates of paths and finds collisions."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from epbuild.catalog.entries import EpEntry
from epbuild.core.defaults import MANIFEST, STATEMENT, WORKSPACE
from epbuild.core.errors import Location, Position, Problem
from epbuild.core.safepath import (
    MAX_NAME_BYTES,
    find_overlong_part,
    find_unportable_part,
    has_parent_part,
    is_anchored,
    shorten_reference,
)
from epbuild.plan.member import Member
from epbuild.plan.steps import Emission, Genai, Merging, Part, SessionGroup
from epbuild.plan.target import PlannedTarget
from epbuild.recipe.image_reference import BadImageReference, ImageReference, parse_image_reference
from epbuild.recipe.model import GroupSpec, OutputSpec, Setting
from epbuild.recipe.nodes import Scalar
from epbuild.recipe.outputs import ARCHIVE_FORMS, DEFAULT_MODEL, DEFAULT_SOURCE, LAYOUT_FORMS
from epbuild.recipe.template import TemplateError, substitute

GENAI_CONFIG = "genai_config.json"
PROVENANCE = f"provenance{STATEMENT}"
BOM = "bom.cdx.json"
BASE = "base"
"""Name of the uncompiled variant in a package."""

_MAX_PATH_BYTES = 3500
"""Maximum bytes of an output's absolute path. Files in the output and in its draft have longer paths, and Linux allows 4,095 bytes."""
_RESERVED = {
    MANIFEST: "the manifest",
    PROVENANCE: "the provenance",
    BOM: "the bill of materials",
    GENAI_CONFIG: "the configuration of genai",
}
_OF_A_PACKAGE = (MANIFEST, PROVENANCE, BOM, "shared_assets")
"""Reserved names in the root of a package, beside the folders of its groups."""


def name_outputs(outputs: Iterable[OutputSpec]) -> Iterator[str]:
    """Yield a name for each output, for use in step ids. The name is the form of the output, plus a number if the form is repeated."""
    counts: dict[str, int] = {}
    for output in outputs:
        form: str = output.layout
        if output.archive is not None:
            form = f"{LAYOUT_FORMS[output.layout].prefix}{output.archive.format}"
        counts[form] = number = counts.get(form, 0) + 1
        yield form + (f"-{number}" if number > 1 else "")


def resolve_output_path(output: OutputSpec, group: GroupSpec, target: PlannedTarget, problems: list[Problem]) -> str:
    """Return the POSIX path of an output for a group and a target. If the path is invalid, return an empty string and add a problem."""
    path = _expand_path(output.path, _make_names(group, target), problems)
    if path.partition("/")[0].casefold() == WORKSPACE:
        message = f"the output path '{path}' is in the folder of epbuild's workspace"
        problems.append(Problem("EPB221", message, output.path.where, f"Write a path outside {WORKSPACE}."))
        return ""
    suffix = f".{output.archive.format}" if output.archive is not None and ARCHIVE_FORMS[output.archive.format].is_file else ""
    if path and not path.endswith(suffix):
        message = f"the name of the archive '{path}' does not end in {suffix}"
        problems.append(Problem("EPB224", message, output.path.where, f"End the path in {suffix}."))
        return ""
    return path


class PartNames(Struct, frozen=True):
    """Names of the files of a part. The fields are the same as in `Part`."""

    models: Mapping[str, str]
    binaries: Mapping[str, Mapping[str, str]]
    base: Mapping[str, str]
    prepared: tuple[str, ...]
    components: Mapping[str, str]


def plan_names(
    output: OutputSpec,
    group: GroupSpec,
    target: PlannedTarget,
    groups: Sequence[SessionGroup],
    merging: Merging | None,
    genai: Genai | None,
    problems: list[Problem],
) -> PartNames | None:
    """Plan the names of files of `output` for one group and one target. Return None if the templates are invalid.

    The names depend on the target's EPs. They depend on the target's name only if `output.names_targets` is true.

    Add a problem for each path that leaves its folder and for each collision of file names. Names that differ only in case
    collide, because some file systems are case-insensitive.
    """
    work = _Part(output, group, target, merging, problems)
    found = len(problems)
    for session in groups:
        for member in session.members:
            first = session.members[0].name if session.share and target.one_binary else member.name
            work.add_model(member.name, first, is_compiled=session.compiled)
            if member.external_file and session.compiled:
                beside = posixpath.join(posixpath.dirname(work.path_of(member.name)), member.external_file)
                work.take(beside, f"the external initializers of '{member.name}'", group.where)
            if session.compiled and not member.compile.embed:
                work.add_binaries(member.name, first)
            if session.compiled or LAYOUT_FORMS[output.layout].gathers:
                work.add_base(member)
    if genai is not None:
        for name in genai.files:
            work.take(name, f"the file '{name}' of genai", group.where)
    for reference in group.adapters:
        name = posixpath.basename(reference.name)
        work.take(name, f"the adapter '{name}'", reference.where)
    work.check_nesting()
    if len(problems) > found:
        return None
    return PartNames(work.models, work.binaries, work.base, tuple(work.prepared), work.components())


def make_part(
    output: OutputSpec,
    target: PlannedTarget,
    groups: Sequence[SessionGroup],
    names: PartNames,
    merging: Merging | None,
    genai: Genai | None,
    verification: str | None,
) -> Part:
    """Return the part of `output` for the session `groups` of one group and one target."""
    group = groups[0].group
    return Part(
        group=group,
        target=target,
        folder=posixpath.join(group, target.name) if LAYOUT_FORMS[output.layout].gathers else "",
        session_groups=tuple([session.id for session in groups]),
        models=names.models,
        binaries=names.binaries,
        base=names.base,
        prepared=names.prepared,
        components=names.components,
        merging=merging,
        genai=genai,
        verification=verification,
        allow_nondeterminism=any(session.allow_nondeterminism for session in groups),
    )


def plan_registry(output: OutputSpec, parts: Sequence[Part], problems: list[Problem]) -> ImageReference | None:
    """Return the image reference for pushing an output with `parts`, or None if the output has no reference or an invalid reference.

    The template may contain `${group}` only if all parts have the same group, and `${target}` only if they have the same target.
    """
    if output.registry is None:
        return None
    groups, targets = {part.group for part in parts}, {part.target.name for part in parts}
    names: dict[str, Scalar] = {"group": parts[0].group} if len(groups) == 1 else {}
    if len(targets) == 1:
        names["target"] = parts[0].target.name
    text = _expand(output.registry, names, problems)
    if not text:
        return None
    try:
        return parse_image_reference(text)
    except BadImageReference as error:
        problems.append(Problem("EPB239", error.message, output.registry.where, error.hint))
        return None


def find_encryption_refusals(output: OutputSpec, part: Part, groups: Sequence[SessionGroup]) -> Iterator[Problem]:
    """Yield the reasons why a part of `output` cannot be encrypted: programs or EPs that open its files themselves."""
    if output.encryption is None:
        return
    where, name = output.encryption.where, part.group
    if LAYOUT_FORMS[output.layout].gathers:
        message = "a model package cannot be encrypted, because ONNX Runtime opens its files itself"
        yield Problem("EPB267", message, where, "Set 'layout' to 'directory', or remove 'encrypt'.")
    elif part.genai is not None:
        message = f"the group '{name}' cannot be encrypted, because onnxruntime-genai opens its files itself"
        yield Problem("EPB267", message, where, "List other groups under 'groups', or remove 'encrypt'.")
    external = [session for session in groups if session.compiled and not all(one.compile.embed for one in session.members)]
    plain = [ep.entry.ep for ep in part.target.compiling if not ep.entry.binary.read_callback]
    if external and plain:
        message = f"the context binaries of the group '{name}' cannot be encrypted: {plain[0]} reads them only as plain files"
        hint = "Embed the contexts with 'compile: {embed: true}': models with embedded contexts are encrypted as a whole."
        if any(session.share for session in external):
            hint = "List other groups under 'groups': models with shared weights cannot embed their contexts."
        yield Problem("EPB267", message, where, hint)


def find_package_refusals(output: OutputSpec, parts: Sequence[Part]) -> Iterator[Problem]:
    """Yield the reasons why parts cannot form one model package that ONNX Runtime and onnxruntime-genai can open."""
    groups = {part.group for part in parts}
    for group in sorted(groups):
        if group.casefold() in _OF_A_PACKAGE:
            message = f"the folder of the group '{group}' would collide with the package's reserved name '{group.casefold()}'"
            yield Problem("EPB222", message, output.where, "Rename the group.")
    for folder in dict.fromkeys(part.folder for part in parts):
        if (name := find_unportable_part(folder)) is not None:
            yield _make_unportable_problem(name, output.where, "Rename the group or the target.")
    pipelines = sorted({part.group for part in parts if part.genai is not None})
    if pipelines and len(groups) > 1:
        message = f"onnxruntime-genai opens only packages with one group, but this package has '{pipelines[0]}' and other groups"
        yield Problem("EPB228", message, output.where, "Put ${group} into the path, or list only this group under 'groups'.")
    hint = "Exclude the target from this output: list the others under 'targets'."
    for target in {part.target.name: part.target for part in parts}.values():
        if len(target.compiling) > 1:
            message = f"the target '{target.name}' compiles with {target.title}, but ONNX Runtime opens only packages with one EP"
            yield Problem("EPB228", message, output.where, hint)
        for ep in target.compiling:
            if ep.entry.no_packages is not None:
                message = f"no ONNX Runtime opens the target '{target.name}' in a model package: {ep.entry.no_packages}"
                yield Problem("EPB228", message, output.where, hint)


class _Part:
    """File names of a part that is being planned. Two files with the same name are reported as a problem."""

    def __init__(
        self, output: OutputSpec, group: GroupSpec, target: PlannedTarget, merging: Merging | None, problems: list[Problem]
    ) -> None:
        self._output = output
        self._group = group
        self._target = target
        self._merging = merging
        self._problems = problems
        self._taken = dict(_RESERVED)
        self._names = _make_names(group, target)
        if output.include_source is not None and LAYOUT_FORMS[output.layout].gathers and target.name.casefold() == BASE:
            message = f"the target's name '{target.name}' is reserved for the uncompiled variant"
            problems.append(Problem("EPB225", message, output.include_source.where, "Rename the target."))
        self.models: dict[str, str] = {}
        self.binaries: dict[str, dict[str, str]] = {}
        self.base: dict[str, str] = {}
        self.prepared: dict[str, None] = {}
        if merging is not None:
            self._add(output.model, merging.name, merging.members[0], f"the merged model '{merging.name}'")

    def path_of(self, member: str) -> str:
        """Return the path of a member's model, or of the merged model that contains the member."""
        return self.models[member if self._merging is None else self._merging.name]

    def add_model(self, member: str, first: str, *, is_compiled: bool) -> None:
        if self._merging is None:
            template = self._output.model
            if not is_compiled and template.value == DEFAULT_MODEL:
                template = replace(template, value=DEFAULT_SOURCE)
            self._add(template, member, first, f"the model '{member}'")

    def _add(self, template: Setting, model: str, first: str, what: str) -> None:
        self.models[model] = _expand_path(template, self._make_names(model, first), self._problems)
        self._take(self.models[model], what, template.where)

    def add_binaries(self, member: str, first: str) -> None:
        where = self._output.context_binary.where
        for entry in (ep.entry for ep in self._target.compiling):
            # A shared file has one name for all members.
            binary = self.binaries.get(first, {}).get(entry.ep) or self._expand_binary(entry, first)
            self.binaries.setdefault(member, {})[entry.ep] = binary
            if first == member:
                self._take(binary, f"the context binary of '{member}' by {entry.ep}", where)
            _check_reach(self.path_of(member), binary, where, self._problems)

    def _expand_binary(self, entry: EpEntry, first: str) -> str:
        """Return the path of an EP's context binary for the member `first` and for the members that share the binary."""
        names = {**self._make_names(first, first), "ep": entry.ep, "ep.short": entry.short}
        if entry.binary.name is not None:
            names["ep.binary"] = entry.binary.name.format(stem=f"{first}_ctx")
        return _expand_path(self._output.context_binary, names, self._problems)

    def add_base(self, member: Member) -> None:
        output = self._output
        if output.include_source is None:
            return
        if self._merging is not None:
            message = f"the group '{self._group.name}' merges its models and therefore has no single source model"
            self._problems.append(
                Problem("EPB225", message, output.include_source.where, "Remove 'include_source', or list other groups.")
            )
            return
        name = member.name
        self.base[name] = _expand_path(output.include_source, self._make_names(name, name), self._problems)
        if not LAYOUT_FORMS[output.layout].gathers:  # in a package, the base model has its own folder
            self._take(self.base[name], f"the base model '{name}'", output.include_source.where)
        if member.prepared is not None:
            self.prepared[member.prepared] = None

    def components(self) -> dict[str, str]:
        if not LAYOUT_FORMS[self._output.layout].gathers:
            return {}
        found: dict[str, str] = {}
        for model in self.models:
            name = self._group.name if len(self.models) == 1 else model
            if self._output.component_name is not None:
                name = _expand(self._output.component_name, self._make_names(model, next(iter(self.models))), self._problems)
            if name in found.values():
                message = f"two models of the group '{self._group.name}' would have the same component name, '{name}'"
                where = self._output.component_name.where if self._output.component_name else self._output.where
                self._problems.append(Problem("EPB225", message, where, "Put ${model} into the component's name."))
            found[model] = name
        return found

    def take(self, name: str, what: str, where: Position) -> None:
        """Take the name of a file whose name does not come from a template, such as an adapter."""
        if name:
            self._problems += find_name_problems([name], where, "Choose another name: outputs must work on every platform.")
            self._take(name, what, where)

    def _take(self, name: str, what: str, where: Position) -> None:
        """Take a valid name. An empty name was reported as invalid."""
        if not name:
            return
        other = self._taken.setdefault(name.casefold(), what)
        if other != what:
            hint = "Put ${model} into the names of models, and ${first_model} and ${ep.short} into the names of context binaries."
            self._problems.append(Problem("EPB222", f"{other} and {what} would both be written to '{name}'", where, hint))

    def check_nesting(self) -> None:
        """Report names that are both a file and a folder."""
        for name, what in self._taken.items():
            for folder in list_parents(name, "/"):
                if folder in self._taken:
                    message = f"'{folder}' would be both {self._taken[folder]} and the folder of {what}"
                    hint = "Give files and folders different names."
                    self._problems.append(Problem("EPB222", message, self._output.where, hint))

    def _make_names(self, model: str, first: str) -> dict[str, Scalar]:
        return {**self._names, "model": model, "first_model": first}


def _make_names(group: GroupSpec, target: PlannedTarget) -> dict[str, Scalar]:
    main = target.eps[0].entry
    return {"group": group.name, "target": target.name, "ep": main.ep, "ep.short": main.short}


def find_collisions(emissions: Mapping[str, Emission]) -> list[Problem]:
    """Return a problem for each pair of outputs with the same path, a nested path, or the same tag in a registry.

    Two parts of one output also collide if they would be the same variant of a package.
    """
    problems: list[Problem] = []
    owners: dict[str, Emission] = {}
    pushers: dict[ImageReference, Emission] = {}
    for emission in emissions.values():
        if emission.registry is not None and (pusher := pushers.setdefault(emission.registry, emission)) is not emission:
            message = f"two outputs would be pushed to {emission.registry}: {pusher.id} and {emission.id}"
            problems.append(Problem("EPB222", message, emission.where, "Put ${group} and ${target} into the image reference."))
        for path in filter(None, (emission.path, emission.statement)):
            owner = owners.setdefault(str(path).casefold(), emission)
            if owner is not emission:
                message = f"two outputs have the same path, {path.name}: {owner.id} and {emission.id}"
                problems.append(Problem("EPB222", message, emission.where, "Put ${group} and ${target} into the output's path."))
        problems += _find_repeated_variants(emission)
    for folder, emission in owners.items():
        outer = next((owners[parent] for parent in list_parents(folder, os.sep) if parent in owners), None)
        if outer is not None:
            message = f"the output {emission.id} is inside the output {outer.id}"
            problems.append(Problem("EPB222", message, emission.where, "Give each output its own folder."))
    return problems


def find_data_problems(emission: Emission, groups: Mapping[str, SessionGroup]) -> Iterator[Problem]:
    """Yield a problem for each external data file of an uncompiled model whose name is invalid in the output.

    `groups` has the session groups by id. Models without known files are skipped.
    """
    for part in emission.parts:
        for group in (groups[ident] for ident in part.session_groups):
            for member in group.members:
                if member.has_files and (member.name in part.base or not group.compiled):
                    hint = f"Save the model '{member.model.name}' with another name for its external data."
                    yield from find_name_problems(member.external, member.model.path_where, hint)


def find_name_problems(paths: Iterable[str], where: Location, hint: str) -> Iterator[Problem]:
    """Yield a problem for each path of an emitted file that is invalid on at least one platform. `hint` is for names that Windows lacks."""
    for path in paths:
        if (name := find_unportable_part(posixpath.normpath(path))) is not None:
            yield _make_unportable_problem(name, where, hint)
        elif (name := find_overlong_part(path)) is not None:
            yield _make_length_problem(name, where)


def find_overlong_paths(emissions: Mapping[str, Emission]) -> Iterator[Problem]:
    """Yield a problem for each output path and each provenance file name that is too long for file systems."""
    for emission in emissions.values():
        if emission.statement is not None and find_overlong_part(emission.statement.name) is not None:
            yield _make_length_problem(emission.statement.name, emission.where)
        size = len(os.fsencode(os.path.abspath(emission.path)))  # noqa: PTH100 - this also removes `..`
        if size > _MAX_PATH_BYTES:
            message = f"the path of the output '{shorten_reference(emission.path.name)}' is too long: {size} bytes"
            hint = f"Shorten the path to at most {_MAX_PATH_BYTES} bytes, or move the recipe to a folder with a shorter path."
            yield Problem("EPB229", message, emission.where, hint)


def list_parents(path: str, separator: str) -> Iterator[str]:
    """Yield the parent folders of a path, innermost first. Paths are strings for speed, because a plan may have ten thousand paths."""
    while separator in path:
        path = path.rpartition(separator)[0]
        yield path


def _find_repeated_variants(emission: Emission) -> Iterator[Problem]:
    """Yield a problem for each pair of parts that would be the same variant of a package."""
    seen: dict[tuple[str, str], Part] = {}
    for part in emission.parts if LAYOUT_FORMS[emission.layout].gathers else ():
        for component in part.components.values():
            other = seen.setdefault((component.casefold(), part.target.name), part)
            if other is not part:
                both = f"the groups '{other.group}' and '{part.group}' would both write"
                message = f"{both} the component '{component}' for '{part.target.name}'"
                hint = "Put ${group} into 'component_name', or restrict the output with 'groups'."
                yield Problem("EPB225", message, emission.where, hint)


def _expand(template: Setting, names: Mapping[str, Scalar], problems: list[Problem]) -> str:
    """Return the expanded template. If the template is invalid, return an empty string and add a problem."""
    try:
        return str(substitute(str(template.value), names))
    except TemplateError as error:
        problems.append(Problem("EPB220", error.message, template.where, error.hint))
        return ""


def _expand_path(template: Setting, names: Mapping[str, Scalar], problems: list[Problem]) -> str:
    """Return the expanded template as a relative POSIX path. If the path is invalid, return an empty string and add a problem."""
    text = _expand(template, names, problems)
    if not text:
        return ""
    normal, problem = _normalize(text)
    problems += [replace(problem, where=template.where)] if problem is not None else []
    return normal


@lru_cache(maxsize=1024)  # a path without `${target}` is the same for all targets
def _normalize(text: str) -> tuple[str, Problem | None]:
    """Return `text` as a normalized relative POSIX path, and None. If the path is invalid, return an empty string and the problem."""
    normal = posixpath.normpath(text)
    if is_anchored(text) or has_parent_part(normal):
        hint = "Write a path below the recipe's folder."
        return "", Problem("EPB221", f"the output path '{text}' is outside the recipe's folder", None, hint)
    if normal == ".":
        hint = "Write the name of a file or folder below the recipe's folder."
        return "", Problem("EPB221", f"the output path '{text}' is the recipe's folder itself", None, hint)
    if (name := find_unportable_part(normal)) is not None:
        return "", _make_unportable_problem(name, None, "Choose another name: outputs must work on every platform.")
    if (name := find_overlong_part(normal)) is not None:
        return "", _make_length_problem(name, None)
    return normal, None


def _make_unportable_problem(name: str, where: Location | None, hint: str) -> Problem:
    return Problem("EPB229", f"'{name}' is not a valid name on Windows", where, hint)


def _make_length_problem(name: str, where: Location | None) -> Problem:
    message = f"the name '{shorten_reference(name)}' is too long: {len(os.fsencode(name))} bytes"
    return Problem("EPB229", message, where, f"Shorten it to at most {MAX_NAME_BYTES} bytes, the limit of file systems.")


def _check_reach(model: str, binary: str, where: Position, problems: list[Problem]) -> None:
    """Add a problem for a context binary outside the model's folder, because EPs resolve references only below that folder."""
    folder = posixpath.dirname(model)
    if model and binary and folder and not binary.startswith(f"{folder}/"):
        message = f"the context binary '{binary}' is not below the folder of its model '{model}', where EPs look for it"
        problems.append(Problem("EPB223", message, where, "Put it beside the model or into a subfolder."))
