"""Bill of materials: valid CycloneDX, a complete graph, and equal documents for equal builds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.archive.artifact import FileEntry
from epbuild.output.bom import BomModel, build_bill, list_base_models, list_compiled_models
from epbuild.output.manifest import ManifestModel
from epbuild.output.materials import gather
from epbuild.plan.made import Made
from tests.output.quickstart_outputs import CLASSIFIER, CPU, DECODER, LIBRARY, quickstart, with_source

OFFICIAL = JsonStrictValidator(SchemaVersion.V1_6)
NAME = "quickstart.ortpackage"
NO_DATA: dict[str, tuple[str, ...]] = {"prefill": (), "decode": (), "classifier": ()}


def models() -> list[BomModel]:
    found = quickstart()
    return [
        *list_compiled_models(found.models[DECODER], found.built, NO_DATA, "decoder"),
        *list_compiled_models(found.models[CLASSIFIER], found.built, NO_DATA, "classifier"),
    ]


def made(
    emitted: Iterable[BomModel] | None = None,
    contents: Iterable[FileEntry] | None = None,
    built: Iterable[Made] | None = None,
) -> dict[str, Any]:
    output = quickstart()
    text = build_bill(
        gather(output.recipe, output.built if built is None else built),
        models() if emitted is None else emitted,
        output.contents if contents is None else contents,
        name=NAME,
    ).data
    assert_official(text)
    read: dict[str, Any] = json.loads(text)
    return read


def assert_official(text: bytes) -> None:
    """Assert that the official schema allows it, formats included, and that every reference has one component."""
    problem = OFFICIAL.validate_str(text.decode())
    assert problem is None, problem
    read = json.loads(text)
    refs = [component["bom-ref"] for component in (*read["components"], read["metadata"]["component"])]
    assert len(set(refs)) == len(refs)
    graph = {item["ref"]: item.get("dependsOn", []) for item in read["dependencies"]}
    assert {*graph, *(ref for needed in graph.values() for ref in needed)} <= set(refs)
    reached, todo = set(), [read["metadata"]["component"]["bom-ref"]]
    while todo:
        ref = todo.pop()
        if ref not in reached:
            reached.add(ref)
            todo += graph.get(ref, [])
    assert reached == set(refs), "a component that nothing leads to"


def components(read: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {component["bom-ref"]: component for component in read["components"]}


def needs(read: dict[str, Any], ref: str) -> set[str]:
    (found,) = [item for item in read["dependencies"] if item["ref"] == ref]
    return set(found.get("dependsOn", []))


def facts(component: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in component["properties"]}


def test_each_model_is_a_component_with_digest_inputs_and_outputs() -> None:
    found = components(made())["emitted:classifier/classifier_ctx.onnx"]
    assert (found["type"], found["name"]) == ("machine-learning-model", "classifier")
    assert found["hashes"] == [{"alg": "SHA-256", "content": "06" * 32}]
    assert found["modelCard"]["modelParameters"] == {
        "inputs": [{"format": "image: float32[1, 3, 32, 32]"}],
        "outputs": [{"format": "probabilities: float32[1, 10]"}],
    }


def test_each_model_lists_its_compile_settings() -> None:
    found = facts(components(made())["emitted:decoder/decode_ctx.onnx"])
    assert found["epbuild:path"] == "decoder/decode_ctx.onnx"
    assert (found["epbuild:group"], found["epbuild:target"]) == ("decoder", "snapdragon-SM8750")
    assert found["epbuild:ep"] == "QNNExecutionProvider"
    assert found["epbuild:compatibility:QNNExecutionProvider"] == "v2:6:2.51.0"
    assert found["epbuild:action-key"] == next(item.key for item in quickstart().built if item.action.id == DECODER)


def test_unknown_dimensions_are_shown_as_unknown() -> None:
    values: list[dict[str, Any]] = [
        {"name": "x", "type": "int8", "shape": ["batch", None, 3]},
        {"name": "y", "type": "string", "shape": None},
    ]
    changed = [replace(model, inputs=values) for model in models()]
    card = components(made(changed))["emitted:classifier/classifier_ctx.onnx"]["modelCard"]
    assert card["modelParameters"]["inputs"] == [{"format": "x: int8[batch, ?, 3]"}, {"format": "y: string"}]


def test_sharing_models_depend_on_one_binary_and_on_their_own_sources() -> None:
    read = made()
    for name in ("prefill", "decode"):
        assert needs(read, f"emitted:decoder/{name}_ctx.onnx") == {
            "emitted:decoder/prefill_qnn.bin",
            f"model:{name}",
            "toolchain:qnn",
        }
    (weights,) = needs(read, "model:prefill")
    assert needs(read, "model:decode") == {weights}
    assert components(read)[weights]["name"] == "models/tiny-llm/weights.bin"


def test_toolchain_depends_on_its_excluded_packages_and_libraries() -> None:
    read = made()
    held = [components(read)[ref] for ref in needs(read, "toolchain:qnn")]
    assert "pkg:pypi/onnxruntime-qnn@2.7.0" in {item.get("purl") for item in held}
    (library,) = [item for item in held if item["name"] == LIBRARY]
    assert library["hashes"] == [{"alg": "SHA-256", "content": "62" * 32}]
    assert {item["scope"] for item in (*held, components(read)["toolchain:qnn"])} == {"excluded"}


def test_source_models_have_digests() -> None:
    found = components(made())["model:classifier"]
    (member,) = next(item for item in quickstart().built if item.action.id == CLASSIFIER).document["members"]
    assert found["type"] == "machine-learning-model"
    assert found["hashes"] == [{"alg": "SHA-256", "content": member["graph"]}]
    assert facts(found)["epbuild:path"] == "models/classifier/classifier.onnx"


def test_remote_source_has_its_address_without_secrets() -> None:
    address = "https://models.example.com/net.onnx?token=secret"
    built = [with_source(item, address) if item.action.id == CLASSIFIER else item for item in quickstart().built]
    found = components(made(built=built))["model:classifier"]
    assert found["externalReferences"] == [{"type": "distribution", "url": "https://models.example.com/net.onnx"}]


def test_user_files_are_listed_and_files_about_the_output_are_not() -> None:
    read = made()
    assert components(read)["emitted:decoder/tokenizer.json"]["hashes"] == [{"alg": "SHA-256", "content": "04" * 32}]
    assert "emitted:decoder/tokenizer.json" in needs(read, f"output:{NAME}")
    assert "emitted:decoder/manifest.json" not in components(read)


def test_base_model_depends_on_its_source_and_data_but_no_toolchain() -> None:
    output = quickstart()
    base = list_base_models(output.models[DECODER], {"prefill": "base/prefill.onnx"}, "decoder")
    contents = [
        *output.contents,
        FileEntry("decoder/base/prefill.onnx", "base-model", 1, "0a" * 32),
        FileEntry("decoder/base/weights.bin", "base-data", 1, "0b" * 32),
    ]
    read = made([*models(), *base], contents)
    assert needs(read, "emitted:decoder/base/prefill.onnx") == {"emitted:decoder/base/weights.bin", "model:prefill"}
    assert "modelCard" in components(read)["emitted:decoder/base/prefill.onnx"]


def test_external_data_kept_by_an_ep_is_a_dependency_of_its_model() -> None:
    output = quickstart()
    data = {**NO_DATA, "prefill": ("prefill.weights",)}
    emitted = list_compiled_models(output.models[DECODER], output.built, data, "decoder")
    contents = [*output.contents, FileEntry("decoder/prefill.weights", "external-data", 1, "0a" * 32)]
    read = made([*emitted, *models()[2:]], contents)
    assert "emitted:decoder/prefill.weights" in needs(read, "emitted:decoder/prefill_ctx.onnx")
    assert "emitted:decoder/prefill.weights" not in needs(read, "emitted:decoder/decode_ctx.onnx")


def test_merged_model_depends_on_all_its_members() -> None:
    output = quickstart()
    prefill, decode = output.models[DECODER]
    merged = ManifestModel(
        name="decoder",
        file="prefill_ctx.onnx",
        action_key="aa" * 32,
        source=None,
        nodes=[*prefill.nodes, *decode.nodes],
        fallback_nodes=0,
        compatibility={},
        merged=[{"name": model.name, "action_key": model.action_key, "source": model.source} for model in (prefill, decode)],
    )
    emitted = list_compiled_models([merged], output.built, NO_DATA, "decoder")
    read = made([*emitted, *models()[2:]])
    assert needs(read, "emitted:decoder/prefill_ctx.onnx") >= {"model:prefill", "model:decode", "emitted:decoder/prefill_qnn.bin"}


def test_option_files_are_dependencies_of_the_compiled_models() -> None:
    built = [
        replace(item, document={**item.document, "session_files": {"ep.config": "0c" * 32}})
        if item.action.id == CLASSIFIER
        else item
        for item in quickstart().built
    ]
    read = made(built=built)
    assert f"file:session/ep.config@sha256:{'0c' * 32}" in needs(read, "emitted:classifier/classifier_ctx.onnx")
    assert f"file:session/ep.config@sha256:{'0c' * 32}" not in needs(read, "emitted:decoder/decode_ctx.onnx")


@given(st.permutations(quickstart().built), st.permutations(models()), st.permutations(quickstart().contents))
def test_order_of_unordered_inputs_does_not_change_the_bill(
    built: list[Made], emitted: list[BomModel], contents: list[FileEntry]
) -> None:
    output = quickstart()
    expected = build_bill(gather(output.recipe, output.built), models(), output.contents, name=NAME).data
    assert build_bill(gather(output.recipe, built), emitted, contents, name=NAME).data == expected


def test_serial_number_depends_on_the_content() -> None:
    changed = [content._replace(digest="ee" * 32) for content in quickstart().contents]
    assert made()["serialNumber"] == made()["serialNumber"] != made(contents=changed)["serialNumber"]


def test_bill_has_no_host_fact_and_no_time() -> None:
    read = made()
    assert CPU not in json.dumps(read)
    assert "timestamp" not in read["metadata"]


def test_model_missing_from_the_output_is_an_error() -> None:
    with pytest.raises(KeyError):
        made(contents=[content for content in quickstart().contents if content.role != "model"])
