"""Default toolchains, EPs and options of targets and preparations.

    targets: {phone: {ep: qnn, soc: SM8750}}
    models: {decoder: {path: decoder.onnx, prepare: [{rewrite: qnn}]}}

is short for a target with the full name and the options of the EP, a step with `toolchain: rewrite`, and toolchains with the packages
and versions of the catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set

from msgspec.structs import replace

from epbuild.catalog.catalog import entries_for, get_full_name, known_eps
from epbuild.catalog.catalog import entry as find_packaging
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import Start
from epbuild.catalog.normalize import BadValue, normalize
from epbuild.catalog.packagings import list_providers, pin_package
from epbuild.catalog.preparations import get_preparation, list_preparation_kinds
from epbuild.core.errors import Position, Problem
from epbuild.recipe.models import RUN
from epbuild.recipe.names import is_name_part
from epbuild.recipe.nodes import (
    KeyedNode,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    get_entries,
    get_items,
    get_node,
    get_text,
    make_mapping,
    make_scalar,
    make_sequence,
    render,
    replace_entries,
    to_plain,
)
from epbuild.recipe.problems import BAD_NAME, MISSING_KEY, UNKNOWN_KEY, WRONG_VALUE, format_choices, quote_text
from epbuild.recipe.requirement import read_requirement

DEVICE_KEYS = ("soc", "device")
"""Short keys that select a target's hardware. The catalog defines the key of each EP."""

_Entries = dict[str, KeyedNode]


class TargetDefaults:
    """Converter that writes out the EPs and options of targets, and the toolchains of targets and preparations."""

    def __init__(self, toolchains: _Entries, problems: list[Problem], *, has_catalogs: bool) -> None:
        self._has_catalogs = has_catalogs
        self.toolchains = toolchains
        """Toolchains of the recipe, and catalog toolchains that its targets and preparations need."""
        self._written = tuple(toolchains)
        self._problems = problems
        self._added: dict[str, tuple[str, ...]] = {}
        """Packages of each toolchain of the catalog that was added for preparations, by their kind."""

    @property
    def of_catalog(self) -> dict[str, tuple[str, ...]]:
        """Packages, or else the interpreter, of each toolchain that was added from the catalog."""
        added = [(name, entry.node) for name, entry in self.toolchains.items() if name not in self._written]
        return {name: tuple(_list_texts(node)) for name, node in added}

    def write_out_targets(self, targets: Node) -> Node:
        """Return the targets with the EPs, the options and the toolchain of each."""
        entries = {name: replace(entry, node=self._write_out_target(name, entry)) for name, entry in get_entries(targets).items()}
        return make_mapping(targets.where, entries, targets.gaps) if isinstance(targets, MappingNode) else targets

    def write_out_models(self, models: Node) -> Node:
        """Return the models with a toolchain in each built-in preparation."""
        entries = {name: replace(entry, node=self._write_out_model(entry.node)) for name, entry in get_entries(models).items()}
        return replace_entries(models, entries) if isinstance(models, MappingNode) else models

    def _write_out_model(self, model: Node) -> Node:
        steps = get_entries(model).get("prepare")
        if steps is None or not isinstance(steps.node, SequenceNode) or not isinstance(model, MappingNode):
            return model
        items = tuple(map(self._with_toolchain, steps.node.items))
        if items == steps.node.items:
            return model
        return replace_entries(model, {**model.entries, "prepare": replace(steps, node=make_sequence(steps.node.where, items))})

    def _with_toolchain(self, step: Node) -> Node:
        """Return a step with its default toolchain: the first of these that exists.

        1. the recipe's toolchain with the name of the kind
        2. the only toolchain of the recipe that lists the packages of the step
        3. the catalog's toolchain for the kind, which is then added to `toolchains`
        """
        kind = _find_kind(step)
        if kind is None or not isinstance(step, MappingNode):
            return step
        where, options = step.entries[kind].name_where, step.entries[kind].node
        needed = get_preparation(kind).list_packages_for(_get_known_options(kind, options))
        fitting = [
            name for name in self._written if all(self._list_packages(name) & list_providers(package) for package in needed)
        ]
        if kind not in self.toolchains and len(fitting) > 1:
            message = (
                f"the key 'toolchain' is missing in a step of 'prepare': {len(fitting)} toolchains have the packages of this step"
            )
            self._problems.append(Problem(MISSING_KEY, message, where, f"Toolchains: {format_choices(fitting)}."))
            return make_mapping(step.where, step.entries, {*step.gaps, "toolchain"})
        name = fitting[0] if fitting and kind not in self.toolchains else kind
        if name not in self._written:
            self._add_preparation_toolchain(name, needed, where)
        chosen = KeyedNode(where, make_scalar(where, name))
        return replace_entries(step, {**step.entries, "toolchain": chosen})

    def _add_preparation_toolchain(self, kind: str, needed: Collection[str], where: Position) -> None:
        """Add the catalog's toolchain for a kind, or add the packages that a second step of this kind needs to it."""
        packages = self._added[kind] = tuple(dict.fromkeys((*self._added.get(kind, ()), *needed)))
        listed = make_sequence(where, [make_scalar(where, pin_package(package)) for package in packages])
        self.toolchains[kind] = KeyedNode(where, make_mapping(where, {"packages": KeyedNode(where, listed)}))

    def _write_out_target(self, name: str, target: KeyedNode) -> Node:
        if not isinstance(target.node, MappingNode) or not {"ep", "eps"} & target.node.entries.keys():
            return target.node
        entries: _Entries = dict(target.node.entries)
        if "ep" in entries and not get_text(entries["ep"].node):
            return replace_entries(target.node, {key: entry for key, entry in entries.items() if key not in DEVICE_KEYS})
        listed = get_node(entries, "eps")
        choices = [target.node] if "ep" in entries else [item for item in get_items(listed) if isinstance(item, MappingNode)]
        eps = [_get_full_name(choice.entries) for choice in choices]
        first = next((ep for ep in eps if _get_start(ep) is not None), eps[0] if eps else "")
        if first and "${" not in first and first not in known_eps() and not self._has_catalogs:
            # The planner reports the unknown EP. The short keys are removed, so that they are not reported as well.
            short = {key for key in DEVICE_KEYS if key in entries and not isinstance(entries[key].node, MappingNode)}
            return replace_entries(target.node, {key: entry for key, entry in entries.items() if key not in short})
        if "toolchain" not in entries and "toolchain" not in target.node.gaps:
            toolchain = self._select_toolchain(first, name, target)
            if toolchain:
                entries = {"toolchain": KeyedNode(target.name_where, make_scalar(target.name_where, toolchain)), **entries}
        packages = self._list_packages(get_text(get_node(entries, "toolchain")))
        if "ep" in entries:
            self._write_out_ep(entries, packages)
        if isinstance(listed, SequenceNode):
            items = tuple(self._write_out_choice(item, packages) for item in listed.items)
            entries["eps"] = replace(entries["eps"], node=listed if items == listed.items else make_sequence(listed.where, items))
        return replace_entries(target.node, entries)

    def _write_out_choice(self, choice: Node, packages: Set[str]) -> Node:
        """Return an item of `eps` with its short forms written out."""
        if not isinstance(choice, MappingNode):
            return choice
        entries: _Entries = dict(choice.entries)
        for key in DEVICE_KEYS:
            if isinstance(value := get_node(entries, key), SequenceNode):
                hint = f"Write `matrix: {{{key}: [...]}}` in the target, and `{key}: ${{matrix.{key}}}` here."
                self._problems.append(
                    Problem(WRONG_VALUE, "an entry of 'eps' must have a single value here, not a list", value.where, hint)
                )
                del entries[key]
        self._write_out_ep(entries, packages)
        return replace_entries(choice, entries)

    def _write_out_ep(self, entries: _Entries, packages: Set[str]) -> None:
        ep = _get_full_name(entries)
        if ep and ep != get_text(get_node(entries, "ep")):
            entries["ep"] = replace(entries["ep"], node=make_scalar(entries["ep"].node.where, ep))
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
        is_foreign = "interpreter" in get_entries(self.toolchains[toolchain].node)
        distributions = {name for entry in entries_for(ep) for name in entry.distributions} if ep in known_eps() else set()
        return is_foreign or not distributions.isdisjoint(self._list_packages(toolchain))

    def _list_packages(self, toolchain: str) -> Set[str]:
        """Return the names of the packages that a toolchain installs."""
        packages = get_node(get_entries(get_node(self.toolchains, toolchain)), "packages")
        return {read_requirement(get_text(item)).distribution for item in get_items(packages)}

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
        options = {name: KeyedNode(given.name_where, make_scalar(given.name_where, text)) for name, text in start.options.items()}
        written = get_node(entries, "provider_options")
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


def _find_kind(step: Node) -> str | None:
    """Return the built-in kind of a step without a toolchain, or None for any other step."""
    if not isinstance(step, MappingNode) or {"toolchain", RUN} & (step.entries.keys() | step.gaps):
        return None
    return next((name for name in list_preparation_kinds() if name in step.entries), None)


def _get_known_options(kind: str, options: Node) -> dict[str, object]:
    known = get_preparation(kind).options
    return {name: to_plain(entry.node) for name, entry in get_entries(options).items() if name in known}


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


def _make_toolchain(start: Start, where: Position) -> MappingNode:
    """Return the catalog's toolchain for an EP, as a node."""
    packages = make_sequence(where, [make_scalar(where, package) for package in start.packages])
    node = packages if start.packages else make_scalar(where, start.interpreter or "")
    return make_mapping(where, {"packages" if start.packages else "interpreter": KeyedNode(where, node)})


def _get_full_name(entries: Mapping[str, KeyedNode]) -> str:
    """Return ONNX Runtime's name of a target's EP. Return unknown names and templates unchanged."""
    name = get_text(get_node(entries, "ep"))
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
