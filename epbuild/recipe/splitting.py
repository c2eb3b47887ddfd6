"""Expansion of models that are split into parts.

    models: {decoder: {path: decoder.onnx, split: {parts: 2}}}
    groups: {llm: {models: [{model: decoder, name: prefill}, {model: decoder, name: decode}], share_weights: true}}

is short for two models `decoder_0` and `decoder_1` that are made from `decoder`, a group with the members `prefill_0`, `prefill_1`,
`decode_0` and `decode_1`, and a sharing set for each part. The rest of epbuild sees only the long form. Each added value has the position
of the value from which it was derived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.errors import Problem, suggest_nearest
from epbuild.recipe.names import is_glob, match_names
from epbuild.recipe.nodes import (
    KeyedNode,
    MappingNode,
    Node,
    Scalar,
    ScalarNode,
    SequenceNode,
    get_entries,
    get_node,
    get_text,
    make_mapping,
    make_scalar,
    make_sequence,
    replace_entries,
)
from epbuild.recipe.problems import BAD_NAME, UNKNOWN_KEY, WRONG_VALUE, quote_text
from epbuild.recipe.template import TemplateError, substitute

SPLIT = "split"
MAX_PARTS = 100
_OPTIONS = ("parts", "at", "layers", "names")
_PER_PART = ("verify", "dimensions")
"""Settings of a model that also apply to its parts."""
_PARENT_KEYS = ("from", "prepare", "split", "input_shapes", *_PER_PART)
"""Keys of a split model that is made from another model."""

Parts = Mapping[str, Sequence[str]]
"""Names of the parts of each split model."""


def write_out_parts(models: Node, names: Mapping[str, Scalar], problems: list[Problem]) -> tuple[Node, Parts]:
    """Return the models with the parts of split models, and the names of the parts. Add problems to `problems`.

    `names` has the values of templates.
    """
    if not isinstance(models, MappingNode):
        return models, {}
    entries: dict[str, KeyedNode] = {}
    parts: dict[str, list[str]] = {}
    for name, entry in models.entries.items():
        split = get_entries(entry.node).get(SPLIT)
        if split is None or not isinstance(entry.node, MappingNode):
            entries[name] = entry
            continue
        rest = {key: value for key, value in entry.node.entries.items() if key != SPLIT}
        problems += _find_unknown_keys("'split'", get_entries(split.node), _OPTIONS)
        parts[name] = _name_parts(name, split, names, problems)
        whole = KeyedNode(split.node.where, make_scalar(split.node.where, name))
        kept = {key: value for key, value in rest.items() if key in _PER_PART}
        if "from" in rest and "prepare" not in rest:  # nothing to do before the split
            whole = rest["from"]
            kept |= {key: value for key, value in rest.items() if key == "input_shapes"}
            problems += _find_unknown_keys(f"models.{name}", rest, _PARENT_KEYS)
        else:
            entries[name] = replace(entry, node=replace_entries(entry.node, rest))
        for number, part in enumerate(parts[name]):
            if (other := models.entries.get(part) or entries.get(part)) is not None:
                message = f"the model {quote_text(part)} has the name of a part of {quote_text(name)}"
                problems.append(Problem(BAD_NAME, message, other.name_where, "Rename the model."))
            else:
                entries[part] = replace(entry, node=_make_part(whole, number, split, kept))
    return replace_entries(models, entries), parts


def _name_parts(model: str, split: KeyedNode, names: Mapping[str, Scalar], problems: list[Problem]) -> list[str]:
    count = _count_parts(split, names, problems)
    if not count:
        return []
    entry = get_entries(split.node).get("names")
    if entry is None:
        return [f"{model}_{number}" for number in range(count)]
    texts = [get_text(item) for item in entry.node.items] if isinstance(entry.node, SequenceNode) else []
    if len(texts) != count or not all(texts) or len(set(texts)) < count:
        message = f"'names' must list {count} different names, one for each part of {quote_text(model)}"
        problems.append(Problem(WRONG_VALUE, message, entry.node.where))
        return []
    return texts


def _find_unknown_keys(place: str, entries: Mapping[str, KeyedNode], known: Sequence[str]) -> Iterator[Problem]:
    for key, entry in entries.items():
        if key not in known:
            message = f"unknown key {quote_text(key)} in {place}"
            hint = suggest_nearest(key, known) or f"Keys: {', '.join(known)}."
            yield Problem(UNKNOWN_KEY, message, entry.name_where, hint)


def _count_parts(split: KeyedNode, names: Mapping[str, Scalar], problems: list[Problem]) -> int:
    """Return the number of parts of a model. If it is unknown, return 0; the schema reports an invalid value."""
    options = get_entries(split.node)
    for key in ("at", "layers"):
        listed = options[key].node if key in options else None
        if isinstance(listed, SequenceNode):
            return len(listed.items) + 1
    node = options["parts"].node if "parts" in options else None
    count = _resolve(node, names) if isinstance(node, ScalarNode) else None
    if isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= MAX_PARTS:
        return count
    message = f"the number of parts of a model must be an integer from 1 to {MAX_PARTS}"
    hint = "Write `split: {parts: 2}`, or list the boundaries under 'at' or 'layers'."
    problems.append(Problem(WRONG_VALUE, message, split.node.where, hint))
    return 0


def _resolve(node: ScalarNode, names: Mapping[str, Scalar]) -> Scalar | None:
    try:
        return substitute(node.value, names) if isinstance(node.value, str) else node.value
    except TemplateError:
        return None


def _make_part(whole: KeyedNode, number: int, split: KeyedNode, settings: Mapping[str, KeyedNode]) -> Node:
    """Return the model of one part: the model `whole` after its preparations, the extraction of the part, and its `settings`."""
    where = split.node.where

    def keyed(node: Node) -> KeyedNode:
        return KeyedNode(where, node)

    options = {key: value for key, value in get_entries(split.node).items() if key != "names"}
    step = make_mapping(where, {**options, "part": keyed(make_scalar(where, number))})
    prepare = make_sequence(where, [make_mapping(where, {SPLIT: KeyedNode(split.name_where, step)})])
    return make_mapping(where, {"from": whole, "prepare": keyed(prepare), **settings})


def write_out_members(groups: Node, models: Iterable[str], parts: Parts) -> Node:
    """Return the groups with the parts of split models as members, in sharing sets and in the roles of genai."""
    if not parts or not isinstance(groups, MappingNode):
        return groups
    of_split = {part for names in parts.values() for part in names}
    known = [name for name in models if name not in of_split]
    entries = {name: replace(entry, node=_write_out_group(entry.node, known, parts)) for name, entry in groups.entries.items()}
    return replace_entries(groups, entries)


class _Entry(Struct, frozen=True):
    """Entry of a group's models."""

    name: str
    node: Node
    parts: Sequence[str]
    """Names of the parts of the model. Empty if the model is not split."""
    is_compiled: bool
    is_named: bool
    """True if the entry has a name other than the name of its model."""

    @property
    def members(self) -> list[str]:
        """Names of the members that the entry adds to the group."""
        if self.parts and self.is_named:
            return [f"{self.name}_{number}" for number in range(len(self.parts))]
        return [*self.parts] or [self.name]


def _write_out_group(group: Node, models: Sequence[str], parts: Parts) -> Node:
    listed = get_node(get_entries(group), "models")
    if not isinstance(group, MappingNode) or not isinstance(listed, SequenceNode):
        return group
    compiled = not _is_none(group.entries.get("compile"))
    entries = [_read_entry(item, parts, compiled=compiled) for item in _expand_globs(listed.items, models, parts)]
    if not any(entry.parts for entry in entries):
        return group
    members = make_sequence(listed.where, (member for entry in entries for member in _list_member_nodes(entry)))
    changed = {**group.entries, "models": replace(group.entries["models"], node=members)}
    if "share_weights" in changed:
        shared = changed["share_weights"]
        changed["share_weights"] = replace(shared, node=_write_out_sets(shared.node, entries))
    genai = changed.get("genai")
    if genai is not None and isinstance(genai.node, MappingNode) and "roles" in genai.node.entries:
        roles = genai.node.entries["roles"]
        written = replace(roles, node=_write_out_roles(roles.node, entries))
        changed["genai"] = replace(genai, node=replace_entries(genai.node, {**genai.node.entries, "roles": written}))
    return replace_entries(group, changed)


def _expand_globs(items: Iterable[Node], models: Sequence[str], parts: Parts) -> Iterator[Node]:
    """Yield the entries of a group's models. A pattern that matches a split model is replaced with the models that it matches."""
    items = list(items)
    taken = {name for item in items if not is_glob(name := _get_model(item))}
    for item in items:
        model = _get_model(item)
        matches = [name for name in match_names(model, models) if name not in taken] if is_glob(model) else []
        if not any(name in parts for name in matches):
            yield item
            continue
        taken.update(matches)
        for name in matches:
            yield make_mapping(item.where, {**get_entries(item), "model": KeyedNode(item.where, make_scalar(item.where, name))})


def _read_entry(item: Node, parts: Parts, *, compiled: bool) -> _Entry:
    own, model = get_entries(item), _get_model(item)
    name = get_text(own["name"].node) if "name" in own else model
    is_compiled = not _is_none(own["compile"]) if "compile" in own else compiled
    return _Entry(name, item, parts.get(model, ()), is_compiled, is_named=name != model)


def _list_member_nodes(entry: _Entry) -> Iterator[Node]:
    if not entry.parts:
        yield entry.node
        return
    where, own = entry.node.where, get_entries(entry.node)
    for part, name in zip(entry.parts, entry.members, strict=True):
        texts = {"model": part} if name == part else {"model": part, "name": name}
        yield make_mapping(where, {**own, **{key: KeyedNode(where, make_scalar(where, text)) for key, text in texts.items()}})


def _write_out_sets(shared: Node, entries: Sequence[_Entry]) -> Node:
    """Return the sharing sets of a group: one for each part, and one for the models that are not split."""
    by_name = {entry.name: entry for entry in entries}
    if isinstance(shared, SequenceNode):
        sets = [item for item in shared.items if isinstance(item, SequenceNode)]
    elif isinstance(shared, ScalarNode) and shared.value is True:
        names = (make_scalar(shared.where, entry.name) for entry in entries if entry.is_compiled)
        sets = [make_sequence(shared.where, names)]
    else:
        return shared
    found = [written for item in sets for written in _split_set(item, by_name)]
    return make_sequence(shared.where, found) if found else make_scalar(shared.where, value=False)


def _split_set(item: SequenceNode, entries: Mapping[str, _Entry]) -> Iterator[Node]:
    listed = [(name, entries.get(get_text(name))) for name in item.items]
    split = [(name, entry) for name, entry in listed if entry is not None and entry.parts]
    whole = [name for name, entry in listed if entry is None or not entry.parts]
    for number in range(max((len(entry.parts) for _, entry in split), default=0)):
        members = [make_scalar(name.where, entry.members[number]) for name, entry in split if number < len(entry.parts)]
        if len(members) > 1:
            yield make_sequence(item.where, members)
    if len(whole) > 1 or (whole and not split):
        yield make_sequence(item.where, whole)


def _write_out_roles(roles: Node, entries: Sequence[_Entry]) -> Node:
    """Return the roles of genai, with the parts of split models in order."""
    members = {entry.name: entry.members for entry in entries}
    if not isinstance(roles, MappingNode):
        return roles
    found: dict[str, KeyedNode] = {}
    for role, keyed in roles.entries.items():
        items = keyed.node.items if isinstance(keyed.node, SequenceNode) else (keyed.node,)
        names = [make_scalar(item.where, name) for item in items for name in members.get(get_text(item), [get_text(item)])]
        found[role] = replace(keyed, node=names[0] if len(names) == 1 else make_sequence(keyed.node.where, names))
    return replace_entries(roles, found)


def _get_model(item: Node) -> str:
    entry = get_entries(item).get("model")
    return get_text(item if entry is None else entry.node)


def _is_none(entry: KeyedNode | None) -> bool:
    return entry is not None and get_text(entry.node) == "none"
