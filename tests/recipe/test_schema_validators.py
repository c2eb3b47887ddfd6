"""Both validators of JSON Schema agree on recipes: the one that decides, and the one that explains."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import jsonschema
import jsonschema_rs
import yaml
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.canonical import read_schema
from epbuild.recipe.nodes import to_plain
from epbuild.recipe.source import read
from tests.recipe.texts import FULL, MINIMAL

DOCUMENT = read_schema("recipe")
FAST = jsonschema_rs.Draft202012Validator(DOCUMENT)
THOROUGH = jsonschema.Draft202012Validator(DOCUMENT)
TREES = [yaml.safe_load(FULL), yaml.safe_load(MINIMAL)]

scalars = st.sampled_from([None, True, False, 0, 1, 1.0, 2.5, -1, "", "x", "yes", "external", "a b", "${vars.x}", "1" * 64])
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "path", "-"]), inner)
)


def as_read(value: object) -> object:
    """Return a value as the recipe's reader passes it to a validator."""
    return to_plain(read(json.dumps({"value": value}).encode(), "recipe").root.entries["value"].node)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return every place in a tree, as a pair of container and key."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [(tree, key) for key in keys] + [place for key in keys for place in places(tree[key])]


def keys_of(part: Any) -> set[str]:
    """Return every key that the schema has a rule for."""
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
def test_both_validators_accept_the_same_recipes(tree: Any, changes: list[tuple[Any, str]], chance: random.Random) -> None:
    changed = copy.deepcopy(tree)
    for value, new_key in changes:
        where, key = chance.choice(places(changed))
        where[new_key if isinstance(where, dict) and chance.random() < 0.4 else key] = value
        if chance.random() < 0.2:
            del where[key]
    assert FAST.is_valid(as_read(changed)) == THOROUGH.is_valid(changed)
