"""Nodes that the schema found sound, made into a `Recipe`: names checked, templates substituted, references followed."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from epbuild.errors import Position, Problem
from epbuild.recipe.expand import Matrix, clash_problems, matching, name_problem, resolved, unknown
from epbuild.recipe.fields import Fields
from epbuild.recipe.model import (
    CompileSettings,
    DeviceChoice,
    Expectation,
    Group,
    ModelSource,
    Output,
    Recipe,
    Reference,
    Scalar,
    Setting,
    Target,
    Toolchain,
)
from epbuild.recipe.problems import BAD_NAME, TEMPLATE, TOO_LARGE, WRONG_VALUE, quoted
from epbuild.recipe.source import MAX_NODES, Entry, KeyPath, MappingNode, Node, ScalarNode
from epbuild.recipe.template import OUTPUT_NAMES, TemplateError, substitute

_GROUP_LATER = {"file": ("model",)}
_OUTPUT_LATER = dict.fromkeys(("path", "model", "context_binary"), OUTPUT_NAMES)
_DEFAULT_MODEL = "${model}_ctx.onnx"
_DEFAULT_CONTEXT_BINARY = "${first_model}_${ep.short}.bin"


def assemble(file: Path, root: MappingNode, broken: Collection[KeyPath]) -> tuple[Recipe, list[Problem]]:
    """The recipe, and what is wrong with it; only a recipe without problems is fit to be used.

    What lies under a `broken` path has been found wrong before: it is left out, and nothing is said of it again.
    """
    assembler = _Assembler(root, broken)
    recipe = assembler.recipe(file)
    return recipe, list(dict.fromkeys(assembler.problems))


class _Assembler:
    def __init__(self, root: MappingNode, broken: Collection[KeyPath]) -> None:
        self.problems: list[Problem] = []
        self._root = Fields(root, self.problems)
        # A definition is the smallest thing that is left out: `targets.x`, or a whole section that is missing or no mapping.
        self._broken = {path[:2] for path in broken}
        self._all_targets_known = not any(path[:1] == ("targets",) for path in self._broken)
        self._written_out = 0

    def recipe(self, file: Path) -> Recipe:
        name = self._root_text("name")
        if name and (problem := name_problem(name, self._root.where_of("name"))):
            self.problems.append(problem)
        names: dict[str, Scalar] = {"recipe.name": name, **self._vars()}
        targets = self._targets(names)
        return Recipe(
            file=file,
            name=name,
            description=self._root_text("description", may_be_empty=True),
            toolchains={
                key: self._toolchain(key, entry.name_where, fields)
                for key, entry, fields in self._definitions("toolchains", names)
            },
            models={
                key: self._model(key, entry.name_where, node)
                for key, entry in self._entries("models")
                if (node := self._resolved(entry.node, names)) is not None
            },
            targets=targets,
            groups={
                key: self._group(key, entry.name_where, fields, targets)
                for key, entry, fields in self._definitions("groups", names, _GROUP_LATER)
            },
            outputs=tuple(self._outputs(names)),
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

    def _definitions(
        self, section: str, names: Mapping[str, Scalar], later: Mapping[str, Collection[str]] | None = None
    ) -> Iterator[tuple[str, Entry, Fields]]:
        for name, entry in self._entries(section):
            node = self._resolved(entry.node, names, later)
            if node is not None:
                yield name, entry, Fields(node, self.problems)

    def _resolved(
        self, node: Node, names: Mapping[str, Scalar], later: Mapping[str, Collection[str]] | None = None
    ) -> Node | None:
        """The node with its templates substituted, or None when one of them is wrong."""
        result, problems = resolved(node, names, later)
        self.problems += problems
        return None if problems else result

    def _vars(self) -> dict[str, Scalar]:
        """The variables, by the names that templates know them by. A broken one is there, so that no reference to it is blamed."""
        found: dict[str, Scalar] = {}
        for name, entry in self._section("vars").items():
            node = entry.node
            value = node.value if isinstance(node, ScalarNode) and node.value is not None else ""
            if isinstance(value, str):
                try:
                    value = substitute(value, {})
                except TemplateError as error:
                    self.problems.append(_var_problem(error, node.where))
            found[f"vars.{name}"] = value
        return found

    # -- Definitions ---------------------------------------------------------------------------------------------------

    def _toolchain(self, name: str, where: Position, fields: Fields) -> Toolchain:
        return Toolchain(
            name=name,
            where=where,
            python=fields.text("python"),
            packages=tuple(text for text, _ in fields.texts("packages")),
            interpreter=fields.text("interpreter"),
        )

    def _model(self, name: str, where: Position, node: Node) -> ModelSource:
        if isinstance(node, ScalarNode):
            # The short form is the long one with a path only.
            node = MappingNode(node.where, {"path": Entry(node.where, node)}, 2, 1)
        fields = Fields(node, self.problems)
        sha256 = fields.text("sha256")
        return ModelSource(
            name=name,
            where=where,
            path=fields.text("path") or "",
            path_where=fields.where_of("path"),
            sha256=sha256.lower() if sha256 else None,
        )

    def _targets(self, names: Mapping[str, Scalar]) -> dict[str, Target]:
        found: dict[str, Target] = {}
        for base, entry in self._entries("targets"):
            for name, node in self._rows(base, entry, names):
                if name in found:
                    message = f"A row of {quoted(base)} has the name of the target {quoted(name)}."
                    self.problems.append(Problem(BAD_NAME, message, entry.name_where))
                elif name != base and (problem := name_problem(name, entry.name_where)):
                    self.problems.append(problem)
                found[name] = self._target(name, entry.name_where, Fields(node, self.problems))
        self.problems += clash_problems((name, target.where) for name, target in found.items())
        return found

    def _rows(self, base: str, entry: Entry, names: Mapping[str, Scalar]) -> Iterator[tuple[str, Node]]:
        """The targets that a definition stands for: itself, or one for each row of its matrix."""
        node = entry.node
        if not isinstance(node, MappingNode) or "matrix" not in node.entries:
            result = self._resolved(node, names)
            if result is not None:
                yield base, result
            else:
                self._all_targets_known = False
            return
        axes = self._resolved(node.entries["matrix"].node, names)
        matrix = Matrix(axes) if axes is not None else None
        if matrix is None or matrix.problems:
            self._all_targets_known = False
            self.problems += matrix.problems if matrix else []
            return
        self._written_out += len(matrix) * node.size
        if self._written_out > MAX_NODES:
            self._all_targets_known = False
            message = f"This matrix has {len(matrix):,} rows; with it, the targets pass {MAX_NODES:,} values."
            self.problems.append(Problem(TOO_LARGE, message, matrix.where))
            return
        rest = {key: value for key, value in node.entries.items() if key != "matrix"}
        pattern = dataclasses.replace(node, entries=rest)
        for row in matrix.rows():
            values = {f"matrix.{axis}": value for axis, value in row.values.items()}
            result = self._resolved(pattern, {**names, **values})
            if result is not None:
                yield base + row.suffix, result
            else:
                self._all_targets_known = False

    def _target(self, name: str, where: Position, fields: Fields) -> Target:
        device = fields.mapping("device")
        kind: Any = device.text("type")
        metadata = device.mapping("metadata")
        toolchain = Reference(fields.text("toolchain") or "", fields.where_of("toolchain"))
        self._follow(toolchain, "toolchain", "toolchains")
        return Target(
            name=name,
            where=where,
            toolchain=toolchain,
            ep=Reference(fields.text("ep") or "", fields.where_of("ep")),
            device=DeviceChoice(
                type=kind,
                vendor=device.text("vendor"),
                metadata={key: metadata.text(key, may_be_empty=True) or "" for key in metadata.entries},
                virtual=device.flag("virtual"),
            ),
            provider_options=_settings(fields, "provider_options"),
            session_options=_settings(fields, "session_options"),
            allow_unknown_options=fields.flag("allow_unknown_options"),
        )

    def _group(self, name: str, where: Position, fields: Fields, targets: Mapping[str, Target]) -> Group:
        models = tuple(Reference(text, place) for text, place in fields.texts("models"))
        for model in models:
            self._follow(model, "model", "models")
        timeout = fields.number("timeout")
        if timeout is not None and timeout <= 0:
            problem = Problem(WRONG_VALUE, "This must be more than 0.", fields.where_of("timeout"))
            self.problems.append(problem)
        return Group(
            name=name,
            where=where,
            models=models,
            targets=self._matched(fields, targets),
            share_weights=fields.flag("share_weights"),
            compile=_compile_settings(fields.mapping("compile")),
            expect=_expectation(fields),
            timeout=timeout,
        )

    def _follow(self, reference: Reference, kind: str, section: str) -> None:
        known = self._section(section)
        if (section,) not in self._broken and reference.name and reference.name not in known:
            self.problems.append(unknown(kind, reference.name, known, reference.where))

    def _matched(self, fields: Fields, targets: Mapping[str, Target]) -> tuple[Reference, ...]:
        """A group's targets, each once, at the first pattern that matches it."""
        found: dict[str, Reference] = {}
        for pattern, where in fields.texts("targets"):
            names = matching(pattern, targets)
            if not names and self._all_targets_known:
                self.problems.append(unknown("target", pattern, targets, where))
            for name in names:
                found.setdefault(name, Reference(name, where))
        return tuple(found.values())

    def _outputs(self, names: Mapping[str, Scalar]) -> Iterator[Output]:
        if ("outputs",) in self._broken:
            return
        for index, item in enumerate(self._root.items("outputs")):
            if ("outputs", index) in self._broken:
                continue
            node = self._resolved(item, names, _OUTPUT_LATER)
            if node is None:
                continue
            fields = Fields(node, self.problems)
            layout: Any = fields.text("layout")
            yield Output(
                where=fields.where,
                layout=layout,
                path=fields.text("path") or "",
                path_where=fields.where_of("path"),
                model=fields.text("model") or _DEFAULT_MODEL,
                model_where=fields.where_of("model"),
                context_binary=fields.text("context_binary") or _DEFAULT_CONTEXT_BINARY,
                context_binary_where=fields.where_of("context_binary"),
            )


def _settings(fields: Fields, key: str) -> dict[str, Setting]:
    return {name: Setting(value, entry.node.where, entry.name_where) for name, (value, entry) in fields.scalars(key).items()}


def _compile_settings(fields: Fields) -> CompileSettings:
    initializers = fields.mapping("initializers")
    level: Any = fields.text("graph_optimization_level") or CompileSettings.graph_optimization_level
    threshold = initializers.whole("threshold")
    return CompileSettings(
        embed=fields.flag("embed"),
        graph_optimization_level=level,
        external_file=initializers.text("file"),
        external_threshold=CompileSettings.external_threshold if threshold is None else threshold,
        embed_where=fields.where_of("embed") if "embed" in fields.entries else None,
    )


def _expectation(group: Fields) -> Expectation:
    if "expect" not in group.entries:
        return Expectation()
    fields = group.mapping("expect")
    return Expectation(fields.whole("ep_context_nodes"), fields.whole("fallback_nodes"), fields.where)


def _var_problem(error: TemplateError, where: Position) -> Problem:
    if error.name is None:
        return error.problem(where)
    message = f"A variable cannot refer to another: {quoted('${' + error.name + '}')}."
    return Problem(TEMPLATE, message, where, "Write '$${' for a literal '${'.")
