"""Predicates over nodes, compiled from JSON Schema.

A predicate is asked first, and `jsonschema` only where the answer is no: that finds what is wrong, and takes longer to import than a small
recipe to read, and ten times as long to look at each definition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from epbuild.recipe.nodes import MappingNode, Node, ScalarNode, SequenceNode

Predicate = Callable[[Node], bool]

_ANNOTATIONS = frozenset(
    ("title", "description", "examples", "default", "errorMessage", "patternErrorMessage", "synonyms", "$schema", "$id", "$defs")
)
"""The keywords that no value can violate."""


def predicate(schema: Any, definitions: Mapping[str, Any]) -> Predicate:
    """Compile a schema, whose references are to `definitions`. Raises NotImplementedError for a keyword that is not known here."""
    return _Compiler(definitions).compiled(schema)


class _Compiler:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._known: dict[str, Predicate] = {}

    def compiled(self, schema: Any) -> Predicate:
        if isinstance(schema, bool):
            return lambda node: schema
        return _all(list(self._checks(schema)))

    def _checks(self, schema: Mapping[str, Any]) -> Iterator[Predicate]:
        if "properties" in schema or "additionalProperties" in schema:
            yield self._entries(schema.get("properties", {}), schema.get("additionalProperties", True))
        if "if" in schema:
            yield self._conditional(schema["if"], schema.get("then", True), schema.get("else", True))
        for keyword, value in schema.items():
            if keyword in _ANNOTATIONS or keyword in ("properties", "additionalProperties", "if", "then", "else"):
                continue
            if keyword in _OF_VALUES:
                yield _OF_VALUES[keyword](value)
            elif keyword == "$ref":
                yield self._definition(value.removeprefix("#/$defs/"))
            elif keyword == "items":
                yield self._items(value)
            elif keyword == "propertyNames":
                yield self._names(value)
            elif keyword == "allOf":
                yield _all([self.compiled(part) for part in value])
            elif keyword in ("anyOf", "oneOf"):
                yield self._some(value, most=1 if keyword == "oneOf" else len(value))
            elif keyword == "not":
                yield self._not(value)
            else:
                raise NotImplementedError(keyword)

    def _definition(self, name: str) -> Predicate:
        if name not in self._known:
            self._known[name] = self.compiled(self._definitions[name])
        return self._known[name]

    def _entries(self, properties: Mapping[str, Any], additional: Any) -> Predicate:
        known = {key: self.compiled(value) for key, value in properties.items()}
        others = self.compiled(additional)

        def check(node: Node) -> bool:
            if type(node) is MappingNode:
                for key, entry in node.entries.items():
                    if not known.get(key, others)(entry.node):
                        return False
            return True

        return check

    def _names(self, schema: Any) -> Predicate:
        fits = self.compiled(schema)
        return lambda node: (
            type(node) is not MappingNode
            or all(fits(ScalarNode(entry.name_where, key, key)) for key, entry in node.entries.items())
        )

    def _items(self, schema: Any) -> Predicate:
        fits = self.compiled(schema)
        return lambda node: type(node) is not SequenceNode or all(map(fits, node.items))

    def _some(self, schemas: list[Any], most: int) -> Predicate:
        parts = [self.compiled(schema) for schema in schemas]
        return lambda node: 1 <= sum(fits(node) for fits in parts) <= most

    def _not(self, schema: Any) -> Predicate:
        fits = self.compiled(schema)
        return lambda node: not fits(node)

    def _conditional(self, condition: Any, then: Any, otherwise: Any) -> Predicate:
        applies, fits, fits_otherwise = map(self.compiled, (condition, then, otherwise))
        return lambda node: fits(node) if applies(node) else fits_otherwise(node)


def _all(checks: list[Predicate]) -> Predicate:
    if len(checks) == 1:
        return checks[0]

    def check(node: Node) -> bool:
        for fits in checks:  # noqa: SIM110 - which is twice as fast as all()
            if not fits(node):
                return False
        return True

    return check


# -- The keywords whose value is no schema -----------------------------------------------------------------------------


_KINDS: Mapping[str, tuple[type, ...]] = {
    "object": (MappingNode,),
    "array": (SequenceNode,),
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "integer": (int,),
}


def _type(names: str | list[str]) -> Predicate:
    listed = [names] if isinstance(names, str) else names
    kinds = frozenset(kind for name in listed for kind in _KINDS[name])
    is_whole = "integer" in listed and "number" not in listed

    def check(node: Node) -> bool:
        if type(node) is not ScalarNode:
            return type(node) in kinds
        if is_whole and type(node.value) is float:
            return node.value.is_integer()
        return type(node.value) in kinds

    return check


def _enum(values: list[Any]) -> Predicate:
    # `true` is not 1, which Python takes for it; and 1.0 is 1.
    allowed = {(type(value) is bool, value) for value in values}
    return lambda node: type(node) is ScalarNode and (type(node.value) is bool, node.value) in allowed


def _of_texts(holds: Callable[[str], object]) -> Predicate:
    return lambda node: type(node) is not ScalarNode or type(node.value) is not str or bool(holds(node.value))


def _of_numbers(holds: Callable[[float], bool]) -> Predicate:
    return lambda node: type(node) is not ScalarNode or type(node.value) not in (int, float) or holds(node.value)  # type: ignore[arg-type]


def _of_lists(holds: Callable[[int], bool]) -> Predicate:
    return lambda node: type(node) is not SequenceNode or holds(len(node.items))


def _of_mappings(holds: Callable[[Mapping[str, object]], bool]) -> Predicate:
    return lambda node: type(node) is not MappingNode or holds(node.entries)


_OF_VALUES: Mapping[str, Callable[[Any], Predicate]] = {
    "type": _type,
    "enum": _enum,
    "const": lambda value: _enum([value]),
    "pattern": lambda pattern: _of_texts(re.compile(pattern).search),
    "minLength": lambda least: _of_texts(lambda text: len(text) >= least),
    "minimum": lambda least: _of_numbers(lambda number: number >= least),
    "maximum": lambda most: _of_numbers(lambda number: number <= most),
    "exclusiveMinimum": lambda below: _of_numbers(lambda number: number > below),
    "exclusiveMaximum": lambda above: _of_numbers(lambda number: number < above),
    "minItems": lambda least: _of_lists(lambda count: count >= least),
    "maxItems": lambda most: _of_lists(lambda count: count <= most),
    "minProperties": lambda least: _of_mappings(lambda entries: len(entries) >= least),
    "required": lambda names: _of_mappings(lambda entries: entries.keys() >= set(names)),
}
