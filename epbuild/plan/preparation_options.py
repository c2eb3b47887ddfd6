"""Checks of the options of built-in preparations against the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from epbuild.catalog.packagings import list_providers
from epbuild.catalog.preparations import OptionFault, check_options, get_preparation, list_preparation_kinds
from epbuild.core.errors import Position, Problem, suggest_nearest
from epbuild.recipe.model import ToolchainSpec
from epbuild.recipe.nodes import MappingNode, Node, SequenceNode, to_plain

BAD_PREPARATION: Final = "EPB280"
LACKS_PACKAGE: Final = "EPB281"


def resolve_preparation_options(kind: str, node: Node | None, where: Position) -> tuple[dict[str, Any], list[Problem]]:
    """Return the options of a built-in preparation in the form that its script expects, and their problems.

    `node` is the recipe's value for the kind, after template substitution. It is None if the recipe sets no options. `where` is the
    position of the kind. Options with file names keep the recipe's text.
    """
    if kind not in list_preparation_kinds():
        known = list_preparation_kinds()
        hint = suggest_nearest(kind, known) or f"Available: {', '.join(known)}."
        return {}, [Problem(BAD_PREPARATION, f"unknown preparation '{kind}'", where, hint)]
    options, faults = check_options(get_preparation(kind), None if node is None else to_plain(node))
    return options, [_make_problem(fault, node, where) for fault in faults]


def find_package_problems(kind: str, options: Mapping[str, Any], toolchain: ToolchainSpec, where: Position) -> list[Problem]:
    """Return a problem if a preparation needs packages that its toolchain does not list, or none if the list is unknown.

    If the recipe lists no `packages` for an existing environment, the environment is checked when the step runs.
    """
    requirements = toolchain.requirements
    if (toolchain.interpreter is not None and not requirements) or any(not one.distribution for one in requirements):
        return []
    named = {one.distribution for one in requirements}
    missing = [name for name in get_preparation(kind).list_packages_for(options) if not named & list_providers(name)]
    if not missing:
        return []
    what = " and ".join(f"'{name}'" for name in missing)
    pronoun = "it" if len(missing) == 1 else "them"
    message = f"the preparation '{kind}' requires {what}, but the toolchain '{toolchain.name}' does not list {pronoun}"
    hint = f"Add {', '.join(missing)} to the packages of '{toolchain.name}' ({toolchain.where}), with the versions to use."
    return [Problem(LACKS_PACKAGE, message, where, hint)]


def _make_problem(fault: OptionFault, node: Node | None, where: Position) -> Problem:
    place = where
    for index, part in enumerate(fault.path):
        last = index == len(fault.path) - 1
        if isinstance(node, MappingNode) and isinstance(part, str) and part in node.entries:
            found = node.entries[part]
            place = found.name_where if last and fault.is_in_name else found.node.where
            node = found.node
        elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            place = node.where
    if not fault.path and node is not None:
        place = node.where
    return Problem(BAD_PREPARATION, fault.message, place, fault.hint)
