"""Models that are made of other models: the parent is prepared once, and each child continues with the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest
from onnx import TensorProto, helper

from epbuild.core.schemas import read_schema
from tests.compile.test_preparing import Preparer
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
