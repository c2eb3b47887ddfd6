"""Models that commands make, and models that are made of other models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest
from onnx import TensorProto, helper

from epbuild.core.canonical import read_schema
from tests.compile.test_preparing import Preparer, leave_external_data, leave_nothing
from tests.support.fake_builds import RECIPE, source_model
from tests.support.recipe_texts import changed

CHILDREN = """\
models:
  llm: {path: prefill.onnx, prepare: [{run: [python, fold.py, "${in}", "${out}"], files: [fold.py], toolchain: tools}]}
  first: {from: llm, prepare: [{run: [python, add.py, "${in}", "${out}"], files: [add.py], toolchain: tools}]}
  second: {from: llm, prepare: [{run: [python, cut.py, "${in}", "${out}"], files: [cut.py], toolchain: tools}]}
"""
GROUPS = RECIPE[RECIPE.index("groups:") : RECIPE.index("outputs:")]
FROM_LLM = """\
groups:
  pair: {models: [first, second], targets: [npu], expect: {fallback_nodes: any}}
"""
LLM_PREPARED = '{path: prefill.onnx, prepare: [{run: [python, fold.py, "${in}", "${out}"], files: [fold.py], toolchain: tools}]}'
LLM_MADE = '{make: {run: [python, fold.py, "${out}"], files: [fold.py, checkpoint], toolchain: tools}}'
MAKE = "prepare:llm/make"
LLM, FIRST, SECOND = "prepare:llm/1-run", "prepare:first/1-run", "prepare:second/1-run"
MODELS = "models: {prefill: prefill.onnx, decode: decode.onnx, classifier: classifier.onnx}\n"


class Maker(Preparer):
    """Checkout with two models that are made of a third."""

    def __init__(self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, cache, monkeypatch)
        text = changed(RECIPE, (MODELS, CHILDREN), (GROUPS, FROM_LLM))
        text = changed(text, ("toolchains:\n", "toolchains:\n  tools: {packages: [onnx==1.19.1]}\n"))
        text = changed(text, ('"dist/${group}"}', '"dist/${group}", provenance: true, sbom: true}'))
        (self.folder / "epbuild.yaml").write_text(text, encoding="utf-8")
        self.write("cut.py", "# cut.py\n")

    def document(self, name: str) -> Any:
        return json.loads(self.contents("pair")[name])


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    return Maker(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def test_a_parent_is_prepared_once_for_all_its_children(workshop: Maker) -> None:
    prepared, compiled = workshop.build_all()
    assert (prepared[0], sorted(prepared[1:]), sorted(compiled)) == ("fold.py", ["add.py", "cut.py"], ["first", "second"])
    folded = workshop.record(LLM).result["artifacts"]["llm.onnx"]["digest"]
    assert workshop.record(FIRST).key_document["source"] == {"first": {"graph": folded, "external": {}}}
    assert workshop.build_all() == ([], [])


@pytest.mark.parametrize(
    ("script", "prepared", "compiled"),
    [("cut.py", ["cut.py"], ["second"]), ("fold.py", ["fold.py", "add.py", "cut.py"], ["first", "second"])],
)
def test_a_changed_script_rebuilds_its_descendants_only(
    workshop: Maker, script: str, prepared: list[str], compiled: list[str]
) -> None:
    workshop.build_all()
    workshop.write(script, "print(2)\n")
    found = workshop.build_all()
    assert (sorted(found[0]), sorted(found[1])) == (sorted(prepared), compiled)


@pytest.fixture
def made(workshop: Maker) -> Maker:
    """Return the checkout with a parent that a command makes and that is not prepared further."""
    workshop.change_recipe(LLM_PREPARED, LLM_MADE)
    workshop.write("checkpoint/0.bin", "0")
    return workshop


def test_a_made_model_is_made_once_from_its_files(made: Maker) -> None:
    prepared, compiled = made.build_all()
    assert (prepared[0], sorted(prepared[1:]), sorted(compiled)) == ("fold.py", ["add.py", "cut.py"], ["first", "second"])
    assert made.seen[0] == ["files/checkpoint/0.bin", "files/fold.py", "request.json"]
    assert made.record(MAKE).key_document["source"] == {}
    assert made.build_all() == ([], [])


def test_only_changes_with_effect_make_a_model_again(made: Maker) -> None:
    made.build_all()
    made.write("fold.py", "# a comment\n")
    assert made.reasons(MAKE)[0].startswith("fold.py changed: ")
    assert made.build_all() == (["fold.py"], [])
    made.write("checkpoint/1.bin", "1")
    found = made.build_all()
    assert (sorted(found[0]), sorted(found[1])) == (["add.py", "cut.py", "fold.py"], ["first", "second"])
    made.write("cut.py", "print(2)\n")
    assert made.build_all() == (["cut.py"], ["second"])


def test_records_name_the_command_and_its_files(made: Maker) -> None:
    made.build_all()
    manifest, statement, bill = map(made.document, ("manifest.json", "provenance.intoto.json", "bom.cdx.json"))
    jsonschema.validate(manifest, read_schema("manifest"))
    digest = made.record(MAKE).result["artifacts"]["llm.onnx"]["digest"]
    source = manifest["models"][0]["source"]["prepared"]
    assert source["from"] == {
        "sha256": digest,
        "external_data": {},
        "made": {"command": ["python", "files/fold.py", "out/llm.onnx"], "files": made.record(MAKE).key_document["staged"]},
    }
    assert [step["command"][1] for step in source["by"]] == ["files/add.py"]
    definition = statement["predicate"]["buildDefinition"]
    kinds = {item["name"]: item["annotations"]["kind"] for item in definition["resolvedDependencies"]}
    assert (kinds["fold.py"], kinds["checkpoint/0.bin"]) == ("preparation-file", "preparation-file")
    assert "model" not in kinds.values()
    assert definition["externalParameters"]["preparations"][1]["step"] == MAKE
    [model] = [item for item in bill["components"] if item["bom-ref"] == "model:first"]
    assert (model["hashes"][0]["content"], model["properties"][0]["value"]) == (digest, MAKE)


def test_a_command_that_writes_no_model_is_reported(made: Maker) -> None:
    made.leave = leave_nothing
    assert made.build("emit:*").exit_code == 1
    [problem] = made.problems
    assert (problem.code, str(problem.where)) == ("EPB457", MAKE)
    assert "did not write out/llm.onnx; it wrote other.onnx instead" in problem.message


def test_external_data_of_a_made_model_is_kept(made: Maker) -> None:
    made.leave = leave_external_data
    made.build_all()
    assert sorted(made.record(MAKE).result["artifacts"]) == ["llm.onnx", "weights.bin"]
    assert [*made.record(FIRST).key_document["source"]["first"]["external"]] == ["weights.bin"]


def leave_open_inputs(output: Path, seed: bytes) -> None:
    model = onnx.load_from_string(source_model(float(seed[0])))
    for value in (*model.graph.input, *model.graph.output):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, ["n"]))
    onnx.save(model, output)


def test_shapes_of_a_child_apply_to_its_parents_result(workshop: Maker) -> None:
    workshop.leave = leave_open_inputs
    workshop.change_recipe("second: {from: llm,", "second: {from: llm, input_shapes: {x: [4]},")
    workshop.build_all()
    assert workshop.record(SECOND).key_document["source"]["second"]["inputs"] == {"x": [4]}
    assert "inputs" not in workshop.record(FIRST).key_document["source"]["first"]
    manifest = workshop.document("manifest.json")
    jsonschema.validate(manifest, read_schema("manifest"))
    assert [step.get("sizes") for step in manifest["models"][1]["source"]["prepared"]["by"]] == [None, {"x": [4]}]
    assert workshop.build_all() == ([], [])


def test_shapes_that_do_not_fit_the_parents_result_are_refused(workshop: Maker) -> None:
    workshop.change_recipe("second: {from: llm,", "second: {from: llm, input_shapes: {z: [4]},")
    assert workshop.build("prepare:second/*").exit_code == 2
    [problem] = workshop.problems
    assert (problem.code, problem.message) == ("EPB260", "the model 'second' has no input 'z'")
    assert str(problem.where).startswith(f"{workshop.folder / 'epbuild.yaml'}:10:")


def test_records_name_the_file_at_the_start_of_the_chain(workshop: Maker) -> None:
    workshop.build_all()
    manifest, statement = workshop.document("manifest.json"), workshop.document("provenance.intoto.json")
    digest = workshop.record(LLM).key_document["source"]["llm"]["graph"]
    [source, *_] = [model["source"]["prepared"] for model in manifest["models"]]
    assert (source["from"]["sha256"], [step["command"][1] for step in source["by"]]) == (
        digest,
        ["files/fold.py", "files/add.py"],
    )
    definition = statement["predicate"]["buildDefinition"]
    [used] = [item for item in definition["resolvedDependencies"] if item["annotations"]["kind"] == "model"]
    assert (used["name"], used["digest"]) == ("prefill.onnx", {"sha256": digest})
    assert [step["step"] for step in definition["externalParameters"]["preparations"]] == [FIRST, LLM, SECOND]
