"""Default toolchains of preparations.

    models: {decoder: {path: decoder.onnx, prepare: [{rewrite: qnn}]}}

is short for a step with `toolchain: rewrite`, and a toolchain `rewrite` with the packages and versions of the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set

from msgspec import Struct, field

from epbuild.catalog.preparations import get_preparation, list_preparation_kinds, list_providers, pin_package
from epbuild.core.errors import Position, Problem
from epbuild.recipe.models import RUN
from epbuild.recipe.nodes import (
    KeyedNode,
    MappingNode,
    Node,
    SequenceNode,
    make_mapping,
    make_scalar,
    make_sequence,
    replace_entries,
    to_plain,
)
from epbuild.recipe.problems import MISSING_KEY, format_choices


class PreparationToolchains(Struct):
    """Toolchains that preparations can use. Problems are added to `problems`."""

    written: Collection[str]
    """Names of the toolchains in the recipe."""
    packages: Callable[[str], Set[str]]
    """Function that returns the distributions that a toolchain lists."""
    toolchains: dict[str, KeyedNode]
    """Toolchains of the recipe, by name. Needed toolchains of the catalog are added."""
    problems: list[Problem]
    added: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Packages of each toolchain of the catalog that was added, by the kind of preparation."""

    def write_out(self, model: Node) -> Node:
        """Return a model with a toolchain in each built-in preparation."""
        steps = model.entries.get("prepare") if isinstance(model, MappingNode) else None
        if steps is None or not isinstance(steps.node, SequenceNode) or not isinstance(model, MappingNode):
            return model
        items = tuple(map(self._with_toolchain, steps.node.items))
        if items == steps.node.items:
            return model
        written = KeyedNode(steps.name_where, make_sequence(steps.node.where, items))
        return replace_entries(model, {**model.entries, "prepare": written})

    def _with_toolchain(self, step: Node) -> Node:
        """Return a step with its default toolchain: the first of these that exists.

        1. the recipe's toolchain with the name of the kind
        2. the only toolchain of the recipe that lists the packages of the step
        3. the catalog's toolchain for the kind, which is then added to `toolchains`
        """
        kind = _find_kind(step)
        if kind is None or not isinstance(step, MappingNode):
            return step
        where, options = step.entries[kind]
        needed = get_preparation(kind).list_packages_for(_get_known_options(kind, options))
        fitting = [name for name in self.written if all(self.packages(name) & list_providers(package) for package in needed)]
        if kind not in self.toolchains and len(fitting) > 1:
            message = (
                f"the key 'toolchain' is missing in a step of 'prepare': {len(fitting)} toolchains have the packages of this step"
            )
            self.problems.append(Problem(MISSING_KEY, message, where, f"Toolchains: {format_choices(fitting)}."))
            return make_mapping(step.where, step.entries, {*step.gaps, "toolchain"})
        name = fitting[0] if fitting and kind not in self.toolchains else kind
        if name not in self.written:
            self._add_toolchain(name, needed, where)
        chosen = KeyedNode(where, make_scalar(where, name))
        return replace_entries(step, {**step.entries, "toolchain": chosen})

    def _add_toolchain(self, kind: str, needed: Collection[str], where: Position) -> None:
        """Add the catalog's toolchain for a kind, or add the packages that a second step of this kind needs to it."""
        packages = self.added[kind] = tuple(dict.fromkeys((*self.added.get(kind, ()), *needed)))
        listed = make_sequence(where, [make_scalar(where, pin_package(package)) for package in packages])
        self.toolchains[kind] = KeyedNode(where, make_mapping(where, {"packages": KeyedNode(where, listed)}))


def _find_kind(step: Node) -> str | None:
    """Return the built-in kind of a step without a toolchain, or None for any other step."""
    if not isinstance(step, MappingNode) or {"toolchain", RUN} & (step.entries.keys() | step.gaps):
        return None
    return next((name for name in list_preparation_kinds() if name in step.entries), None)


def _get_known_options(kind: str, options: Node) -> dict[str, object]:
    given = to_plain(options)
    known = get_preparation(kind).options
    return {name: value for name, value in given.items() if name in known} if isinstance(given, dict) else {}
