"""The recipe schema in an editor: it explains every option, proposes values, and rejects no valid recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from epbuild.catalog.catalog import entries_for, get_short_name, known_eps, list_session_keys
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.normalize import BadValue, normalize
from epbuild.commands.schema import SCHEMAS, build_editor_schema
from epbuild.core.canonical import read_schema
from tests.support.commands import RECIPE, ROOT

SCHEMA = build_editor_schema("recipe")
EDITOR = Draft202012Validator(SCHEMA)
OPTIONS = [(entry, name) for ep in known_eps() for entry in entries_for(ep) for name in sorted(entry.options)]
SOME_VALUES: tuple[Any, ...] = (
    True,
    False,
    0,
    1,
    3,
    69,
    1e9,
    0.5,
    "true",
    "OFF",
    "on",
    "0",
    "1",
    " 2 ",
    "htp",
    "Htp",
    "CPU",
    "x",
    "a,b",
    "${vars.x}",
    "4 GiB",
)


def recipe(ep: str = "QNNExecutionProvider", several: bool = False, **target: Any) -> dict[str, Any]:
    """Return the small recipe with another EP and other keys in its target."""
    document: dict[str, Any] = yaml.safe_load(RECIPE)
    wanted = {"toolchain": "qnn", "ep": ep, **target}
    if several:
        wanted["eps"] = [{"ep": wanted.pop("ep"), "provider_options": wanted.pop("provider_options", {})}]
    document["targets"]["phone"] = wanted
    return document


def underlined(document: dict[str, Any]) -> bool:
    return not EDITOR.is_valid(document)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_valid_and_has_a_title(name: str) -> None:
    document = build_editor_schema(name)
    Draft202012Validator.check_schema(document)
    assert document["$schema"]
    assert document["title"]


def test_building_an_editor_schema_does_not_change_the_checked_in_schema() -> None:
    before = read_schema("recipe")
    build_editor_schema("recipe")
    assert read_schema("recipe") == before
    assert "htp_performance_mode" not in str(before)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.name)
def test_no_checked_in_recipe_is_underlined(path: Path) -> None:
    assert list(EDITOR.iter_errors(yaml.safe_load(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("ep", known_eps())
def test_hovering_over_an_ep_option_shows_its_meaning(ep: str) -> None:
    described = SCHEMA["$defs"][f"provider-options-{ep}"]["properties"]
    for entry in entries_for(ep):
        for name, option in entry.options.items():
            assert option.meaning.rstrip(".") in described[name]["description"]


def test_hovering_over_a_session_key_shows_its_meaning_or_replacement() -> None:
    described = SCHEMA["$defs"]["session-options"]["properties"]
    keys = list_session_keys()
    assert described.keys() == keys.options.keys() | keys.reserved.keys()
    for name, option in keys.options.items():
        assert option.meaning.rstrip(".") in described[name]["description"]
    for name, instead in keys.reserved.items():
        assert instead in described[name]["description"]


def test_ep_names_are_completed() -> None:
    proposed = SCHEMA["$defs"]["target"]["properties"]["ep"]["anyOf"][0]
    assert set(proposed["enum"]) == {*known_eps(), *map(get_short_name, known_eps())}
    assert len(proposed["enum"]) == len(proposed["enumDescriptions"])


@pytest.mark.parametrize("ep", ["QNNExecutionProvider", "qnn"])
@pytest.mark.parametrize("several", [False, True], ids=["one EP", "several EPs"])
@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"backend_type": "htp"}, False),
        ({"backend_type": "HTP"}, False),
        ({"backend_type": "bogus"}, True),
        ({"backend_type": "${vars.backend}"}, False),
        ({"htp_graph_finalization_optimization_mode": 3}, False),
        ({"htp_graph_finalization_optimization_mode": "3"}, False),
        ({"htp_graph_finalization_optimization_mode": 4}, True),
        ({"enable_htp_fp16_precision": True}, False),
        ({"enable_htp_fp16_precision": "1"}, False),
        ({"enable_htp_fp16_precision": "maybe"}, True),
        ({"vtcm_mb": 8}, False),
        ({"vtcm_mb": "${matrix.vtcm}"}, False),
        ({"vtcm_mb": -1}, True),
        ({"soc_model": "SM8750"}, False),
        ({"soc_model": 69}, False),
        ({"an_option_of_next_year": "x"}, True),
    ],
)
def test_invalid_values_are_underlined_while_typing(options: dict[str, Any], wrong: bool, several: bool, ep: str) -> None:
    assert underlined(recipe(ep, several=several, provider_options=options)) is wrong


@pytest.mark.parametrize("several", [False, True], ids=["one EP", "several EPs"])
@pytest.mark.parametrize("escape", ["allow_unknown_options", "catalogs"])
def test_unknown_options_are_not_underlined_where_epbuild_may_accept_them(escape: str, several: bool) -> None:
    document = recipe(several=several, provider_options={"an_option_of_next_year": "x"})
    assert underlined(document)
    (document if escape == "catalogs" else document["targets"]["phone"])[escape] = (
        ["my-ep.toml"] if escape == "catalogs" else True
    )
    assert not underlined(document)
    assert not underlined(recipe("MyExecutionProvider", several=several, provider_options={"anything": 1}))


@pytest.mark.parametrize(
    ("ep", "keys"),
    [
        ("qnn", {"soc": "SM8750"}),
        ("qnn", {"soc": 69}),
        ("qnn", {"soc": ["SM8750", "Snapdragon 8 Gen 3"]}),
        ("qnn", {"soc": "${matrix.soc}"}),
        ("qnn", {"device": {"type": "npu"}}),
        ("openvino", {"device": "GPU.1"}),
        ("openvino", {"device": ["CPU", "NPU"]}),
        ("openvino", {"device": {"type": "npu", "virtual": True}}),
    ],
)
def test_a_short_form_is_not_underlined(ep: str, keys: dict[str, Any]) -> None:
    assert not underlined(recipe(ep, **keys))


def test_options_of_one_ep_are_not_checked_against_another_ep() -> None:
    assert not underlined(recipe("MyExecutionProvider", provider_options={"backend_type": "bogus"}))


@pytest.mark.parametrize("several", [False, True], ids=["one EP", "several EPs"])
def test_unchecked_options_are_not_underlined(several: bool) -> None:
    assert not underlined(recipe(several=several, provider_options={"backend_type": "new"}, allow_unknown_options=True))


@pytest.mark.parametrize("name", sorted(list_session_keys().reserved))
def test_a_session_key_that_epbuild_sets_itself_is_underlined(name: str) -> None:
    assert underlined(recipe(session_options={name: "1"}))


def accepted(entry: EpEntry, name: str, value: Any) -> bool:
    try:
        normalize(entry.options[name], value, booleans=entry.booleans, names=entry.canonical_names(name))
    except BadValue:
        return False
    return True


def option_validator(ep: str, name: str) -> Draft202012Validator:
    return Draft202012Validator(SCHEMA["$defs"][f"provider-options-{ep}"]["properties"][name])


@pytest.mark.parametrize("ep", known_eps())
def test_values_that_the_catalog_accepts_are_never_underlined(ep: str) -> None:
    for entry in entries_for(ep):
        for name, option in entry.options.items():
            own = (*option.values, *filter(None, (option.example, option.default)), *entry.canonical_names(name))
            editor = option_validator(ep, name)
            for value in (*SOME_VALUES, *own):
                if accepted(entry, name, value) or str(value).startswith("${"):
                    assert editor.is_valid(value), f"{name}: {value!r}"


@given(st.sampled_from(OPTIONS), st.one_of(st.text(max_size=12), st.integers(), st.booleans(), st.floats(allow_nan=False)))
def test_no_value_that_builds_is_underlined(option: tuple[EpEntry, str], value: Any) -> None:
    entry, name = option
    if accepted(entry, name, value):
        assert option_validator(entry.ep, name).is_valid(value)
