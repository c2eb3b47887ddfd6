"""Edits of a recipe, generated from its schema: remove, change, add, rename and reorder at each place."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from epbuild.core.canonical import read_schema

Document = dict[str, Any]
Place = tuple[str | int, ...]
"""Keys and indices that lead to a value of a document."""

REFERENCES = {
    "groups.*.models[]": "models",
    "groups.*.targets[]": "targets",
    "outputs[].groups[]": "groups",
    "outputs[].targets[]": "targets",
}
"""Lists whose entries are names of a section, or globs over them."""


@dataclass(frozen=True)
class Edit:
    """Recipe after one edit. The kind names the field in the schema and the operation."""

    kind: str
    place: Place
    document: Document

    @property
    def is_structural(self) -> bool:
        """Return whether the edit changes which entries a section or a list has."""
        return any(word in self.kind for word in ("entry", "entries", "one ", "another", "glob", "reordered"))


def edits_of(document: Document) -> Iterator[Edit]:
    """Yield each edit of each value of a recipe. Some of the edited recipes are invalid, and builds have to refuse them."""
    yield from _Editor(document).edits(read_schema("recipe"), document, "", ())


class _Editor:
    def __init__(self, document: Document) -> None:
        self.document = document

    def edits(self, node: Mapping[str, Any], value: Any, field: str, place: Place) -> Iterator[Edit]:
        """Yield the edits of the `value` at a place, which the schema describes by `node`."""
        node = _resolved(node)
        if field == "models" and isinstance(value, dict):
            paths = [model["path"] if isinstance(model, dict) else model for model in value.values()]
            yield self._edit("models: a list of paths", place, paths)
            yield self._edit("models: a glob", place, f"[{''.join(sorted({path[0] for path in paths}))}]*.onnx")
        if isinstance(value, dict):
            yield from self._of_mapping(node, value, field, place)
        elif isinstance(value, list):
            yield from self._of_list(node, value, field, place)
        elif (other := _other(node, value)) is not None:
            yield self._edit(f"{field}: changed", place, other)

    def _of_mapping(self, node: Mapping[str, Any], value: Document, field: str, place: Place) -> Iterator[Edit]:
        properties = node.get("properties", {})
        for name, child in properties.items():
            inner = f"{field}.{name}" if field else name
            if name in value:
                yield self._edit(f"{inner}: removed", place, _without(value, name))
                yield from self.edits(child, value[name], inner, (*place, name))
            elif (first := _first(_resolved(child))) is not None:
                yield self._edit(f"{inner}: added", place, {**value, name: first})
        rest = node.get("additionalProperties")
        if not isinstance(rest, dict):
            return
        for name in [name for name in value if name not in properties]:
            new = f"{name}2"
            yield self._edit(f"{field}: entry added", place, {**value, new: copy.deepcopy(value[name])})
            yield self._edit(f"{field}: entry removed", place, _without(value, name))
            renamed = {new if key == name else key: entry for key, entry in value.items()}
            yield self._edit(f"{field}: entry renamed", place, renamed)
            followed = _with_references(self._edit("", place, renamed).document, field, name, new)
            yield Edit(f"{field}: entry renamed everywhere", place, followed)
            yield from self.edits(rest, value[name], f"{field}.*", (*place, name))
        if len(value) > 1:
            yield self._edit(f"{field}: entries reordered", place, dict(reversed(value.items())))

    def _of_list(self, node: Mapping[str, Any], value: list[Any], field: str, place: Place) -> Iterator[Edit]:
        field = f"{field}[]"
        for number in range(len(value)):
            yield self._edit(f"{field}: one fewer", place, value[:number] + value[number + 1 :])
        if len(value) > 1:
            yield self._edit(f"{field}: reordered", place, value[::-1])
        section = REFERENCES.get(field)
        if section is not None:
            known = self.document.get(section, {})
            for name in [name for name in known if name not in value] if isinstance(known, dict) else ():
                yield self._edit(f"{field}: one more", place, [*value, name])
                yield self._edit(f"{field}: another", place, [name])
            yield self._edit(f"{field}: a glob over all", place, ["*"])
            yield self._edit(f"{field}: a glob more", place, [*value, "*"])
            for entry in value:
                if isinstance(entry, str) and not entry.endswith("*"):
                    yield self._edit(f"{field}: a glob over some", place, [f"{entry[0]}*"])
        for number, entry in enumerate(value):
            yield from self.edits(node.get("items", {}), entry, field, (*place, number))

    def _edit(self, kind: str, place: Place, value: Any) -> Edit:
        return Edit(kind, place, _replaced(self.document, place, value))


def _resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in node:
        node = read_schema("recipe")["$defs"][node["$ref"].removeprefix("#/$defs/")]
    return node


def _other(node: Mapping[str, Any], value: Any) -> Any:
    """Return another value of the same field. Return None if the schema does not determine one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return next((choice for choice in node.get("enum", ()) if choice != value), None)


def _first(node: Mapping[str, Any]) -> Any:
    """Return a value for a field that is not set. Return None if the schema does not determine one."""
    kinds = node.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    default = node.get("default")
    if "boolean" in kinds:
        return default is not True
    if "enum" in node:
        return next(choice for choice in node["enum"] if choice != default)
    if kinds and set(kinds) <= {"integer", "number"}:
        return max(int(node.get("minimum", 1)), 1)
    return None


def _without(value: Document, name: str) -> Document:
    return {key: entry for key, entry in value.items() if key != name}


def _replaced(document: Any, place: Place, value: Any) -> Any:
    """Return a copy of a document with another value at a place."""
    if not place:
        return copy.deepcopy(value)
    found = copy.copy(document)
    found[place[0]] = _replaced(document[place[0]], place[1:], value)
    return found


def _with_references(document: Document, section: str, old: str, new: str) -> Document:
    """Return a copy of a document in which lists refer to a renamed section entry by its new name."""
    found = copy.deepcopy(document)
    lists = {
        "groups.*.models[]": (found.get("groups", {}).values(), "models"),
        "groups.*.targets[]": (found.get("groups", {}).values(), "targets"),
        "outputs[].groups[]": (found.get("outputs", []), "groups"),
        "outputs[].targets[]": (found.get("outputs", []), "targets"),
    }
    for field, (owners, key) in lists.items():
        if REFERENCES[field] == section:
            for owner in owners:
                if key in owner:
                    owner[key] = [new if entry == old else entry for entry in owner[key]]
    if section == "toolchains":
        for target in found.get("targets", {}).values():
            if target.get("toolchain") == old:
                target["toolchain"] = new
    return found
