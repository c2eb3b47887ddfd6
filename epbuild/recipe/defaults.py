"""Expansion of a recipe's defaults and short forms.

    models: [models/det.onnx]
    targets: {phone: {ep: qnn, soc: SM8750}}

is short for a recipe that lists every model, the toolchain, the groups and the outputs. The long form spells the EP and its
options as ONNX Runtime does. The rest of epbuild sees only the long form. Each added value has the position of the value from which
it was derived.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.errors import Position, Problem
from epbuild.recipe.default_targets import TargetDefaults
from epbuild.recipe.listed_models import read_listed
from epbuild.recipe.model import Defaults
from epbuild.recipe.names import match_names, name_problem
from epbuild.recipe.nodes import (
    KeyedNode,
    MappingNode,
    Node,
    Scalar,
    get_entries,
    get_items,
    get_node,
    get_text,
    make_mapping,
    make_scalar,
    make_sequence,
)
from epbuild.recipe.problems import BAD_NAME, MISSING_KEY, quote_text
from epbuild.recipe.splitting import Parts, write_out_members, write_out_parts
from epbuild.recipe.template import TemplateNames

DEFAULT_GROUPS = "default"
"""Key of `groups`. With the value `none`, models that are in no group are not built."""

_DEFAULT_OUTPUT = "dist/${recipe.name}/${group}/${target}"
_Entries = dict[str, KeyedNode]


class WrittenRecipe(Struct, frozen=True):
    """Recipe with its defaults written out."""

    root: MappingNode
    defaults: Defaults
    folders: tuple[Path, ...]
    """Folders in which a new file may match a pattern of `models`."""
    has_all_models: bool
    """False if an entry in the list of models is invalid."""


def write_out(
    root: MappingNode, file: Path, variables: Mapping[str, Scalar], environment: Mapping[str, str], problems: list[Problem]
) -> WrittenRecipe:
    """Return the recipe in `file` with its defaults written out. Add problems of short forms to `problems`.

    `variables` maps the template names of `vars` to their values. Keep values of the wrong type, because the schema reports
    them.
    """
    entries: _Entries = dict(root.entries)
    absent = {"name", "groups", "outputs"} - entries.keys() - root.gaps
    if "name" in absent:
        _set(entries, "name", _derive_name(file, root.where, problems))
    name = get_text(get_node(entries, "name"))
    listed = None
    if "models" in entries and not isinstance(entries["models"].node, MappingNode):
        names = TemplateNames(environment, {"recipe.name": name, **variables})
        listed = read_listed(entries["models"].node, file, names, problems)
        if listed is not None:
            _set(entries, "models", make_mapping(entries["models"].node.where, listed.entries))
    targets = TargetDefaults(dict(get_entries(get_node(entries, "toolchains"))), problems, has_catalogs="catalogs" in entries)
    models = dict(get_entries(get_node(entries, "models")))
    parts: Parts = {}
    if "models" in entries:
        written_models, parts = write_out_parts(entries["models"].node, {"recipe.name": name, **variables}, problems)
        models |= get_entries(written_models)
        _set(entries, "models", targets.write_out_models(written_models))
    if "targets" in entries:
        _set(entries, "targets", targets.write_out_targets(entries["targets"].node))
        if targets.toolchains:
            _set(entries, "toolchains", make_mapping(root.where, targets.toolchains))
    written = get_entries(get_node(entries, "groups"))
    if "models" in entries and ("groups" in absent or "groups" in entries):
        groups = entries["groups"].node if "groups" in entries else make_mapping(root.where, {})
        _set(entries, "groups", write_out_members(_write_out_groups(groups, models, parts, problems), models, parts))
    if "outputs" in absent:
        path = make_scalar(root.where, _DEFAULT_OUTPUT)
        output = make_mapping(root.where, {"layout": _imply(make_scalar(root.where, "directory")), "path": _imply(path)})
        _set(entries, "outputs", make_sequence(root.where, [output]))
    defaults = Defaults(
        name=name if name and "name" in absent else None,
        toolchains=targets.of_catalog,
        groups=tuple(group for group in get_entries(get_node(entries, "groups")) if group not in written),
        output=_DEFAULT_OUTPUT.replace("${recipe.name}", name) if "outputs" in absent else None,
    )
    return WrittenRecipe(
        make_mapping(root.where, entries, root.gaps),
        defaults,
        listed.folders if listed is not None else (),
        listed is None or listed.is_whole,
    )


def _derive_name(file: Path, where: Position, problems: list[Problem]) -> Node | None:
    name = file.absolute().parent.name
    if name_problem(name, where) is None:
        return make_scalar(where, name)
    message = f"the recipe has no name, and the name of its folder, {quote_text(name)}, is not a valid recipe name"
    problems.append(Problem(MISSING_KEY, message, where, "Set `name` to a name of letters and digits."))
    return None


def _write_out_groups(groups: Node, models: Mapping[str, KeyedNode], parts: Parts, problems: list[Problem]) -> Node:
    """Return the groups with their models and targets, plus one group for each model that is in no group.

    The parts of a split model have one group together.
    """
    if not isinstance(groups, MappingNode):
        return groups
    found: _Entries = dict(groups.entries)
    adds_groups = get_text(get_node(found, DEFAULT_GROUPS)) != "none"
    if not adds_groups:
        del found[DEFAULT_GROUPS]
    for name, entry in found.items():
        if isinstance(entry.node, MappingNode):
            found[name] = replace(entry, node=_write_out_group(name, entry.name_where, entry.node, models))
            if name not in models and "models" not in entry.node.entries and "models" not in entry.node.gaps:
                message = f"the key 'models' is missing in groups.{name}"
                hint = f"List the models, or name the group after a model: there is no model {quote_text(name)}."
                problems.append(Problem(MISSING_KEY, message, entry.node.where, hint))
    if adds_groups:
        _add_default_groups(found, models, parts, problems)
    return make_mapping(groups.where, found, groups.gaps)


def _add_default_groups(found: _Entries, models: Mapping[str, KeyedNode], parts: Parts, problems: list[Problem]) -> None:
    """Add a group for each model that is in no group and that no other model is made from."""
    of_split = {part for names in parts.values() for part in names}
    grouped = {model for entry in found.values() for model in _list_members(entry.node, models)}
    # A model that others are made from is usually not compiled itself.
    grouped |= {get_text(get_node(get_entries(models[name].node), "from")) for name in models if name not in of_split}
    grouped |= {whole for whole, names in parts.items() if grouped.intersection(names)} | of_split
    for name, entry in models.items():
        where = entry.name_where
        if name in grouped or name_problem(name, where):
            continue
        if name == DEFAULT_GROUPS:
            message = (
                f"the model {quote_text(name)} is in no group, and no group can be added for it because its name is reserved"
            )
            problems.append(Problem(BAD_NAME, message, where, f"Write `groups: {{<name>: {{models: [{name}]}}}}`."))
        elif name in found:
            message = f"the model {quote_text(name)} is in no group, not even in the group of the same name"
            hint = f"Add the model to a group, or write `groups: {{{DEFAULT_GROUPS}: none}}` to build only models in groups."
            problems.append(Problem(BAD_NAME, message, found[name].name_where, hint))
        else:
            found[name] = KeyedNode(where, _write_out_group(name, where, make_mapping(where, {}), models))


def _write_out_group(name: str, where: Position, node: MappingNode, models: Collection[str]) -> MappingNode:
    """Return a group with its default members: the model with the group's name, and all targets."""
    if "models" in node.entries and "targets" in node.entries:
        return node
    entries: _Entries = dict(node.entries)
    if "models" not in entries and name in models:
        entries = {"models": _imply(make_sequence(where, [make_scalar(where, name)])), **entries}
    if "targets" not in entries and "targets" not in node.gaps:
        entries["targets"] = _imply(make_sequence(where, [make_scalar(where, "*")]))
    return make_mapping(node.where, entries, node.gaps)


def _list_members(group: Node, models: Collection[str]) -> Iterator[str]:
    """Yield the models of a group."""
    for item in get_items(get_node(get_entries(group), "models")):
        name = get_text(get_node(item.entries, "model") if isinstance(item, MappingNode) else item)
        yield from match_names(name, models)


def _imply(node: Node) -> KeyedNode:
    return KeyedNode(node.where, node)


def _set(entries: _Entries, key: str, node: Node | None) -> None:
    """Set a key unless `node` is None. Keep the position of a key that is already present."""
    if node is not None:
        entries[key] = KeyedNode(entries[key].name_where if key in entries else node.where, node)
