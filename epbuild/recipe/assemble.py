"""Nodes that the schema found sound, made into a `Recipe`: names checked, templates substituted, references followed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from epbuild.core.errors import Argument, Position, Problem
from epbuild.recipe import groups, outputs, preparations
from epbuild.recipe.address import address_problem, is_remote, package_file
from epbuild.recipe.compose import rebased
from epbuild.recipe.custom_ops import custom_ops_problem, names_library
from epbuild.recipe.expand import Matrix, Row, clash_problems, is_glob, matching, name_problem, resolved, unknown
from epbuild.recipe.fields import Fields
from epbuild.recipe.groups import read_compile_settings, read_expectation, read_genai, read_initializer_sharing, read_merge
from epbuild.recipe.model import (
    CompileSettings,
    DeviceChoice,
    EpChoice,
    Expectation,
    Group,
    GroupMember,
    InputShape,
    ModelSource,
    Output,
    Recipe,
    Reference,
    Scalar,
    Setting,
    Target,
    Toolchain,
)
from epbuild.recipe.outputs import read_output
from epbuild.recipe.overrides import Override
from epbuild.recipe.preparations import read_preparations
from epbuild.recipe.problems import BAD_NAME, TEMPLATE, TOO_LARGE, WRONG_VALUE, quoted
from epbuild.recipe.requirement import read_requirement
from epbuild.recipe.schema import Verdict, judge_definition
from epbuild.recipe.source import Entry, KeyPath, MappingNode, Node, ScalarNode, merged, pruned, without
from epbuild.recipe.template import Names, TemplateError, substitute
from epbuild.recipe.verifying import read_verify

MAX_EXPANDED = 500_000
"""How many values the targets may have once every row of a matrix is written out, and the groups once every glob is."""

_MOST_SUGGESTIONS = 50
_INSIDE_A_DEFINITION = 3  # steps of a path, at least: section, definition, key


def assemble(
    file: Path,
    root: MappingNode,
    verdict: Verdict,
    environment: Mapping[str, str],
    overrides: Mapping[str, Override],
) -> tuple[Recipe, list[Problem]]:
    """The recipe, and what is wrong with it; only a recipe without problems is fit to be used.

    What the schema's `verdict` calls wrong is left out, and nothing is said of it again; the rest of its definition is read on. What it
    calls pending is held against the schema here. `overrides` are variables from the command line.
    """
    assembler = _Assembler(file, root, verdict, environment)
    recipe = assembler.recipe(overrides)
    return recipe, list(dict.fromkeys(assembler.problems))


class _Assembler:
    def __init__(self, file: Path, root: MappingNode, verdict: Verdict, environment: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self._file = file
        wrong = {violation.path for violation in verdict.violations}
        # What is left out whole: sections and definitions that are missing or of the wrong type, and a target whose rows are not known.
        self._broken = {path[:2] for path in wrong if len(path) < _INSIDE_A_DEFINITION or path[2] == "matrix"}
        inside = {path for path in wrong if path[:2] not in self._broken and path[:1] not in self._broken}
        self._partial = {path[:2] for path in inside}
        self._pending = verdict.pending
        self._root = Fields(pruned(root, inside), self.problems)
        self._environment = environment
        self._all_targets_known = not any(path[:1] == ("targets",) for path in self._broken)
        self._all_groups_known = True
        self._written_out = 0

    def recipe(self, overrides: Mapping[str, Override]) -> Recipe:
        name = self._root_text("name")
        if name and (problem := name_problem(name, self._root.where_of("name"))):
            self.problems.append(problem)
        names = Names(self._environment, {"recipe.name": name, **self._vars(overrides)})
        targets = self._targets(names)
        built = dict(self._groups(names, targets))
        return Recipe(
            file=self._file,
            name=name,
            description=self._root_text("description", may_be_empty=True),
            toolchains=dict(self._toolchains(names)),
            models={
                key: self._model(key, entry.name_where, node)
                for key, entry in self._entries("models")
                if (node := self._resolved(("models", key), entry.node, names, preparations.LATER)) is not None
            },
            targets=targets,
            groups=built,
            outputs=tuple(self._outputs(names, built, targets)),
            catalogs=tuple(self._catalogs(names)),
        )

    # -- Sections ------------------------------------------------------------------------------------------------------

    def _root_text(self, key: str, *, may_be_empty: bool = False) -> str:
        return "" if (key,) in self._broken else self._root.text(key, may_be_empty=may_be_empty) or ""

    def _section(self, section: str) -> Mapping[str, Entry]:
        return {} if (section,) in self._broken else self._root.mapping(section).entries

    def _entries(self, section: str) -> Iterator[tuple[str, Entry]]:
        """The definitions of a section that are not broken, their names checked."""
        entries = self._section(section)
        self.problems += clash_problems((name, entry.name_where) for name, entry in entries.items())
        for name, entry in entries.items():
            if (section, name) in self._broken:
                continue
            if problem := name_problem(name, entry.name_where):
                self.problems.append(problem)
            yield name, entry

    def _resolved(
        self, path: KeyPath, node: Node, names: Mapping[str, Scalar], later: Mapping[str, Collection[str]] | None = None
    ) -> Node | None:
        """The node of the definition at `path` with its templates substituted, or None when it is not what the schema asks for then."""
        result, problems = resolved(node, names, later)
        if not problems and path in self._pending:
            problems = judge_definition(path, result)
        self.problems += problems
        return None if problems else result

    def _path(self, text: str | None, where: Position) -> str | None:
        """A path relative to the recipe, whichever file it was written in."""
        return rebased(text, where, self._file) if text else text

    def _vars(self, overrides: Mapping[str, Override]) -> dict[str, Scalar]:
        """The variables, by the names that templates know them by. A broken one is there, so that no reference to it is blamed."""
        section = self._section("vars")
        found: dict[str, Scalar] = {}
        for name, entry in section.items():
            node = entry.node
            value = node.value if isinstance(node, ScalarNode) and node.value is not None else ""
            where: Position | Argument = node.where
            if name in overrides:
                value, where = overrides[name].value, overrides[name].where
            if isinstance(value, str):
                try:
                    value = substitute(value, Names(self._environment))
                except TemplateError as error:
                    self.problems.append(_var_problem(error, where))
            found[f"vars.{name}"] = value
        if ("vars",) not in self._broken:
            for name in overrides.keys() - section.keys():
                self._unknown("variable", name, section, overrides[name].where)
        return found

    # -- Definitions ---------------------------------------------------------------------------------------------------

    def _toolchains(self, names: Names) -> Iterator[tuple[str, Toolchain]]:
        for name, entry in self._entries("toolchains"):
            node = self._resolved(("toolchains", name), entry.node, names)
            if node is None:
                continue
            fields = Fields(node, self.problems)
            packages = fields.texts("packages")
            if "interpreter" in fields.entries:
                named = [(text, where) for text, where in packages if text]
                self.problems += [_uncheckable(text, where) for text, where in named if not read_requirement(text).is_plain]
            yield (
                name,
                Toolchain(
                    name=name,
                    where=entry.name_where,
                    python=fields.text("python"),
                    packages=tuple(text for text, _ in packages),
                    interpreter=self._path(fields.text("interpreter"), fields.where_of("interpreter")),
                    platforms=tuple(dict.fromkeys(text for text, _ in fields.texts("platforms"))),
                    custom_ops=self._custom_ops(fields),
                ),
            )

    def _custom_ops(self, fields: Fields) -> tuple[Reference, ...]:
        """Paths of libraries, relative to the recipe, and names of packages."""
        named = [(text, where) for text, where in fields.texts("custom_ops") if text]
        self.problems += filter(None, (custom_ops_problem(text, where) for text, where in named))
        paths = [(rebased(text, where, self._file) if names_library(text) else text, where) for text, where in named]
        return tuple(Reference(text, where) for text, where in paths)

    def _model(self, name: str, where: Position, node: Node) -> ModelSource:
        fields = Fields(_long_form(node, "path"), self.problems)
        path, path_where = fields.text("path") or "", fields.where_of("path")
        sha256 = fields.text("sha256")
        if is_remote(path):
            problem = address_problem(path, path_where, pinned=sha256 is not None)
            self.problems += [problem] if problem else []
        elif package_file(path) is None:
            path = self._path(path, path_where) or ""
        folder, folder_where = fields.text("external_data"), fields.where_of("external_data")
        if folder and is_remote(path):
            message = "A model at an address has its external data beside it there, and not in a folder."
            hint = "Leave 'external_data' out, or name a copy of the model by its path."
            self.problems.append(Problem(WRONG_VALUE, message, folder_where, hint))
        pins, sizes = fields.mapping("data_sha256"), fields.mapping("free_dimensions")
        read: Any = fields.text("read") or ModelSource.read
        return ModelSource(
            name=name,
            where=where,
            path=path,
            path_where=path_where,
            sha256=sha256.lower() if sha256 else None,
            data_sha256={file: (pins.text(file) or "").lower() for file in pins.entries},
            inputs=_inputs(fields.mapping("inputs"), self.problems),
            free_dimensions=_dimensions(sizes.mapping("by_name")),
            denoted_dimensions=_dimensions(sizes.mapping("by_denotation")),
            dimension_places={
                f"{kind}.{key}": entry.name_where for kind in sizes.entries for key, entry in sizes.mapping(kind).entries.items()
            },
            read=read,
            external_data=Reference(rebased(folder, folder_where, self._file), folder_where) if folder else None,
            verify=read_verify(fields, self._path, self.problems),
            prepare=read_preparations(
                fields,
                lambda text, where: rebased(text, where, self._file),
                lambda toolchain: self._follow(toolchain, "toolchain", "toolchains"),
                self.problems,
            ),
        )

    def _catalogs(self, names: Names) -> Iterator[Reference]:
        if any(path[:1] == ("catalogs",) for path in self._broken):
            return
        for item in self._root.items("catalogs"):
            node = self._resolved(("catalogs",), item, names)
            text = self._root.text_of(node) if node else None
            if text:
                yield Reference(rebased(text, item.where, self._file), item.where)

    def _targets(self, names: Names) -> dict[str, Target]:
        found: dict[str, Target] = {}
        for base, entry in self._entries("targets"):
            for row, node in self._rows(base, entry, names):
                name = base + row.suffix
                where = row.where or entry.name_where
                if name in found:
                    message = f"A row of {quoted(base)} has the name of the target {quoted(name)}."
                    self.problems.append(Problem(BAD_NAME, message, where))
                elif row.suffix and (problem := name_problem(name, where)):
                    self.problems.append(problem)
                whole = ("targets", base) not in self._partial
                found[name] = self._target(name, entry.name_where, Fields(node, self.problems), whole=whole)
        self.problems += clash_problems((name, target.where) for name, target in found.items())
        return found

    def _rows(self, base: str, entry: Entry, names: Names) -> Iterator[tuple[Row, Node]]:
        """The targets that a definition stands for: itself, or one for each row of its matrix."""
        pattern, rows = entry.node, [Row("", {})]
        if isinstance(pattern, MappingNode) and "matrix" in pattern.entries:
            matrix = pattern.entries["matrix"].node
            pattern = without(pattern, ("matrix",))
            rows = self._matrix_rows(matrix, pattern.size, names)
        for row in rows:
            mine = names.with_values({f"matrix.{axis}": value for axis, value in row.values.items()}) if row.values else names
            result = self._resolved(("targets", base), pattern, mine)
            if result is not None:
                yield row, result
            else:
                self._all_targets_known = False

    def _matrix_rows(self, node: Node, size: int, names: Names) -> list[Row]:
        """A matrix's rows, each of which is a target of `size` values; none when something is wrong with it."""
        axes = self._resolved((), node, names)
        rows: list[Row] = []
        if axes is not None:
            matrix = Matrix(axes)
            if not matrix.problems and self._affords(len(matrix) * size):
                rows = matrix.rows()
            elif not matrix.problems:
                message = f"This matrix has {len(matrix):,} rows; with it, the targets pass {MAX_EXPANDED:,} values."
                self.problems.append(Problem(TOO_LARGE, message, matrix.where))
            self.problems += matrix.problems
        if not rows:
            self._all_targets_known = False
        return rows

    def _affords(self, values: int) -> bool:
        """Count values that are written out, unless they are too many."""
        if self._written_out + values > MAX_EXPANDED:
            return False
        self._written_out += values
        return True

    def _target(self, name: str, where: Position, fields: Fields, *, whole: bool) -> Target:
        toolchain = Reference(fields.text("toolchain") or "", fields.where_of("toolchain"))
        self._follow(toolchain, "toolchain", "toolchains")
        listed = [Fields(item, self.problems) for item in fields.items("eps")]
        return Target(
            name=name,
            where=where,
            toolchain=toolchain,
            eps=tuple(self._ep(choice) for choice in listed or [fields]),
            session_options=_settings(fields, "session_options"),
            environment=_settings(fields, "environment"),
            allow_unknown_options=fields.flag("allow_unknown_options"),
            allow_unknown_session_keys=fields.flag("allow_unknown_session_keys"),
            reproducible=fields.agreed("reproducible"),
            whole=whole,
            allow_failure=fields.flag("allow_failure"),
        )

    def _ep(self, fields: Fields) -> EpChoice:
        library = self._path(fields.text("library"), fields.where_of("library"))
        return EpChoice(
            ep=Reference(fields.text("ep") or "", fields.where_of("ep")),
            device=_device(fields.mapping("device")) if "device" in fields.entries else DeviceChoice(),
            provider_options=_settings(fields, "provider_options"),
            library=Setting(library, fields.where_of("library"), fields.entries["library"].name_where) if library else None,
        )

    def _groups(self, names: Names, targets: Mapping[str, Target]) -> Iterator[tuple[str, Group]]:
        found: dict[str, Group] = {}
        for base, entry in self._entries("groups"):
            for name, fields, members in self._each_group(base, entry, names):
                if name in found:
                    message = f"The group for each model of {quoted(base)} has the name of the group {quoted(name)}."
                    self.problems.append(Problem(BAD_NAME, message, entry.name_where))
                elif name != base and (problem := name_problem(name, entry.name_where)):
                    self.problems.append(problem)
                found[name] = self._group(name, entry.name_where, fields, members, targets)
        self.problems += clash_problems((name, group.where) for name, group in found.items())
        return iter(found.items())

    def _each_group(self, base: str, entry: Entry, names: Names) -> Iterator[tuple[str, Fields, tuple[GroupMember, ...]]]:
        """The groups that a definition stands for, with their members: itself, or one for each of its models."""
        node = self._resolved_group(base, base, entry.node, names)
        if node is None:
            self._all_groups_known = False
            return
        fields = Fields(node, self.problems)
        members = self._members(fields)
        if "for_each" not in fields.entries:
            yield base, fields, members
            return
        for number, member in enumerate(members):
            name = f"{base}-{member.name}"
            own = self._resolved_group(base, name, entry.node, names)
            if own is None:
                self._all_groups_known = False
                return
            # Without any template it is the same for every model.
            found = members if own is node else self._members(Fields(own, self.problems))
            yield name, Fields(own, self.problems), found[number : number + 1]

    def _resolved_group(self, base: str, name: str, node: Node, names: Names) -> Node | None:
        return self._resolved(("groups", base), node, names.with_values({"group": name}), groups.LATER)

    def _group(
        self, name: str, where: Position, fields: Fields, members: tuple[GroupMember, ...], targets: Mapping[str, Target]
    ) -> Group:
        timeout = fields.number("timeout")
        if timeout is not None and timeout <= 0:
            problem = Problem(WRONG_VALUE, "This must be more than 0.", fields.where_of("timeout"))
            self.problems.append(problem)
        memory = fields.size("memory")
        fields.at_least(1, "memory", memory)
        return Group(
            name=name,
            where=where,
            members=members,
            targets=self._matched(fields, targets),
            share_weights=fields.flag("share_weights"),
            share_initializers=read_initializer_sharing(fields),
            reproducible=fields.agreed("reproducible"),
            timeout=timeout,
            memory=memory,
            merge=read_merge(fields.mapping("merge"), self.problems) if "merge" in fields.entries else None,
            genai=read_genai(fields.mapping("genai"), self._path) if "genai" in fields.entries else None,
            custom_ops=self._custom_ops(fields),
            allow_failure=fields.flag("allow_failure"),
        )

    def _members(self, group: Fields) -> tuple[GroupMember, ...]:
        """A group's members in order. A glob stands for the models that no other entry names, each at the first glob that matches it."""
        known = self._section("models")
        entries = [Fields(_long_form(item, "model"), self.problems) for item in group.items("models")]
        named = [entry.text("model") or "" for entry in entries]
        taken = set(named)
        found: list[GroupMember] = []
        for name, entry in zip(named, entries, strict=True):
            model = Reference(name, entry.where_of("model"))
            if not is_glob(name):
                self._follow(model, "model", "models")
                found.append(self._member(model, group, entry))
                continue
            matches = matching(name, known)
            if not matches and ("models",) not in self._broken:
                self._unknown("model", name, known, model.where)
            if not self._can_hold(matches, model.where):
                continue
            if "name" in entry.entries:
                message = f"{quoted(name)} stands for many models, which cannot all have one name."
                self.problems.append(
                    Problem(WRONG_VALUE, message, entry.where_of("name"), "Name one model, or leave 'name' out.")
                )
            found += [self._member(Reference(match, model.where), group, entry) for match in matches if match not in taken]
            taken.update(matches)
        self.problems += clash_problems((member.name, member.model.where) for member in found)
        return tuple(found)

    def _member(self, model: Reference, group: Fields, own: Fields) -> GroupMember:
        settings = _overlaid(group, own, "compile", self.problems)
        expected = _overlaid(group, own, "expect", self.problems)
        name = own.text("name") or model.name
        if name != model.name and (problem := name_problem(name, own.where_of("name"))):
            self.problems.append(problem)
        shared, mine = read_verify(group, self._path, self.problems), read_verify(own, self._path, self.problems)
        return GroupMember(
            name,
            model,
            read_compile_settings(settings, name, self.problems) if settings is not None else CompileSettings(),
            read_expectation(expected) if expected is not None else Expectation(),
            _inputs(own.mapping("inputs"), self.problems),
            mine.over(shared) if mine is not None else shared,
        )

    def _unknown(self, kind: str, name: str, known: Collection[str], where: Position | Argument) -> None:
        self.problems.append(unknown(kind, name, known, where, suggest=len(self.problems) < _MOST_SUGGESTIONS))

    def _follow(self, reference: Reference, kind: str, section: str) -> None:
        known = self._section(section)
        if (section,) not in self._broken and reference.name and reference.name not in known:
            self._unknown(kind, reference.name, known, reference.where)

    def _matched(self, fields: Fields, targets: Mapping[str, Target]) -> tuple[Reference, ...]:
        """A group's targets, each once, at the first pattern that matches it."""
        found: dict[str, Reference] = {}
        for pattern, where in fields.texts("targets"):
            names = matching(pattern, targets)
            if not self._can_hold(names, where):
                continue
            if not names and self._all_targets_known:
                self._unknown("target", pattern, targets, where)
            for name in names:
                found.setdefault(name, Reference(name, where))
        return tuple(found.values())

    def _can_hold(self, names: Collection[str], where: Position) -> bool:
        """Whether a glob's matches may be written out: a recipe of many globs over many targets is otherwise without a bound."""
        if self._affords(len(names)):
            return True
        message = f"With this pattern, the recipe passes {MAX_EXPANDED:,} values."
        self.problems.append(Problem(TOO_LARGE, message, where))
        return False

    def _outputs(self, names: Mapping[str, Scalar], groups: Collection[str], targets: Collection[str]) -> Iterator[Output]:
        if ("outputs",) in self._broken:
            return
        known: Mapping[str, Collection[str]] = {"groups": groups, "targets": targets}

        def named(pattern: str, where: Position, section: str) -> tuple[str, ...] | None:
            if any(path[:1] == (section,) for path in self._broken):
                return None
            names = matching(pattern, known[section])
            if not names and (section != "groups" or self._all_groups_known):
                self._unknown(section.removesuffix("s"), pattern, known[section], where)
            return tuple(names) if self._can_hold(names, where) else ()

        for index, item in enumerate(self._root.items("outputs")):
            if ("outputs", index) in self._broken:
                continue
            node = self._resolved(("outputs", index), item, names, outputs.LATER)
            if node is not None:
                yield read_output(Fields(node, self.problems), named, self.problems)


def _settings(fields: Fields, key: str) -> dict[str, Setting]:
    return {name: Setting(value, entry.node.where, entry.name_where) for name, (value, entry) in fields.scalars(key).items()}


def _device(fields: Fields) -> DeviceChoice:
    kind: Any = fields.text("type")
    metadata = fields.mapping("metadata")
    return DeviceChoice(
        type=kind,
        vendor=fields.text("vendor"),
        metadata={key: metadata.text(key, may_be_empty=True) or "" for key in metadata.entries},
        virtual=fields.flag("virtual"),
    )


def _uncheckable(requirement: str, where: Position) -> Problem:
    message = f"Whether an environment that is there already meets {quoted(requirement)} cannot be told."
    return Problem(WRONG_VALUE, message, where, "Beside an 'interpreter', write '<name>' or '<name>==<version>'.")


def _dimensions(fields: Fields) -> dict[str, int]:
    found = {name: fields.whole(name) or 0 for name in fields.entries}
    for name, size in found.items():
        fields.at_least(1, name, size)
    return found


def _inputs(fields: Fields, problems: list[Problem]) -> dict[str, InputShape]:
    """The sizes of inputs, by their names; an input with a size that is none is left out, and the size is a problem."""
    found = {}
    for name, entry in fields.entries.items():
        items = fields.items(name)
        sizes = [_size(item, problems) for item in items]
        whole = tuple(size for size in sizes if size is not None)
        if len(whole) == len(sizes):
            found[name] = InputShape(whole, entry.node.where, tuple(item.where for item in items), entry.name_where)
    return found


def _size(node: Node, problems: list[Problem]) -> int | None:
    """The size of a dimension; the schema has not seen one that a template gave."""
    fields = Fields(MappingNode(node.where, {"size": Entry(node.where, node)}, 2, 1), problems)
    size = fields.whole("size")
    fields.at_least(1, "size", size)
    return size if size is not None and size >= 1 else None


def _long_form(node: Node, key: str) -> Node:
    """A short form is the long one with one key only."""
    return MappingNode(node.where, {key: Entry(node.where, node)}, 2, 1) if isinstance(node, ScalarNode) else node


def _overlaid(group: Fields, own: Fields, key: str, problems: list[Problem]) -> Fields | None:
    """A group's settings with a member's own over them, key by key; None when neither has any."""
    nodes = [fields.entries[key].node for fields in (group, own) if key in fields.entries]
    match nodes:
        case [MappingNode() as base, MappingNode() as over]:
            return Fields(merged(base, over), problems)
        case _:
            return Fields(nodes[-1], problems) if nodes else None


def _var_problem(error: TemplateError, where: Position | Argument) -> Problem:
    if error.name is None or error.name.startswith("env."):
        return error.problem(where)
    message = f"A variable cannot refer to another: {quoted('${' + error.name + '}')}."
    return Problem(TEMPLATE, message, where, "Write '$${' for a literal '${'.")
