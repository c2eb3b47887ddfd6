"""Provenance: readable by other tools, complete in its inputs, and equal for equal builds."""

from __future__ import annotations

import copy
import getpass
import json
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement
from msgspec.structs import replace
from packageurl import PackageURL

from epbuild import __version__
from epbuild.archive.artifact import FileEntry
from epbuild.commands.plan import survey
from epbuild.commands.run import run
from epbuild.engine.events import NoProgress
from epbuild.output.materials import Distribution, InputFile, Materials, RecipeFiles, describe_recipe_file, gather
from epbuild.output.provenance import build_statement
from epbuild.plan.made import Made
from epbuild.session.request import Request
from tests.output.quickstart_outputs import CLASSIFIER, CPU, DECODER, LIBRARY, RECIPE, quickstart, sha256, with_source

MODELS = RECIPE.parent / "models"
SUBJECTS = (FileEntry("prefill_ctx.onnx", "model", 1, "01" * 32), FileEntry("prefill_qnn.bin", "context-binary", 1, "03" * 32))
INVOCATION = "5e" * 32


def materials() -> Materials:
    output = quickstart()
    return gather(output.recipe, output.built)


def document(found: Materials | None = None, **more: Any) -> dict[str, Any]:
    text = build_statement(found or materials(), SUBJECTS, invocation=INVOCATION, **more).data
    read: dict[str, Any] = json.loads(text)
    return read


def definition(found: Materials | None = None) -> dict[str, Any]:
    read: dict[str, Any] = document(found)["predicate"]["buildDefinition"]
    return read


def dependencies(found: Materials | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the resolved dependencies by kind and name, each of which occurs once."""
    listed = definition(found)["resolvedDependencies"]
    by_name = {(item["annotations"]["kind"], item["name"]): item for item in listed}
    assert len(by_name) == len(listed)
    return by_name


def with_member(built: Made, index: int, **changes: Any) -> Made:
    members = copy.deepcopy(list(built.document["members"]))
    members[index].update(changes)
    return replace(built, document={**built.document, "members": members})


def built(action: str) -> Made:
    return next(item for item in quickstart().built if item.action.id == action)


def assert_official(text: bytes) -> None:
    """Assert that the official reader accepts the document, keeps every field and finds nothing missing."""
    read = json.loads(text)
    whole = json_format.Parse(text, statement_pb2.Statement())
    assert json_format.MessageToDict(whole) == read
    Statement.copy_from_pb(whole).validate()
    predicate = json_format.ParseDict(read["predicate"], provenance_pb2.Provenance())
    assert json_format.MessageToDict(predicate) == read["predicate"]
    for dependency in predicate.build_definition.resolved_dependencies:
        ResourceDescriptor.copy_from_pb(dependency).validate()
        assert dependency.uri or dependency.digest, "the specification wants one of them"


def test_official_reader_accepts_the_document() -> None:
    found = gather(quickstart().recipe, quickstart().built, [InputFile("tokenizer.json", "aa" * 32)])
    assert_official(build_statement(found, SUBJECTS, invocation=INVOCATION, output={"layout": "directory"}).data)


def test_subjects_are_the_emitted_files() -> None:
    read = document()
    assert read["_type"] == "https://in-toto.io/Statement/v1"
    assert read["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {item["name"]: item["digest"] for item in read["subject"]} == {
        "prefill_ctx.onnx": {"sha256": "01" * 32},
        "prefill_qnn.bin": {"sha256": "03" * 32},
    }


def test_document_names_recipe_models_data_and_packages() -> None:
    found = dependencies()
    assert found["recipe", "quickstart.yaml"]["digest"] == {"sha256": sha256(RECIPE)}
    for name in ("tiny-llm/prefill.onnx", "tiny-llm/decode.onnx", "classifier/classifier.onnx"):
        assert found["model", f"models/{name}"]["digest"] == {"sha256": sha256(MODELS / name)}
    # Two graphs share one weights file, which is one input.
    assert found["external-data", "models/tiny-llm/weights.bin"]["digest"] == {"sha256": sha256(MODELS / "tiny-llm/weights.bin")}
    assert found["package", "onnxruntime-qnn"]["uri"] == "pkg:pypi/onnxruntime-qnn@2.7.0"
    assert found["library", LIBRARY]["digest"] == {"sha256": "62" * 32}


def test_document_names_option_files_and_custom_libraries() -> None:
    item = built(CLASSIFIER)
    ep = {**item.document["eps"][0], "files": {"op_packages": "0a" * 32}, "library": "0b" * 32}
    ops = [{"name": "acme_ops", "library": None}, {"name": "libmine.so", "library": "0e" * 32}]
    files = {"session_files": {"ep.config": "0c" * 32}, "custom_ops": ops}
    item = replace(item, document={**item.document, "eps": [ep], **files})
    found = dependencies(gather(quickstart().recipe, [item], [InputFile("tokenizer.json", "0d" * 32)]))
    assert found["option-file", "QNNExecutionProvider/op_packages"]["digest"] == {"sha256": "0a" * 32}
    assert found["option-file", "QNNExecutionProvider/library"]["digest"] == {"sha256": "0b" * 32}
    assert found["option-file", "session/ep.config"]["digest"] == {"sha256": "0c" * 32}
    assert found["option-file", "custom_ops/libmine.so"]["digest"] == {"sha256": "0e" * 32}
    assert ("option-file", "custom_ops/acme_ops") not in found, "its library is one of its toolchain's"
    assert found["asset", "tokenizer.json"]["digest"] == {"sha256": "0d" * 32}


def test_parameters_come_from_the_recipe() -> None:
    parameters = document(output={"layout": "ort-model-package"})["predicate"]["buildDefinition"]["externalParameters"]
    assert parameters["recipe"] == {"name": "quickstart", "file": "quickstart.yaml"}
    assert parameters["output"] == {"layout": "ort-model-package"}
    by_step = {item["step"]: item for item in parameters["builds"]}
    decoder = by_step[DECODER]
    assert (decoder["group"], decoder["target"], decoder["toolchain"]) == ("decoder", "snapdragon-SM8750", "qnn")
    assert decoder["share_weights"] is True
    assert decoder["eps"] == [{"name": "QNNExecutionProvider", "options": {"backend_type": "htp", "soc_model": "SM8750"}}]
    assert [model["name"] for model in decoder["models"]] == ["prefill", "decode"], "their order is meaning"
    assert decoder["models"][0]["source"] == "models/tiny-llm/prefill.onnx"
    assert decoder["models"][0]["compile"] == {
        "embed": False,
        "graph_optimization_level": "basic",
        "initializers": "inline",
    }


def test_requested_device_is_a_parameter() -> None:
    item = built(CLASSIFIER)
    device: dict[str, Any] = {"type": "npu", "vendor": None, "metadata": {}, "virtual": True}
    item = replace(item, document={**item.document, "eps": [{**item.document["eps"][0], "device": device}]})
    (build,) = definition(gather(quickstart().recipe, [item]))["externalParameters"]["builds"]
    assert build["eps"][0]["device"] == {"type": "npu", "virtual": True}


def test_document_names_actions_and_builder() -> None:
    read = document()["predicate"]
    actions = read["buildDefinition"]["internalParameters"]["actions"]
    assert actions == {item.action.id: item.key for item in quickstart().built}
    assert read["runDetails"]["metadata"] == {"invocationId": INVOCATION}
    assert read["runDetails"]["builder"]["id"] == f"pkg:pypi/epbuild@{__version__}"


@given(st.permutations(quickstart().built), st.permutations(SUBJECTS), st.booleans())
def test_order_of_unordered_inputs_does_not_change_the_statement(
    built: list[Made], subjects: list[FileEntry], reverse: bool
) -> None:
    turned = [replace(item, document=_turned(item.document) if reverse else item.document) for item in built]
    found = gather(quickstart().recipe, turned)
    assert (
        build_statement(found, subjects, invocation=INVOCATION).data
        == build_statement(materials(), SUBJECTS, invocation=INVOCATION).data
    )


def _turned(value: Any) -> Any:
    """Reverse the keys of all objects of a document. Lists keep their order, which has a meaning."""
    if isinstance(value, Mapping):
        return {name: _turned(value[name]) for name in reversed(list(value))}
    return [_turned(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("part", ["recipe", "model", "option", "package", "library", "subject"])
def test_changed_input_changes_the_statement(part: str) -> None:
    output, item = quickstart(), built(CLASSIFIER)
    recipe, subjects = output.recipe, SUBJECTS
    toolchain = item.document["toolchain"]
    if part == "recipe":
        recipe = RecipeFiles("quickstart", (replace(recipe.files[0], sha256="ee" * 32),))
    elif part == "model":
        item = with_member(item, 0, graph="ee" * 32)
    elif part == "option":
        item = replace(item, document={**item.document, "eps": [{**item.document["eps"][0], "options": {"soc_model": "SM8650"}}]})
    elif part == "package":
        item = replace(item, document={**item.document, "toolchain": {**toolchain, "distributions": {"onnxruntime": "1.31.0"}}})
    elif part == "library":
        item = replace(item, document={**item.document, "toolchain": {**toolchain, "libraries": {LIBRARY: "ee" * 32}}})
    else:
        subjects = (SUBJECTS[0], SUBJECTS[1]._replace(digest="ee" * 32))
    before = build_statement(gather(output.recipe, [built(CLASSIFIER)]), SUBJECTS, invocation=INVOCATION).data
    assert build_statement(gather(recipe, [item]), subjects, invocation=INVOCATION).data != before


def test_host_cpu_is_omitted_although_a_key_may_depend_on_the_cpu() -> None:
    assert CPU in json.dumps(dict(built(DECODER).document))
    assert CPU.encode() not in build_statement(materials(), SUBJECTS, invocation=INVOCATION).data


@pytest.mark.parametrize("path", ["/home/someone/models/net.onnx", r"C:\Users\someone\models\net.onnx"])
def test_local_folder_paths_are_omitted(path: str) -> None:
    item = with_source(with_member(built(CLASSIFIER), 0, external={"net.bin": "0b" * 32}), path)
    found = gather(quickstart().recipe, [item])
    assert {("model", "net.onnx"), ("external-data", "net.bin")} <= dependencies(found).keys()
    assert b"someone" not in build_statement(found, SUBJECTS, invocation=INVOCATION).data


@pytest.mark.parametrize(
    ("path", "graph", "data"),
    [
        (
            "https://models.example.com/net/net.onnx?token=secret",
            "https://models.example.com/net/net.onnx",
            "https://models.example.com/net/parts/net.bin",
        ),
        ("s3://bucket/größe/net.onnx", "s3://bucket/gr%C3%B6%C3%9Fe/net.onnx", "s3://bucket/gr%C3%B6%C3%9Fe/parts/net.bin"),
        ("hf://owner/repo/net.onnx@main", "hf://owner/repo/net.onnx@main", "hf://owner/repo/parts/net.bin@main"),
        ("package:my-nets==1.0/a/net.onnx", "pkg:pypi/my-nets@1.0#a/net.onnx", "pkg:pypi/my-nets@1.0#a/parts/net.bin"),
    ],
)
def test_remote_model_is_named_by_its_address_without_secrets(path: str, graph: str, data: str) -> None:
    item = with_source(with_member(built(CLASSIFIER), 0, external={"parts/net.bin": "0b" * 32}), path)
    found = gather(quickstart().recipe, [item])
    assert dependencies(found)["model", "net.onnx"]["uri"] == graph
    assert dependencies(found)["external-data", "parts/net.bin"]["uri"] == data
    assert b"secret" not in build_statement(found, SUBJECTS, invocation=INVOCATION).data
    assert definition(found)["externalParameters"]["builds"][0]["models"][0]["source"] == graph


def test_model_of_a_package_keeps_its_name() -> None:
    item = with_source(built(CLASSIFIER), "package:onnx/backend/light.onnx")
    assert ("model", "package:onnx/backend/light.onnx") in dependencies(gather(quickstart().recipe, [item]))


def test_toolchains_are_listed_separately_and_common_packages_once() -> None:
    other = built(CLASSIFIER)
    toolchain = {**other.document["toolchain"], "distributions": {"numpy": "2.4.6", "onnxruntime-openvino": "1.24.1"}}
    target = replace(other.group.target, toolchain=replace(other.group.target.toolchain, name="openvino"))
    group = replace(other.group, target=target)
    other = replace(other, action=group, document={**other.document, "toolchain": toolchain})
    found = gather(quickstart().recipe, [built(DECODER), other])
    assert definition(found)["internalParameters"]["toolchains"].keys() == {"openvino", "qnn"}
    packages = {item["uri"] for (kind, _), item in dependencies(found).items() if kind == "package"}
    assert {"pkg:pypi/onnxruntime@1.31.1", "pkg:pypi/onnxruntime-openvino@1.24.1", "pkg:pypi/numpy@2.4.6"} <= packages


def test_unrelated_session_groups_are_refused() -> None:
    other = with_member(built(CLASSIFIER), 0, graph="ee" * 32)
    other = replace(other, action=replace(other.group, steps=("compile:classifier/other/classifier",)))
    with pytest.raises(ValueError, match="the name 'classifier' for different items"):
        gather(quickstart().recipe, [built(CLASSIFIER), other])


@pytest.mark.parametrize("version", ["2.7.0", "2.0+cu12.1", "1!2.0rc1"])
def test_package_url_follows_the_official_spelling(version: str) -> None:
    package = Distribution("onnxruntime-qnn", version)
    assert PackageURL("pypi", None, "onnxruntime-qnn", version).to_string() == package.purl


def test_included_file_is_named_relative_to_the_recipe(tmp_path: Path) -> None:
    assert describe_recipe_file(tmp_path / "shared" / "base.yaml", tmp_path / "recipes", "aa" * 32).name == "../shared/base.yaml"


@pytest.mark.gate
@pytest.mark.skipif(
    (sys.platform, platform.machine().lower()) not in {("linux", "x86_64"), ("win32", "amd64")},
    reason="onnxruntime-qnn compiles on Linux x86-64 and Windows",
)
def test_real_build_has_equal_provenance_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [_built_in(tmp_path / name / "checkout", tmp_path / name / "cache", monkeypatch) for name in ("one", "another")]
    assert texts[0] == texts[1]
    assert_official(texts[0])
    text = texts[0].decode()
    for fact in (getpass.getuser(), socket.gethostname()):
        assert not re.search(rf"\b{re.escape(fact)}\b", text)
    assert not re.search(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d", text), "a time"
    assert not re.search(r'"(/|[A-Za-z]:[\\/])', text), "an absolute path"
    read = json.loads(text)
    made = {item["name"]: item["digest"]["sha256"] for item in read["subject"]}
    assert made["classifier_qnn.bin"] == sha256(
        tmp_path / "one/checkout/dist/quickstart/classifier/snapdragon-SM8750/classifier_qnn.bin"
    )
    names = {item["name"] for item in read["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert {"epbuild.yaml", "models/classifier/classifier.onnx", "onnxruntime-qnn"} <= names
    assert any("providers_qnn" in name for name in names), "the EP's library"


def _built_in(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Build the quickstart's classifier for one SoC with the real EP, and return its provenance."""
    shutil.copytree(MODELS, folder / "models")
    recipe = folder / "epbuild.yaml"
    shutil.copy(RECIPE, recipe)
    monkeypatch.setenv("EPBUILD_CACHE_DIR", os.fspath(cache))
    request = Request(recipe, selection=("emit:classifier/snapdragon-SM8750/*",))
    assert run(request, NoProgress()) == 0
    made = [status.made for status in survey(request).actions.values() if status.made is not None]
    (output,) = {path.parent for path in folder.rglob("dist/**/*") if path.is_file()}
    subjects = [FileEntry(path.name, "asset", 0, sha256(path)) for path in output.iterdir()]
    found = gather(RecipeFiles("quickstart", (describe_recipe_file(recipe, folder, sha256(recipe)),)), made)
    return build_statement(found, subjects, invocation=made[0].key).data
