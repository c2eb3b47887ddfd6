"""Loader of recipes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.digest import hash_bytes
from epbuild.core.errors import Argument, Position, Problem, RecipeError
from epbuild.recipe import groups, models, outputs
from epbuild.recipe.compose import Composition, hash_texts
from epbuild.recipe.defaults import write_out
from epbuild.recipe.fields import MappingReader
from epbuild.recipe.groups import read_group, read_member
from epbuild.recipe.matrix import Matrix, MatrixRow
from epbuild.recipe.model import NONE, GroupMember, GroupSpec, ModelSpec, OutputSpec, Recipe, Reference, Target, ToolchainSpec
from epbuild.recipe.models import link_to_origins, read_model
from epbuild.recipe.names import find_clashes, is_glob, make_unknown_problem, match_names, name_problem
from epbuild.recipe.nodes import (
    KeyedNode,
    KeyPath,
    MappingNode,
    Node,
    Scalar,
    ScalarNode,
    SequenceNode,
    drop_keys,
    make_sequence,
    merge_nodes,
    prune_paths,
)
from epbuild.recipe.outputs import read_output
from epbuild.recipe.problems import BAD_NAME, TOO_LARGE, WRONG_VALUE, format_choices, quote_text
from epbuild.recipe.remote_address import CacheChoice
from epbuild.recipe.schema import validate, validate_raw
from epbuild.recipe.targets import find_environment_problems, read_cache, read_target, read_toolchain
from epbuild.recipe.template import Pattern, TemplateNames, find_templates
from epbuild.recipe.variables import Override, read_overrides, read_variables

MAX_EXPANDED = 500_000
"""Maximum total number of values in targets with all matrices expanded and in groups with all globs expanded."""

_MAX_SUGGESTIONS = 50


class BrokenRecipe(RecipeError):
    """Error for a partly invalid recipe. `rest` is the valid part, in which later checks can find more problems."""

    rest: Recipe


def load(path: Path, *, environment: Mapping[str, str] | None = None, settings: Sequence[str] = ()) -> Recipe:
    """Load the recipe at `path`, with the files that it extends and includes. Positions name the recipe's file as `path`.

    Paths in the result are relative to the folder of `path`. A path in another file is relative to the folder of that file. The
    loader converts such a path, and writes it with forward slashes. Output paths are always relative to the folder of `path`.

    `${env.NAME}` reads `environment`, by default the environment of this process. `settings` are the values of `--set`, in the
    form `vars.<name>=<YAML scalar>`. If several settings set a variable, the last setting wins.

    Raises RecipeError with every problem. The error is a BrokenRecipe if part of the recipe is valid.
    """
    return load_with_nodes(path, environment=environment, settings=settings).recipe


class LoadedRecipe(Struct, frozen=True):
    """Recipe with the nodes from which it was read."""

    recipe: Recipe
    raw: MappingNode
    """Content of all files of the recipe, as written."""
    written: MappingNode
    """Content of all files of the recipe, with defaults added."""
    paths: Mapping[tuple[Position, str], str]
    """Paths relative to the recipe. The keys are the position and the text of each path as written."""


def load_with_nodes(path: Path, *, environment: Mapping[str, str] | None = None, settings: Sequence[str] = ()) -> LoadedRecipe:
    """Load a recipe like `load`, and return it with its nodes."""
    environment = os.environ if environment is None else environment
    composition = Composition(path)
    digest = hash_texts(composition.contents.values(), environment, settings)
    overrides, refused = read_overrides(settings)
    assembler = _Assembler(path, composition.root, environment, overrides)
    digests = {file: hash_bytes(content) for file, content in composition.contents.items()}
    recipe = replace(assembler.recipe(), files=tuple(digests), names=tuple(composition.names), digests=digests, digest=digest)
    problems = list(dict.fromkeys((*composition.problems, *refused, *assembler.problems)))
    if problems:
        broken = BrokenRecipe(*problems)
        broken.rest = recipe
        raise broken
    return assembler.loaded(recipe, composition.root)


class _Assembler:
    """Converter of a recipe's nodes into a `Recipe`. It collects all problems.

    Values that violate the schema are reported and removed. The rest of a definition is still read.
    """

    def __init__(self, file: Path, root: MappingNode, environment: Mapping[str, str], overrides: Mapping[str, Override]) -> None:
        violations = validate_raw((), root)
        self.problems = [violation.problem for violation in violations]
        self._file = file
        # Paths of the sections and definitions that are skipped entirely.
        self._broken = {violation.path[:2] for violation in violations}
        self._root = MappingReader(root, self.problems, file)
        self._environment = environment
        self._variables = self._read_variables(overrides)
        self._written = write_out(root, file, self._variables, environment, self.problems)
        self._root = MappingReader(self._written.root, self.problems, file)
        self._judged: dict[int, tuple[Node, Node | None, bool]] = {}
        self._rows_of: dict[str, list[str]] = {}
        """Names of the targets of each definition with a matrix."""
        self._all_targets_known = not any(path[:1] == ("targets",) for path in self._broken)
        self._all_groups_known = self._has_all("models")
        self._written_out = 0

    def loaded(self, recipe: Recipe, raw: MappingNode) -> LoadedRecipe:
        return LoadedRecipe(recipe, raw, self._written.root, self._root.rebased_paths)

    def recipe(self) -> Recipe:
        name = self._read_root_text("name")
        if name and (problem := name_problem(name, self._root.where_of("name"))):
            self.problems.append(problem)
        names = TemplateNames(self._environment, {"recipe.name": name, **self._variables})
        targets = self._read_targets(names)
        built = self._read_groups(names, targets)
        return Recipe(
            file=self._file,
            name=name,
            description=self._read_root_text("description"),
            toolchains=dict(self._read_toolchains(names)),
            models=link_to_origins(dict(self._read_models(names)), self.problems),
            targets=targets,
            groups=built,
            outputs=tuple(self._read_outputs(names, built, targets)),
            catalogs=tuple(self._read_catalogs(names)),
            cache=self._read_cache(names),
            defaults=self._written.defaults,
            folders=self._written.folders,
        )

    # -- Sections ------------------------------------------------------------------------------------------------------

    def _read_root_text(self, key: str) -> str:
        return "" if (key,) in self._broken else self._root.text(key) or ""

    def _get_section(self, section: str) -> Mapping[str, KeyedNode]:
        return {} if (section,) in self._broken else self._root.mapping(section).entries

    def _is_whole(self, section: str) -> bool:
        """Return whether a section and its definitions are valid."""
        return not any(path[:1] == (section,) for path in self._broken)

    def _has_all(self, section: str) -> bool:
        """Return whether all names of a section are known. If not, a reference to an unknown name is not an error."""
        return (section,) not in self._broken and (section != "models" or self._written.has_all_models)

    def _list_definitions(self, section: str) -> Iterator[tuple[str, KeyedNode]]:
        """Check the names of a section, and yield its definitions that are not broken."""
        entries = self._get_section(section)
        self.problems += find_clashes((name, entry.name_where) for name, entry in entries.items())
        for name, entry in entries.items():
            if (section, name) in self._broken:
                continue
            if problem := name_problem(name, entry.name_where):
                self.problems.append(problem)
            yield name, entry

    def _resolve_definition(
        self, path: KeyPath, node: Node, names: Mapping[str, Scalar], later: Mapping[str, Collection[str]] = NONE
    ) -> tuple[Node | None, bool]:
        """Substitute the templates of the definition at `path`, and remove values that violate the schema.

        Return the definition, and True if it had no violation. Return None as the definition if its templates are invalid or nothing
        valid remains.
        """
        return self._resolve_pattern(path, node, find_templates(node, later), names)

    def _resolve_pattern(
        self, path: KeyPath, node: Node, pattern: Pattern | None, names: Mapping[str, Scalar]
    ) -> tuple[Node | None, bool]:
        """Resolve a definition like `_resolve_definition`. `pattern` has its templates, so that rows of a matrix find them only once."""
        problems: list[Problem] = []
        result = node if pattern is None else pattern.fill(names, problems)
        if result is not node or problems or id(node) not in self._judged:
            violations = validate(path, result, unresolved=bool(problems))
            if result is not node and not violations and not problems:
                return result, True
            wrong = [violation.path[len(path) :] for violation in violations]
            self.problems += [*problems, *(violation.problem for violation in violations)]
            left = None if problems or () in wrong else prune_paths(result, wrong)
            if left is None:
                self._broken.add(path[:2])
            if result is not node or problems:
                return left, not wrong
            # A definition without templates has one result for all names. Keep the node, so that no other node can have the same id.
            self._judged[id(node)] = node, left, not wrong
        return self._judged[id(node)][1:]

    def _read_variables(self, overrides: Mapping[str, Override]) -> dict[str, Scalar]:
        section = self._get_section("vars")
        if ("vars",) not in self._broken:
            for name in overrides.keys() - section.keys():
                self._add_unknown("variable", name, section, overrides[name].where)
        return read_variables(section, overrides, self._environment, self.problems)

    # -- Definitions ---------------------------------------------------------------------------------------------------

    def _read_toolchains(self, names: TemplateNames) -> Iterator[tuple[str, ToolchainSpec]]:
        for name, entry in self._list_definitions("toolchains"):
            node, _ = self._resolve_definition(("toolchains", name), entry.node, names)
            if node is not None:
                yield name, read_toolchain(name, entry.name_where, self._root.of(node))

    def _read_models(self, names: TemplateNames) -> Iterator[tuple[str, ModelSpec]]:
        for name, entry in self._list_definitions("models"):
            node, _ = self._resolve_definition(("models", name), entry.node, names, models.LATER)
            if node is not None:
                model = read_model(name, entry.name_where, self._root.expand_shorthand(node, "path"))
                for step in model.commands:
                    self._check_reference(step.toolchain, "toolchain", "toolchains")
                if model.parent is not None:
                    self._check_reference(model.parent, "model", "models")
                yield name, model

    def _read_catalogs(self, names: TemplateNames) -> Iterator[Reference]:
        entry = self._root.entries.get("catalogs")
        if entry is None or not self._is_whole("catalogs"):
            return
        node, _ = self._resolve_definition(("catalogs",), entry.node, names)
        for item in node.items if isinstance(node, SequenceNode) else ():
            if isinstance(item, ScalarNode) and isinstance(item.value, str):
                yield self._root.rebased(item.value, item.where)

    def _read_cache(self, names: TemplateNames) -> CacheChoice | None:
        entry = self._root.entries.get("cache")
        if entry is None or not self._is_whole("cache"):
            return None
        node, _ = self._resolve_definition(("cache",), entry.node, names)
        if node is None:
            return None
        problems = find_environment_problems(entry.node, self._get_section("vars"))
        self.problems += problems
        return None if problems else read_cache(self._root.of(node))

    def _read_targets(self, names: TemplateNames) -> dict[str, Target]:
        found: dict[str, Target] = {}
        toolchains: set[Reference] = set()
        for base, entry in self._list_definitions("targets"):
            for row, fields, is_whole in self._read_rows(base, entry, names):
                name = base + row.suffix
                where = row.where or entry.name_where
                if name in found:
                    message = f"a matrix row of {quote_text(base)} has the same name as the target {quote_text(name)}"
                    self.problems.append(Problem(BAD_NAME, message, where))
                elif row.suffix:
                    self._rows_of.setdefault(base, []).append(name)
                    if (problem := name_problem(name, where)) is not None:
                        self.problems.append(problem)
                found[name] = target = read_target(name, entry.name_where, fields, whole=is_whole)
                if target.toolchain not in toolchains:  # most rows of a matrix have the same toolchain
                    toolchains.add(target.toolchain)
                    self._check_reference(target.toolchain, "toolchain", "toolchains")
        self.problems += find_clashes((name, target.where) for name, target in found.items())
        return found

    def _read_rows(self, base: str, entry: KeyedNode, names: TemplateNames) -> Iterator[tuple[MatrixRow, MappingReader, bool]]:
        """Yield each row of a target's matrix, a reader of the row, and whether the row is entirely valid.

        A definition without a matrix has one row.
        """
        definition, rows = entry.node, [MatrixRow("", {})]
        if isinstance(definition, MappingNode) and "matrix" in definition.entries:
            matrix = definition.entries["matrix"].node
            definition = drop_keys(definition, ("matrix",))
            rows = self._expand_matrix(("targets", base, "matrix"), matrix, definition.size, names)
        path, pattern = ("targets", base), find_templates(definition, models.MEASURE_LATER)
        for row in rows:
            mine = names.with_values(row.values) if row.values else names
            node, is_whole = self._resolve_pattern(path, definition, pattern, mine)
            if node is not None:
                yield row, self._root.of(node), is_whole
            else:
                self._all_targets_known = False

    def _expand_matrix(self, path: KeyPath, node: Node, size: int, names: TemplateNames) -> list[MatrixRow]:
        """Return the rows of a matrix, or no rows if the matrix is invalid. `size` is the number of values in each row's target."""
        axes, is_whole = self._resolve_definition(path, node, names)
        rows: list[MatrixRow] = []
        if axes is not None and is_whole:
            matrix = Matrix(axes, self._file)
            if not matrix.problems and self._add_values(len(matrix) * size):
                rows = matrix.rows()
            elif not matrix.problems:
                message = f"this matrix has {len(matrix):,} rows, which expand the targets to more than {MAX_EXPANDED:,} values"
                self.problems.append(Problem(TOO_LARGE, message, matrix.where))
            self.problems += matrix.problems
        if not rows:
            self._all_targets_known = False
        return rows

    def _add_values(self, values: int) -> bool:
        """Add `values` to the count of expanded values. If the sum exceeds the maximum, add nothing and return False."""
        if self._written_out + values > MAX_EXPANDED:
            return False
        self._written_out += values
        return True

    def _read_groups(self, names: TemplateNames, targets: Mapping[str, Target]) -> dict[str, GroupSpec]:
        found: dict[str, GroupSpec] = {}
        for base, entry in self._list_definitions("groups"):
            for name, fields, members in self._expand_groups(base, entry, names):
                if name in found:
                    message = f"a separate group of {quote_text(base)} has the same name as the group {quote_text(name)}"
                    self.problems.append(Problem(BAD_NAME, message, entry.name_where))
                elif name != base and (problem := name_problem(name, entry.name_where)):
                    self.problems.append(problem)
                own = self._match_targets(fields, "targets", targets)
                found[name] = read_group(
                    name, entry.name_where, fields, members, own, self._read_allowed_failures(fields, own, targets)
                )
        self.problems += find_clashes((name, group.where) for name, group in found.items())
        return found

    def _expand_groups(
        self, base: str, entry: KeyedNode, names: TemplateNames
    ) -> Iterator[tuple[str, MappingReader, tuple[GroupMember, ...]]]:
        """Yield the groups of a definition with their members.

        A definition with `separate` yields one group for each of its models.
        """
        fields = self._read_group_fields(base, base, entry.node, names)
        if fields is None:
            self._all_groups_known = False
            return
        members = self._read_members(fields)
        if not fields.flag("separate"):
            yield base, fields, members
            return
        if not isinstance(entry.node, MappingNode) or fields.entries is entry.node.entries:  # without any template
            yield from ((f"{base}-{member.name}", fields, (member,)) for member in members)
            return
        items = {
            self._root.expand_shorthand(item, "model").where_of("model"): item
            for item in self._root.of(entry.node).items("models")
        }
        for member in members:
            name = f"{base}-{member.name}"
            # The definition is reduced to one model, because reading all models again for each model would be slow.
            alone = _reduce_group(entry.node, items[member.model.where], member.model)
            own = self._read_group_fields(base, name, alone, names)
            if own is None:
                self._all_groups_known = False
                return
            yield name, own, self._read_members(own)

    def _read_group_fields(self, base: str, name: str, node: Node, names: TemplateNames) -> MappingReader | None:
        found, _ = self._resolve_definition(("groups", base), node, names.with_values({"group": name}), groups.LATER)
        return None if found is None else self._root.of(found)

    def _read_members(self, group: MappingReader) -> tuple[GroupMember, ...]:
        """Return a group's members in order.

        A glob skips models that another entry names explicitly. A model that matches several globs belongs to the first of them.
        """
        known = self._get_section("models")
        entries = [group.expand_shorthand(item, "model") for item in group.items("models")]
        named = [entry.text("model") or "" for entry in entries]
        taken = set(named)
        found: list[GroupMember] = []
        for name, entry in zip(named, entries, strict=True):
            model = Reference(name, entry.where_of("model"))
            if not is_glob(name):
                self._check_reference(model, "model", "models")
                found.append(read_member(model, group, entry))
                continue
            matches = match_names(name, known)
            if not matches and self._has_all("models"):
                self._add_unknown("model", name, known, model.where)
            if not self._can_hold(matches, model.where):
                continue
            if "name" in entry.entries:
                message = f"{quote_text(name)} matches several models, which cannot all have the same name"
                self.problems.append(
                    Problem(WRONG_VALUE, message, entry.where_of("name"), "Name a single model, or remove 'name'.")
                )
            found += [read_member(Reference(match, model.where), group, entry) for match in matches if match not in taken]
            taken.update(matches)
        self.problems += find_clashes((member.name, member.model.where) for member in found)
        return tuple(found)

    def _add_unknown(self, kind: str, name: str, known: Collection[str], where: Position | Argument) -> None:
        self.problems.append(make_unknown_problem(kind, name, known, where, suggest=len(self.problems) < _MAX_SUGGESTIONS))

    def _check_reference(self, reference: Reference, kind: str, section: str) -> None:
        known = self._get_section(section)
        if self._has_all(section) and reference.name and reference.name not in known:
            self._add_unknown(kind, reference.name, known, reference.where)

    def _read_allowed_failures(
        self, fields: MappingReader, own: Collection[Reference], targets: Mapping[str, Target]
    ) -> frozenset[str]:
        """Return the names of the targets in `own` for which the group may fail."""
        names = frozenset(reference.name for reference in own)
        if fields.flag("allow_failure"):
            return names
        matched = self._match_targets(fields, "allow_failure", targets)
        for where in dict.fromkeys(reference.where for reference in matched):
            if names and names.isdisjoint(reference.name for reference in matched if reference.where == where):
                hint = f"Targets of the group: {format_choices(sorted(names))}."
                self.problems.append(
                    Problem(WRONG_VALUE, "'allow_failure' names a target that the group does not have", where, hint)
                )
        return names.intersection(reference.name for reference in matched)

    def _match_targets(self, fields: MappingReader, key: str, targets: Mapping[str, Target]) -> tuple[Reference, ...]:
        """Return the targets that the patterns under `key` match, without duplicates.

        The position of a reference is the position of the first matching pattern.
        """
        found: dict[str, Reference] = {}
        for pattern, where in fields.texts(key):
            names = self._find_targets(pattern, targets)
            if not self._can_hold(names, where):
                continue
            if not names and self._all_targets_known:
                self._add_unknown("target", pattern, targets, where)
            for name in names:
                found.setdefault(name, Reference(name, where))
        return tuple(found.values())

    def _find_targets(self, pattern: str, targets: Collection[str]) -> list[str]:
        """Return the names of the targets that a name or glob matches. The name of a target with a matrix matches all its rows."""
        return match_names(pattern, targets) or sorted(self._rows_of.get(pattern, ()))

    def _can_hold(self, names: Collection[str], where: Position) -> bool:
        """Count the matches of a glob as expanded values. If the count exceeds the maximum, report a problem and return False.

        Without this limit, many globs that match many targets could use unbounded memory.
        """
        if self._add_values(len(names)):
            return True
        message = f"with this pattern, the recipe exceeds {MAX_EXPANDED:,} values"
        self.problems.append(Problem(TOO_LARGE, message, where))
        return False

    def _read_outputs(self, names: TemplateNames, groups: Collection[str], targets: Collection[str]) -> Iterator[OutputSpec]:
        if ("outputs",) in self._broken:
            return
        known: Mapping[str, Collection[str]] = {"groups": groups, "targets": targets}
        whole = {section: self._is_whole(section) for section in known}

        def named(pattern: str, where: Position, section: str) -> tuple[str, ...] | None:
            if not whole[section]:
                return None
            find = self._find_targets if section == "targets" else match_names
            names = find(pattern, known[section])
            if not names and (section != "groups" or self._all_groups_known):
                self._add_unknown(section.removesuffix("s"), pattern, known[section], where)
            return tuple(names) if self._can_hold(names, where) else ()

        for index, item in enumerate(self._root.items("outputs")):
            node, _ = self._resolve_definition(("outputs", index), item, names, outputs.LATER)
            if node is not None:
                yield read_output(self._root.of(node), named)


def _reduce_group(group: MappingNode, item: Node, model: Reference) -> MappingNode:
    """Return the definition of a group with only one of its models. Keep the settings in `item`, the entry of the model."""
    alone: Node = ScalarNode(model.where, model.name, model.name)
    if isinstance(item, MappingNode):
        alone = _replace_value(item, "model", alone)
    models = make_sequence(group.entries["models"].node.where, [alone])
    return _replace_value(group, "models", models)


def _replace_value(node: MappingNode, key: str, value: Node) -> MappingNode:
    """Return a copy of the mapping with a new value for an existing key."""
    return merge_nodes(node, replace(node, entries={key: replace(node.entries[key], node=value)}))
