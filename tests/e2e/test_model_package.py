"""Model packages in onnxruntime: it opens them, selects a variant of each component and creates sessions."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from epbuild.archive.artifact import Role
from epbuild.output.assets import share_files
from epbuild.output.files import OutputFile, UserFile
from epbuild.output.inference import select_inference_options
from epbuild.output.package_manifest import DATA_FOLDER, PackageVariant, build_package_manifest
from epbuild.runtime.variants import find_variants
from tests.e2e.ort_package import CPU, QNN, edited, open_package
from tests.support.projects import Project, copy_of_quickstart

ONLY_HERE = pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs contexts comes in the Linux wheel")
OUTPUT = """\
outputs:
  - layout: ort-model-package
    path: dist/${recipe.name}.ortpackage
    include_source: ${model}.onnx
"""
GROUP = """\
groups:
  draft: {models: [prefill], targets: [snapdragon-*]}
"""
GROUPS = {"draft": ("prefill",), "decoder": ("prefill", "decode"), "classifier": ("classifier",)}
COMPONENTS = ("draft", "prefill", "decode", "classifier")
TARGETS = ("snapdragon-SC8380XP", "snapdragon-SM8750")
HTP = {"backend_type": "htp"}
"""Without it, onnxruntime does not show the package to QNN on a machine without an NPU."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, quickstart_store: Path) -> Project:
    """Build the quickstart by the real command."""
    folder = tmp_path_factory.mktemp("package")
    project = copy_of_quickstart(folder / "quickstart", folder / "cache", quickstart_store)
    text = project.recipe.read_text(encoding="utf-8")
    project.recipe.write_text(text[: text.index("outputs:")].replace("groups:", GROUP) + OUTPUT, encoding="utf-8")
    project.build()
    return project


@pytest.fixture(scope="module")
def package(built: Project) -> Path:
    """Return the package of all built models. It also has their source models as a variant."""
    root = built.folder / "dist/quickstart.ortpackage"
    (root / "README.md").write_text("What the user adds is nobody's business.\n", encoding="utf-8")
    assert built.epbuild("verify", str(root)).returncode == 0
    return root


def _content(file: Path, path: str, role: Role) -> OutputFile:
    return OutputFile(path, role, UserFile(file, hashlib.sha256(file.read_bytes()).hexdigest()))


def ort_of(components: dict[str, Any], component: str, variant: str) -> dict[str, Any]:
    found: dict[str, Any] = components[component]["variants"][variant]["executor_info"]["ort"]
    return found


def for_any_device(components: dict[str, Any]) -> None:
    """Drop the device type. The emulator that replaces an NPU here reports a CPU."""
    for component in components.values():
        for variant in component["variants"].values():
            variant.pop("device", None)


def test_onnx_runtime_finds_every_model_for_every_target_in_the_package(package: Path) -> None:
    found = open_package(package, sessions=False)
    assert found["error"] is None
    variants = {**dict.fromkeys(TARGETS, QNN), "base": CPU}
    assert {name: component["variants"] for name, component in found["components"].items()} == dict.fromkeys(COMPONENTS, variants)


def test_without_an_npu_the_base_models_are_selected(package: Path) -> None:
    components = open_package(package)["components"]
    assert {component["selected"] for component in components.values()} == {"base"}
    assert [component["error"] for component in components.values()] == [None] * 4
    assert components["decode"]["inputs"][:2] == ["input_ids", "position_ids"]
    assert components["classifier"]["outputs"] == ["probabilities"]


def test_onnx_runtime_finds_weights_that_two_models_share(package: Path) -> None:
    (weights,) = package.rglob("weights.bin")
    assert weights.parent.parent == package / "shared_assets"
    (prefill,) = package.rglob("prefill.onnx")
    assert prefill.parent.parent == package / "shared_assets"
    assert (package / "decoder/base/decode.onnx").is_file()
    assert open_package(package)["components"]["prefill"]["error"] is None


def test_onnx_runtime_finds_a_model_that_two_components_share(built: Project, tmp_path: Path) -> None:
    source = built.folder / "models/classifier/classifier.onnx"
    every = [_content(source, f"{name}/base/m.onnx", "base-model") for name in ("left", "right")]
    variants = [PackageVariant(name, "base", f"{name}/base", "m.onnx", CPU, movable=True) for name in ("left", "right")]
    contents, said = share_files(every, variants)
    (content,) = contents
    (tmp_path / content.path).parent.mkdir(parents=True)
    shutil.copyfile(source, tmp_path / content.path)
    manifest = build_package_manifest(name="two", description="", variants=said, recipe="two", files=[content.entry])
    (tmp_path / "manifest.json").write_bytes(manifest.data)
    components = open_package(tmp_path)["components"]
    assert [component["inputs"] for component in components.values()] == [["image"], ["image"]]


def test_a_compiled_variant_is_not_selected_for_another_device(package: Path) -> None:
    # The tests of this folder run on x86-64 only, where QNN has no NPU.
    for component in open_package(package, QNN, HTP)["components"].values():
        assert "No suitable model variant found" in component["error"]


@ONLY_HERE
def test_a_compiled_variant_runs_with_the_options_of_the_package(package: Path, tmp_path: Path) -> None:
    def only_the_classifier(components: dict[str, Any]) -> None:
        for_any_device(components)
        # The emulator crashes when it loads models that share weights.
        del components["prefill"], components["decode"], components["draft"]

    whole = edited(package, tmp_path / "whole", only_the_classifier)
    found = open_package(whole, QNN, HTP)["components"]["classifier"]
    assert (found["selected"], found["error"], found["inputs"]) == ("snapdragon-SC8380XP", None, ["image"])
    assert found["folder"] == "classifier/snapdragon-SC8380XP"

    def without_options(components: dict[str, Any]) -> None:
        del ort_of(components, "classifier", "snapdragon-SC8380XP")["provider_options"]

    # The application's own options only select a variant. They do not reach the session.
    bare = edited(whole, tmp_path / "bare", without_options)
    error = open_package(bare, QNN, HTP)["components"]["classifier"]["error"]
    assert "Could not determine default backend path" in error


@ONLY_HERE
def test_models_that_share_a_context_binary_are_selected_together_in_one_folder(package: Path, tmp_path: Path) -> None:
    place = edited(package, tmp_path / "any", for_any_device)
    components = open_package(place, QNN, HTP, sessions=False)["components"]
    assert {components[name]["folder"] for name in ("prefill", "decode")} == {"decoder/snapdragon-SC8380XP"}
    document = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    for name in ("prefill", "decode"):
        ort = ort_of(document["components"], name, "snapdragon-SC8380XP")
        assert ort["session_options"] == {"ep.share_ep_contexts": "1"}


def test_the_runtime_finds_the_compiled_variants_of_the_package_too(package: Path) -> None:
    found = {(variant.group, variant.target): list(variant.models) for variant in find_variants(package)}
    assert found == {(group, target): list(members) for group, members in GROUPS.items() for target in TARGETS}


def test_verify_reports_missing_weights_before_onnx_runtime_does(package: Path, built: Project, tmp_path: Path) -> None:
    place = edited(package, tmp_path / "copy", lambda components: None)
    (weights,) = place.rglob("weights.bin")
    weights.rename(weights.with_name("renamed"))
    found = open_package(place)
    assert found["error"] is None
    assert "External data path does not exist" in found["components"]["prefill"]["error"]
    told = built.epbuild("verify", str(place))
    assert told.returncode == 1
    assert "weights.bin" in told.stdout


@pytest.mark.parametrize("option", ["session.enable_profiling", "session.collect_node_memory_stats_to_file"])
def test_options_that_onnx_runtime_refuses_in_packages_are_omitted(package: Path, tmp_path: Path, option: str) -> None:
    def with_option(components: dict[str, Any]) -> None:
        ort_of(components, "classifier", "base")["session_options"] = {option: "0"}

    assert "cannot be set in model package session options" in open_package(edited(package, tmp_path / "p", with_option))["error"]
    assert select_inference_options({option: "0"}, {}, share=False).session_options == {}


def test_onnx_runtime_never_selects_a_base_variant_with_a_device(package: Path, tmp_path: Path) -> None:
    def with_device(components: dict[str, Any]) -> None:
        components["classifier"]["variants"]["base"]["device"] = "cpu"

    found = open_package(edited(package, tmp_path / "p", with_device))["components"]
    assert found["classifier"]["selected"] is None
    assert found["prefill"]["selected"] == "base"


def test_onnx_runtime_refuses_a_package_with_a_missing_asset(package: Path, tmp_path: Path) -> None:
    def elsewhere(components: dict[str, Any]) -> None:
        ort_of(components, "prefill", "base")["session_options"] = {DATA_FOLDER: f"sha256:{'0' * 64}"}

    assert "Asset URI not declared in this package" in open_package(edited(package, tmp_path / "p", elsewhere))["error"]
