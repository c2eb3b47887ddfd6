"""The first look at a recipe's nodes agrees with what jsonschema finds."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from recipe_texts import FULL, MINIMAL

from epbuild.core.schemas import schema
from epbuild.recipe.fit import predicate
from epbuild.recipe.nodes import Node
from epbuild.recipe.source import read

DOCUMENT = schema("recipe")
FITS = predicate(DOCUMENT, DOCUMENT["$defs"])
TREES = [yaml.safe_load(FULL), yaml.safe_load(MINIMAL)]

scalars = st.sampled_from([None, True, False, 0, 1, 1.0, 2.5, -1, "", "x", "yes", "external", "a b", "${vars.x}", "1" * 64])
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "path", "-"]), inner)
)


def node_of(value: object) -> Node:
    """The node that a value is in a recipe."""
    return read(json.dumps({"value": value}).encode(), "recipe").root.entries["value"].node


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every place of a tree, as what holds it, and the key there."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [(tree, key) for key in keys] + [place for key in keys for place in places(tree[key])]


def keys_of(part: Any) -> set[str]:
    """Every key that the schema has a rule for."""
    if isinstance(part, list):
        return set().union(*map(keys_of, part))
    if not isinstance(part, dict):
        return set()
    own = part["properties"].keys() if isinstance(part.get("properties"), dict) else set()
    return set(own).union(*map(keys_of, part.values()))


KEYS = sorted(keys_of(DOCUMENT))


@given(
    st.sampled_from(TREES), st.lists(st.tuples(anything, st.sampled_from(KEYS)), max_size=3), st.randoms(use_true_random=False)
)
def test_no_mistake_is_missed_that_the_schema_knows(tree: Any, changes: list[tuple[Any, str]], chance: random.Random) -> None:
    changed = copy.deepcopy(tree)
    for value, new_key in changes:
        where, key = chance.choice(places(changed))
        where[new_key if isinstance(where, dict) and chance.random() < 0.4 else key] = value
        if chance.random() < 0.2:
            del where[key]
    assert FITS(node_of(changed)) == jsonschema.Draft202012Validator(DOCUMENT).is_valid(changed)


NUMBERS = [0, 1, -1, 1.0, 2.5, True, False, "1", "", "two", None, [], [1], [1, 1], {}, {"a": 1}, {"a": "x", "b": 1}, {"b": None}]
SCHEMAS: list[Any] = [
    True,
    False,
    {},
    *({"type": name} for name in ("object", "array", "string", "boolean", "number", "integer", ["string", "integer"])),
    *({keyword: 1} for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    *({keyword: 1} for keyword in ("minLength", "minItems", "maxItems", "minProperties")),
    *({"const": value} for value in (1, True, 0, False, "1", 2.5)),
    {"enum": [1, "two"]},
    {"enum": [True, False]},
    {"pattern": "w"},
    {"required": ["a"]},
    {"properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    {"properties": {"a": False}},
    {"additionalProperties": {"type": "integer"}},
    {"propertyNames": {"const": "a"}},
    {"items": {"type": "string"}},
    {"not": {"type": "string"}},
    {"allOf": [{"minimum": 1}, {"type": "number"}]},
    {"anyOf": [{"type": "string"}, {"minimum": 1}]},
    {"oneOf": [{"type": "number"}, {"minimum": 1}]},
    {"if": {"type": "string"}, "then": {"minLength": 1}, "else": {"type": "object"}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {"$ref": "#/$defs/word", "minLength": 2},
]


@pytest.mark.parametrize("rule", SCHEMAS, ids=json.dumps)
def test_each_keyword_means_what_the_standard_says(rule: Any) -> None:
    definitions = {"word": {"type": "string"}}
    document = {**rule, "$defs": definitions} if isinstance(rule, dict) else rule
    fits, judge = predicate(rule, definitions), jsonschema.Draft202012Validator(document)
    assert [fits(node_of(value)) for value in NUMBERS] == [judge.is_valid(value) for value in NUMBERS]


def test_an_unknown_keyword_is_never_passed_over() -> None:
    with pytest.raises(NotImplementedError, match="uniqueItems"):
        predicate({"type": "array", "uniqueItems": True}, {})
