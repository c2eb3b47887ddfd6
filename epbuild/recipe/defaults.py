"""Expansion of a recipe's defaults and short forms.

    models: [models/det.onnx]
    targets: {phone: {ep: qnn, soc: SM8750}}

is short for a recipe that lists every model, the toolchain, the groups and the outputs. The long form spells the EP and its
options as ONNX Runtime does. The rest of epbuild sees only the long form. Each added value has the position of the value from which
it was derived.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path

from msgspec import Struct

from epbuild.catalog.catalog import entries_for, get_full_name, known_eps
from epbuild.catalog.catalog import entry as find_packaging
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import Start
from epbuild.catalog.normalize import BadValue, normalize
from epbuild.core.errors import Position, Problem
from epbuild.recipe.default_preparations import PreparationToolchains
from epbuild.recipe.listed_models import read_listed
from epbuild.recipe.model import Defaults
from epbuild.recipe.names import is_name_part, match_names, name_problem
from epbuild.recipe.nodes import (
    KeyedNode,
    MappingNode,
    Node,
    Scalar,
    ScalarNode,
    SequenceNode,
    get_text,
    make_mapping,
    make_scalar,
    make_sequence,
    render,
    replace_entries,
)
from epbuild.recipe.problems import BAD_NAME, MISSING_KEY, UNKNOWN_KEY, WRONG_VALUE, format_choices, quote_text
from epbuild.recipe.requirement import read_requirement
from epbuild.recipe.splitting import Parts, write_out_members, write_out_parts
from epbuild.recipe.template import TemplateNames

DEVICE_KEYS = ("soc", "device")
"""Short keys that select a target's hardware. The catalog defines the key of each EP."""
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
        _add(entries, "name", _derive_name(file, root.where, problems))
    name = get_text(_get_node(entries, "name"))
    listed = None
    if "models" in entries and not isinstance(entries["models"].node, MappingNode):
        names = TemplateNames(environment, {"recipe.name": name, **variables})
        listed = read_listed(entries["models"].node, file, names, problems)
        if listed is not None:
            entries["models"] = _replace_node(entries["models"], make_mapping(entries["models"].node.where, listed.entries))
    targets = _Targets(_get_section(entries, "toolchains"), problems, has_catalogs="catalogs" in entries)
    models = _get_section(entries, "models")
    parts: Parts = {}
    if "models" in entries:
        written_models, parts = write_out_parts(entries["models"].node, {"recipe.name": name, **variables}, problems)
        models |= written_models.entries if isinstance(written_models, MappingNode) else {}
        entries["models"] = _replace_node(entries["models"], targets.write_out_models(written_models))
    if "targets" in entries:
        entries["targets"] = _replace_node(entries["targets"], targets.write_out(entries["targets"].node))
        if targets.toolchains:
            _add(entries, "toolchains", make_mapping(root.where, targets.toolchains))
    written = _get_section(entries, "groups")
    if "models" in entries and ("groups" in absent or "groups" in entries):
        groups = entries["groups"].node if "groups" in entries else make_mapping(root.where, {})
        _add(entries, "groups", write_out_members(_write_out_groups(groups, models, parts, problems), models, parts))
    if "outputs" in absent:
        path = make_scalar(root.where, _DEFAULT_OUTPUT)
        output = make_mapping(root.where, {"layout": _imply(make_scalar(root.where, "directory")), "path": _imply(path)})
        _add(entries, "outputs", make_sequence(root.where, [output]))
    defaults = Defaults(
        name=name if name and "name" in absent else None,
        toolchains=targets.of_catalog,
        groups=tuple(group for group in _get_section(entries, "groups") if group not in written),
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


class _Targets:
    """Converter that writes out the EPs, options and toolchains of targets."""

    def __init__(self, toolchains: _Entries, problems: list[Problem], *, has_catalogs: bool) -> None:
        self._has_catalogs = has_catalogs
        self.toolchains = toolchains
        """Toolchains of the recipe, and catalog toolchains that its targets need."""
        self._written = tuple(toolchains)
        self._problems = problems

    @property
    def of_catalog(self) -> dict[str, tuple[str, ...]]:
        """Packages, or else the interpreter, of each toolchain that was added from the catalog."""
        added = [(name, entry.node) for name, entry in self.toolchains.items() if name not in self._written]
        return {name: tuple(_list_texts(node)) for name, node in added}

    def write_out(self, targets: Node) -> Node:
        if not isinstance(targets, MappingNode):
            return targets
        entries = {name: _replace_node(entry, self._write_out_target(name, entry)) for name, entry in targets.entries.items()}
        return make_mapping(targets.where, entries, targets.gaps)

    def write_out_models(self, models: Node) -> Node:
        """Return the models with a toolchain in each built-in preparation."""
        if not isinstance(models, MappingNode):
            return models
        preparations = PreparationToolchains(self._written, self._list_packages, self.toolchains, self._problems)
        entries = {name: _replace_node(entry, preparations.write_out(entry.node)) for name, entry in models.entries.items()}
        return replace_entries(models, entries)

    def _write_out_target(self, name: str, target: KeyedNode) -> Node:
        if not isinstance(target.node, MappingNode) or not {"ep", "eps"} & target.node.entries.keys():
            return target.node
        entries: _Entries = dict(target.node.entries)
        if "ep" in entries and not get_text(entries["ep"].node):
            return replace_entries(target.node, {key: entry for key, entry in entries.items() if key not in DEVICE_KEYS})
        listed = _get_node(entries, "eps")
        choices = [item for item in listed.items if isinstance(item, MappingNode)] if isinstance(listed, SequenceNode) else []
        eps = [_get_full_name(choice.entries) for choice in ([target.node] if "ep" in entries else choices)]
        first = next((ep for ep in eps if _get_start(ep) is not None), eps[0] if eps else "")
        if first and "${" not in first and first not in known_eps() and not self._has_catalogs:
            # The planner reports the unknown EP. The short keys are removed, so that they are not reported as well.
            short = {key for key in DEVICE_KEYS if key in entries and not isinstance(entries[key].node, MappingNode)}
            return replace_entries(target.node, {key: entry for key, entry in entries.items() if key not in short})
        if "toolchain" not in entries and "toolchain" not in target.node.gaps:
            toolchain = self._select_toolchain(first, name, target)
            if toolchain:
                entries = {"toolchain": KeyedNode(target.name_where, make_scalar(target.name_where, toolchain)), **entries}
        packages = self._list_packages(get_text(_get_node(entries, "toolchain")))
        if "ep" in entries:
            self._write_out_ep(entries, packages)
        if isinstance(listed, SequenceNode):
            items = tuple(self._write_out_choice(item, packages) for item in listed.items)
            entries["eps"] = _replace_node(
                entries["eps"], listed if items == listed.items else make_sequence(listed.where, items)
            )
        return replace_entries(target.node, entries)

    def _write_out_choice(self, choice: Node, packages: Set[str]) -> Node:
        """Return an item of `eps` with its short forms written out."""
        if not isinstance(choice, MappingNode):
            return choice
        entries: _Entries = dict(choice.entries)
        for key in DEVICE_KEYS:
            if isinstance(value := _get_node(entries, key), SequenceNode):
                hint = f"Write `matrix: {{{key}: [...]}}` in the target, and `{key}: ${{matrix.{key}}}` here."
                self._problems.append(
                    Problem(WRONG_VALUE, "an entry of 'eps' must have a single value here, not a list", value.where, hint)
                )
                del entries[key]
        self._write_out_ep(entries, packages)
        return replace_entries(choice, entries)

    def _write_out_ep(self, entries: _Entries, packages: Set[str]) -> None:
        ep = _get_full_name(entries)
        if ep and ep != get_text(_get_node(entries, "ep")):
            entries["ep"] = _replace_node(entries["ep"], make_scalar(entries["ep"].node.where, ep))
        for key in DEVICE_KEYS:
            # `device` is also the key of a device with its type and vendor.
            if key in entries and not isinstance(entries[key].node, MappingNode):
                self._write_out_device(key, ep, _get_packaging(ep, packages), entries)

    def _select_toolchain(self, ep: str, name: str, target: KeyedNode) -> str | None:
        """Return the toolchain of a target that does not set `toolchain`, or None if none is available or the choice is ambiguous.

        Return the first of these toolchains that exists:

        1. the recipe's toolchain with the name of the catalog's toolchain for the EP
        2. the only toolchain of the recipe that may contain the EP
        3. the catalog's toolchain for the EP, which is then added to `toolchains`
        4. the only toolchain of the recipe
        """
        start = _get_start(ep)
        if start is not None and start.name in self.toolchains:
            return start.name
        fitting = [toolchain for toolchain in self._written if self._can_contain(ep, toolchain)]
        if not fitting and start is not None:
            self.toolchains[start.name] = KeyedNode(target.name_where, _make_toolchain(start, target.name_where))
            return start.name
        if len(fitting) == 1 or len(self._written) == 1:
            return [*fitting, *self._written][0]
        if not self._written and ep in known_eps() and not entries_for(ep)[0].sources:
            return None  # the planner reports that the EP compiles nothing
        hint = f"Set 'toolchain' to one of these: {format_choices(fitting or self._written)}." if self._written else None
        message = f"the key 'toolchain' is missing in targets.{name}"
        self._problems.append(Problem(MISSING_KEY, message, target.node.where, hint))
        return None

    def _can_contain(self, ep: str, toolchain: str) -> bool:
        """Return whether a toolchain may contain an EP. The environment of an existing interpreter may contain any EP."""
        node = self.toolchains[toolchain].node
        is_foreign = isinstance(node, MappingNode) and "interpreter" in node.entries
        distributions = {name for entry in entries_for(ep) for name in entry.distributions} if ep in known_eps() else set()
        return is_foreign or not distributions.isdisjoint(self._list_packages(toolchain))

    def _list_packages(self, toolchain: str) -> Set[str]:
        """Return the names of the packages that a toolchain installs."""
        node = _get_node(self.toolchains, toolchain)
        packages = _get_node(node.entries, "packages") if isinstance(node, MappingNode) else None
        items = packages.items if isinstance(packages, SequenceNode) else ()
        return {read_requirement(get_text(item)).distribution for item in items}

    def _write_out_device(self, key: str, ep: str, packaging: EpEntry | None, entries: _Entries) -> None:
        """Replace a short key such as `soc` with provider options or a device. Convert a list to a matrix."""
        given = entries.pop(key)
        start = packaging.start if packaging is not None else None
        option = start.option if start is not None and start.key == key else None
        has_key = start is not None and start.key is not None
        is_type = key == "device" and not has_key and packaging is not None and bool(packaging.devices)
        if packaging is None or not (option or is_type):
            message = f"unknown key {quote_text(key)} in a target for {ep}"
            self._problems.append(Problem(UNKNOWN_KEY, message, given.name_where, _suggest_device(packaging)))
            return
        value = self._write_out_value(key, given, packaging, option, entries)
        if value is None:
            return
        if option is None or start is None:
            entries["device"] = KeyedNode(
                given.name_where, make_mapping(given.node.where, {"type": KeyedNode(given.name_where, value)})
            )
            return
        options = {name: _imply(make_scalar(given.name_where, text)) for name, text in start.options.items()}
        written = _get_node(entries, "provider_options")
        if isinstance(written, MappingNode):
            if option in written.entries:
                message = f"{quote_text(key)} is short for the option {quote_text(option)}, which is also set"
                self._problems.append(Problem(WRONG_VALUE, message, written.entries[option].name_where, "Remove one of them."))
            options |= written.entries
        options[option] = KeyedNode(given.name_where, value)
        where = written.where if written is not None else given.name_where
        entries["provider_options"] = KeyedNode(where, make_mapping(where, options))

    def _write_out_value(
        self, key: str, given: KeyedNode, packaging: EpEntry, option: str | None, entries: _Entries
    ) -> Node | None:
        """Return the value of a short key, or None if a problem was added.

        If the value is a list, add it to `entries` as a matrix, and return a template that stands for the value in each row.
        """
        if not isinstance(given.node, SequenceNode):
            value = _translate_value(given.node, packaging, option)
            if (problem := _find_product_problem(key, value, packaging, option)) is None:
                return value
            self._problems.append(problem)
            return None
        if "matrix" in entries:
            message = f"a target with a matrix cannot have a list for {quote_text(key)}"
            hint = f"Move the list into the matrix, as in `matrix: {{{key}: [...]}}`, and write `{key}: ${{matrix.{key}}}`."
            self._problems.append(Problem(WRONG_VALUE, message, given.node.where, hint))
            return None
        items = [_translate_value(item, packaging, option) for item in given.node.items]
        is_strict = "allow_unknown_options" not in entries
        problems = [_find_value_problem(key, item, packaging, option if is_strict else None) for item in items]
        self._problems += filter(None, problems)
        sound = [item for item, problem in zip(items, problems, strict=True) if problem is None]
        if items and not sound:
            return None
        axis = KeyedNode(given.name_where, make_sequence(given.node.where, sound))
        entries["matrix"] = KeyedNode(given.name_where, make_mapping(given.node.where, {key: axis}))
        return make_scalar(given.node.where, f"${{matrix.{key}}}")


def _find_value_problem(key: str, item: Node, packaging: EpEntry, option: str | None) -> Problem | None:
    """Return the problem of one value in a list, or None if the value is valid.

    Without this check, the matrix would report the problem at the position of the whole list.
    """
    text = render(item.value) if isinstance(item, ScalarNode) and item.value is not None else ""
    if not text or "${" in text:
        return None
    if problem := _find_product_problem(key, item, packaging, option):
        return problem
    if not is_name_part(text):
        message = f"the value {quote_text(text)} cannot be part of a target's name"
        return Problem(BAD_NAME, message, item.where, f"Define a separate target for it: `{key}: {text}`.")
    if option is None:
        return None
    found = packaging.options[option]
    try:
        normalize(found, text, booleans=packaging.booleans, names=packaging.canonical_names(option))
    except BadValue as error:
        return Problem("EPB212", f"option {quote_text(option)}: {error.message}", item.where, error.hint)
    return None


def _translate_value(node: Node, packaging: EpEntry, option: str | None) -> Node:
    """Return the value of a short key with the catalog's name for the product or device.

    For example, `Snapdragon 8 Elite` and `69` become `SM8750`, and the device type `NPU` becomes `npu`. Return unknown values unchanged.
    """
    if not isinstance(node, ScalarNode) or node.value is None:
        return node
    text = render(node.value)
    if option is None:
        return make_scalar(node.where, text.lower()) if text.lower() in packaging.devices else node
    name = packaging.names[option].find(text) if option in packaging.names else None
    return node if name is None or name == text else make_scalar(node.where, name)


def _find_product_problem(key: str, node: Node, packaging: EpEntry, option: str | None) -> Problem | None:
    """Return a problem if a value with spaces is not a product in the catalog."""
    text = get_text(node).strip()
    if " " not in text or "," in text or "${" in text:
        return None
    table = packaging.names.get(option) if option is not None else None
    products = [product for row in table.rows for product in row.products] if table is not None else []
    if table is None or not products:
        return None
    hint = table.suggest_product(text) or f"Write a known {key}, such as {products[-1]} or {table.rows[-1].name}."
    return Problem("EPB212", f"the catalog has no {key} {quote_text(text)}", node.where, hint)


def _suggest_device(packaging: EpEntry | None) -> str:
    """Return the hint for a short key that the EP does not support."""
    start = packaging.start if packaging is not None else None
    if start is not None and start.key is not None:
        return f"Write {quote_text(start.key)}, such as `{start.key}: {start.example}`."
    if start is not None and start.option is not None:
        return f"Write `provider_options: {{{start.option}: {start.example}}}`."
    if packaging is not None and packaging.devices:
        return f"Write `device: {packaging.devices[0]}`."
    return "Remove it."


def _write_out_groups(groups: Node, models: Mapping[str, KeyedNode], parts: Parts, problems: list[Problem]) -> Node:
    """Return the groups with their models and targets, plus one group for each model that is in no group.

    The parts of a split model have one group together.
    """
    if not isinstance(groups, MappingNode):
        return groups
    found: _Entries = dict(groups.entries)
    default = found.get(DEFAULT_GROUPS)
    if default is not None and get_text(default.node) == "none":
        del found[DEFAULT_GROUPS]
    else:
        default = None
    for name, entry in found.items():
        if isinstance(entry.node, MappingNode):
            found[name] = _replace_node(entry, _write_out_group(name, entry.name_where, entry.node, models))
            if name not in models and "models" not in entry.node.entries and "models" not in entry.node.gaps:
                message = f"the key 'models' is missing in groups.{name}"
                problems.append(
                    Problem(
                        MISSING_KEY,
                        message,
                        entry.node.where,
                        f"List the models, or name the group after a model: there is no model {quote_text(name)}.",
                    )
                )
    if default is None:
        of_split = {part for names in parts.values() for part in names}
        grouped = {model for entry in found.values() for model in _list_members(entry.node, models)}
        # A model that others are made from is usually not compiled itself.
        grouped |= {get_text(_get_node(_get_section(models, name), "from")) for name in models if name not in of_split}
        grouped |= {whole for whole, names in parts.items() if grouped.intersection(names)} | of_split
        for name, entry in models.items():
            if name in grouped or name_problem(name, entry.name_where):
                continue
            if name == DEFAULT_GROUPS:
                message = (
                    f"the model {quote_text(name)} is in no group, and no group can be added for it because its name is reserved"
                )
                problems.append(
                    Problem(BAD_NAME, message, entry.name_where, f"Write `groups: {{<name>: {{models: [{name}]}}}}`.")
                )
                continue
            if name in found:
                message = f"the model {quote_text(name)} is in no group, not even in the group of the same name"
                hint = f"Add the model to a group, or write `groups: {{{DEFAULT_GROUPS}: none}}` to build only models in groups."
                problems.append(Problem(BAD_NAME, message, found[name].name_where, hint))
                continue
            where = entry.name_where
            found[name] = KeyedNode(where, _write_out_group(name, where, make_mapping(where, {}), models))
    return make_mapping(groups.where, found, groups.gaps)


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
    listed = _get_node(group.entries, "models") if isinstance(group, MappingNode) else None
    for item in listed.items if isinstance(listed, SequenceNode) else ():
        name = get_text(_get_node(item.entries, "model") if isinstance(item, MappingNode) else item)
        yield from match_names(name, models)


def _make_toolchain(start: Start, where: Position) -> MappingNode:
    """Return the catalog's toolchain for an EP, as a node."""
    packages = make_sequence(where, [make_scalar(where, package) for package in start.packages])
    node = packages if start.packages else make_scalar(where, start.interpreter or "")
    return make_mapping(where, {"packages" if start.packages else "interpreter": KeyedNode(where, node)})


def _get_full_name(entries: Mapping[str, KeyedNode]) -> str:
    """Return ONNX Runtime's name of a target's EP. Return unknown names and templates unchanged."""
    name = get_text(_get_node(entries, "ep"))
    return get_full_name(name) or name


def _get_start(ep: str) -> Start | None:
    """Return the catalog's values for a new recipe with an EP, or None if the catalog has no such values.

    The values come from the EP's default packaging.
    """
    packaging = _get_packaging(ep)
    return packaging.start if packaging is not None else None


def _get_packaging(ep: str, packages: Set[str] = frozenset()) -> EpEntry | None:
    """Return the packaging of an EP that has one of `packages`, or else the EP's default packaging.

    Return None for an unknown EP.
    """
    return find_packaging(ep, packages) if ep in known_eps() else None


# Nodes


def _get_section(entries: Mapping[str, KeyedNode], key: str) -> _Entries:
    node = _get_node(entries, key)
    return dict(node.entries) if isinstance(node, MappingNode) else {}


def _get_node(entries: Mapping[str, KeyedNode], key: str) -> Node | None:
    entry = entries.get(key)
    return entry.node if entry is not None else None


def _list_texts(node: Node | None) -> Iterator[str]:
    """Yield the texts in a node."""
    match node:
        case MappingNode():
            for entry in node.entries.values():
                yield from _list_texts(entry.node)
        case SequenceNode():
            for item in node.items:
                yield from _list_texts(item)
        case _:
            yield get_text(node)


def _replace_node(entry: KeyedNode, node: Node) -> KeyedNode:
    return KeyedNode(entry.name_where, node)


def _imply(node: Node) -> KeyedNode:
    return KeyedNode(node.where, node)


def _add(entries: _Entries, key: str, node: Node | None) -> None:
    """Set a key unless `node` is None. Keep the position of a key that is already present."""
    if node is not None:
        entries[key] = KeyedNode(entries[key].name_where if key in entries else node.where, node)
