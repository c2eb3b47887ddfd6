"""Published schema for editors: it accepts the same recipes as the loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema

from epbuild.core.canonical import read_schema
from epbuild.recipe.model import CompileSettings, DeviceChoice, GraphOptimization, OutputSpec
from tests.recipe.texts import MINIMAL, load_text

SCHEMA = read_schema("recipe")


def test_the_schema_is_a_valid_2020_12_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_an_editor_can_show_a_title_and_a_description_for_every_key() -> None:
    shown = list(_properties(SCHEMA))
    assert len(shown) > 30
    assert [name for name, subschema in shown if not {"title", "description"} <= subschema.keys()] == []


def test_an_editor_can_show_a_default_or_an_example_for_every_value() -> None:
    told = {"default", "examples", "enum", "const"}
    assert [name for name, subschema in _properties(SCHEMA) if not told & subschema.keys()] == []


def test_examples_of_the_schema_are_valid() -> None:
    for name, subschema in _properties(SCHEMA):
        # The subschema already contains the definition behind a reference. A validator follows the reference alone.
        own = {key: value for key, value in subschema.items() if "$ref" not in subschema or "roperties" not in key}
        validator = jsonschema.Draft202012Validator({**own, "$defs": SCHEMA["$defs"]})
        for example in [*subschema.get("examples", []), *([subschema["default"]] if "default" in subschema else [])]:
            assert list(validator.iter_errors(example)) == [], (name, example)


def test_the_schema_refuses_unknown_keys_everywhere() -> None:
    definitions = [SCHEMA, *SCHEMA["$defs"].values()]
    closed = [definition for definition in definitions if "properties" in definition]
    assert all(definition["additionalProperties"] is False for definition in closed)


def test_defaults_in_the_schema_match_the_loader(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, MINIMAL)
    [output] = recipe.outputs
    target, group, compile_ = recipe.targets["npu"], recipe.groups["decoder"], CompileSettings()
    model = recipe.models["prefill"]
    assert (output.model.value, output.context_binary.value) == (
        _default("output", "model"),
        _default("output", "context_binary"),
    )
    assert isinstance(output, OutputSpec)
    [choice] = target.eps
    assert choice.provider_options == _default("target", "provider_options") == _default("ep", "provider_options")
    assert target.session_options == _default("target", "session_options")
    assert target.environment == _default("target", "environment")
    assert target.allow_unknown_options is _default("target", "allow_unknown_options")
    assert target.allow_unknown_session_keys is _default("target", "allow_unknown_session_keys")
    assert choice.device == DeviceChoice(metadata=_default("device", "metadata"), virtual=_default("device", "virtual"))
    assert group.share_weights is _default("group", "share_weights")
    assert [member.compile for member in group.members] == [compile_]
    assert compile_.embed is _default("compile", "embed")
    assert compile_.graph_optimization_level is None  # the EP's catalog entry has it
    assert compile_.initializers == _default("initializers", "store")
    assert compile_.external_threshold == _default("initializers", "threshold")
    assert model.load_from == _default("model", "load_from")
    assert model.data_sha256 == _default("model", "data_sha256")
    assert model.dimensions == _default("model", "dimensions")
    assert list(recipe.catalogs) == SCHEMA["properties"]["catalogs"]["default"]
    assert recipe.description == SCHEMA["properties"]["description"]["default"]


def test_every_optimization_level_of_the_model_can_be_written() -> None:
    assert SCHEMA["$defs"]["compile"]["properties"]["graph_optimization_level"]["enum"] == list(get_args(GraphOptimization))


def _default(definition: str, key: str) -> Any:
    return SCHEMA["$defs"][definition]["properties"][key]["default"]


def _properties(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for definition in [document, *document["$defs"].values()]:
        for name, subschema in definition.get("properties", {}).items():
            reference = subschema.get("$ref", "").removeprefix("#/$defs/")
            yield name, {**document["$defs"].get(reference, {}), **subschema}
