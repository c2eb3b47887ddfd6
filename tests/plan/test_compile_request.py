"""Worker documents: every setting that reaches a compile is part of its key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epbuild.core.digest import hash_file
from epbuild.core.safepath import resolve_links
from epbuild.plan.request import HERE, build_worker_document, compile_document, resolve_places
from epbuild.plan.steps import SessionGroup
from tests.support.plan_recipes import RECIPE, TOOLCHAIN, edited, plan_of, write_models

Keys = tuple[str | int, ...]
MISSING = object()
FULL = edited(  # with an option and a session key that do not affect the compile
    RECIPE,
    ("classifier: models/classifier.onnx", "classifier: {path: models/classifier.onnx, load_from: memory}"),
    (
        "soc_model: SM8750\n",
        "soc_model: SM8750\n      rpc_control_latency: 5\n    session_options: {session.intra_op.allow_spinning: '0'}\n",
    ),
    (
        "    share_weights: true\n",
        "    share_weights: true\n    share_initializers: true\n    compile: {initializers: {store: external, file: '${model}.w'}}\n",
    ),
)


@pytest.fixture(params=["share:decoder/phone", "compile:vision/cpu/classifier"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> SessionGroup:
    write_models(tmp_path)
    return plan_of(tmp_path, FULL).session_groups[request.param]


@pytest.fixture
def keyed(group: SessionGroup) -> dict[str, Any]:
    return compile_document(group, {path: hash_file(path) for path in group.files}, TOOLCHAIN)


@pytest.fixture
def sent(group: SessionGroup, keyed: dict[str, Any]) -> dict[str, Any]:
    found = build_worker_document(group, keyed)
    del found[HERE]
    return found


def leaves(node: Any, place: Keys = ()) -> Iterator[Keys]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    found = [leaf for key, value in items for leaf in leaves(value, (*place, key))]
    yield from found or [place]


def at(node: Any, place: Keys) -> Any:
    """Return the value at a place, or MISSING."""
    for key in place:
        if isinstance(node, dict) and key not in node:
            return MISSING
        node = node[key]
    return node


def test_every_sent_setting_is_in_the_key_unless_the_catalog_calls_it_irrelevant(
    group: SessionGroup, keyed: dict[str, Any], sent: dict[str, Any]
) -> None:
    left_out = {place for place in leaves(sent) if at(keyed, place) != at(sent, place)}
    unkeyed = {("eps", number, "options", name) for number, ep in enumerate(group.target.eps) for name in ep.unkeyed} | {
        ("session_options", name) for name in group.target.unkeyed
    }
    assert left_out <= unkeyed
    assert ("eps", 0, "options", "rpc_control_latency") in left_out or sent["share_weights"] is False


def test_the_key_document_contains_only_settings_that_are_sent(keyed: dict[str, Any], sent: dict[str, Any]) -> None:
    assert [place for place in leaves(keyed) if at(keyed, place) not in ({}, [], at(sent, place))] == []


def test_local_paths_sent_to_the_worker_are_keyed_by_catalog_or_digest(group: SessionGroup) -> None:
    here = resolve_places(group.target.eps, group.custom_ops)
    assert here.keys() == {"eps", "custom_ops", "node_log"}
    # The first two and the last are the catalog's, by its revision; a library is in the key by its digest, a name by the EP and its device.
    assert {key for ep in here["eps"] for key in ep} == {"kind", "module", "library", "registration", "prefer"}


def test_every_compile_setting_of_the_recipe_reaches_the_worker(sent: dict[str, Any], group: SessionGroup) -> None:
    for member, listed in zip(group.members, sent["members"], strict=True):
        settings = {name for name in member.compile.__struct_fields__ if not name.endswith("_where")}
        assert listed["compile"].keys() == settings - {"initializer_names"}, "this one is sent only if the recipe sets it"


def test_the_document_contains_no_local_path(sent: dict[str, Any], group: SessionGroup) -> None:
    folder = str(resolve_links(group.members[0].graph).parent)
    assert folder not in str(sent)
