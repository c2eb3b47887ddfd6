"""Checked-in recipes: each builds with the results that it demonstrates."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from epbuild.remote.keys import SigningKey
from tests.e2e.ort_package import open_package
from tests.support.projects import LONG_QUICKSTART, RECIPES, Project, compiled, toolchain_python

KEY = SigningKey.generate()


def _checked_in(project: Project, name: str) -> Project:
    for folder in ("models", "parts"):
        shutil.copytree(RECIPES / folder, project.folder / folder)
    for recipe in RECIPES.glob("*.yaml"):
        shutil.copy(recipe, project.folder)  # one may extend another
    shutil.copy(RECIPES / name, project.recipe)
    return project


@pytest.mark.parametrize("name", sorted(path.name for path in RECIPES.glob("*.yaml")))
def test_every_recipe_is_valid(project: Project, name: str) -> None:
    done = _checked_in(project, name).epbuild("validate")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "folders"),
    [
        ("minimal", {"classifier/phone": {"classifier_qnn.bin"}}),
        ("cpu", {"classifier/snapdragon": {"classifier_qnn.bin"}}),
        ("openvino", {"classifier/intel": {"classifier_openvino.bin"}}),
        ("vars", {"model/snapdragon": {"model_qnn.bin"}}),
        ("merge", {"vision/snapdragon": {"classifier_qnn.bin", "normalize_qnn.bin"}}),
        (
            "include",
            {
                "classifier/snapdragon-SC8380XP": {"classifier_qnn.bin"},
                "classifier/snapdragon-SM8750": {"classifier_qnn.bin"},
                "classifier/intel-cpu": {"classifier_openvino.bin"},
            },
        ),
    ],
)
def test_each_feature_recipe_builds(project: Project, name: str, folders: dict[str, set[str]]) -> None:
    _checked_in(project, f"{name}.yaml").build()
    [dist] = (project.folder / "dist").iterdir()
    found = {path.parent.relative_to(dist).as_posix(): path.parent for path in dist.rglob("manifest.json")}
    assert {folder: {path.name for path in place.glob("*.bin")} for folder, place in found.items()} == folders
    for folder, place in found.items():
        model = "vision" if name == "merge" else folder.partition("/")[0]
        assert [path.name for path in place.glob("*.onnx")] == [f"{model}_ctx.onnx"]


def test_three_lines_beside_one_model_are_a_complete_recipe(project: Project) -> None:
    (project.folder / "models").mkdir()
    shutil.copy(RECIPES / "models/classifier/classifier.onnx", project.folder / "models/det.onnx")
    project.recipe.write_text("epbuild: 1\nmodels: models/*.onnx\ntargets: {phone: {ep: qnn, soc: SM8750}}\n", encoding="utf-8")
    assert "defaults: " in project.epbuild("plan").stdout
    project.build()
    output = f"dist/{project.folder.name}/det/phone"
    assert set(project.files(output)) == {"det_ctx.onnx", "det_qnn.bin", "manifest.json"}


def test_a_machine_restores_results_from_the_cache_of_a_recipe(project: Project) -> None:
    _checked_in(project, "cache.yaml")
    step = "emit:classifier/snapdragon-SM8750/*"
    project.environment["EPBUILD_SIGNING_KEY"] = KEY.text
    assert compiled(project.build("epbuild.yaml", step, "--remote-cache", "write"))
    other = Project(project.folder, project.cache.with_name("other"))
    shutil.rmtree(project.folder / ".epbuild")
    shutil.rmtree(project.folder / "dist")
    assert compiled(other.build("epbuild.yaml", step)) == set()


def test_one_build_uses_two_toolchains_that_cannot_share_an_environment(project: Project) -> None:
    _checked_in(project, "two-toolchains.yaml").build()
    found = {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))["toolchain"]["distributions"]
        for path in project.folder.glob("dist/**/manifest.json")
    }
    assert found["snapdragon-x"]["onnxruntime"] == "1.31.1"
    assert found["intel-cpu"]["onnxruntime-openvino"] == "1.24.1"
    assert "onnxruntime" not in found["intel-cpu"]
    names = set(project.files("dist/two-toolchains/vision/intel-cpu"))
    assert {"classifier_ctx.onnx", "classifier_openvino.bin", "squeezenet_ctx.onnx", "squeezenet_openvino.bin"} <= names


def test_the_models_of_the_quickstart_are_shipped_in_every_form(project: Project) -> None:
    _checked_in(project, "shipping.yaml").build()
    names = set(project.files())
    archives = {
        f"shipping-{group}-snapdragon-{soc}.tar.zst" for group in ("decoder", "classifier") for soc in ("SC8380XP", "SM8750")
    }
    assert {*archives, *(f"{name}.intoto.json" for name in archives)} <= names
    assert {f"shipping.ortpackage/{name}" for name in ("manifest.json", "provenance.intoto.json", "bom.cdx.json")} <= names
    assert {"shipping-image/index.json", "shipping-image/oci-layout"} <= names
    assert project.epbuild("verify", "dist/shipping.ortpackage").returncode == 0
    assert open_package(project.folder / "dist/shipping.ortpackage")["error"] is None


def test_an_existing_environment_produces_identical_outputs(project: Project) -> None:
    _checked_in(project, "quickstart.yaml").recipe.write_text(LONG_QUICKSTART, encoding="utf-8")
    project.build("epbuild.yaml", "emit:classifier/*")
    before = project.files()
    project.edit(
        "    packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]", f"    interpreter: '{toolchain_python('onnxruntime-qnn')}'"
    )
    assert compiled(project.build("epbuild.yaml", "emit:classifier/*")) == set()
    assert project.files() == before


@pytest.mark.skipif(sys.platform == "win32", reason="the Windows packages have the compiler that this is about")
def test_an_npu_compiler_missing_from_the_packages_is_reported(project: Project) -> None:
    _checked_in(project, "intel-npu.yaml")
    why = "cannot compile for Intel NPUs here: the NPU compiler (openvino_intel_npu_compiler) is in the Windows"
    told = project.epbuild("validate")
    assert (told.returncode, told.stderr.count("note: "), told.stderr.count(why)) == (0, 2, 2)
    home = project.folder.parent / "toolchains"
    project.environment["EPBUILD_TOOLCHAIN_DIR"] = str(home)
    done = project.epbuild("run")
    assert done.returncode == 3
    assert why in done.stderr
    assert not (project.folder / "dist").exists()
    assert not home.exists(), "nothing is installed for what cannot be done"


def test_a_missing_interpreter_is_reported_at_its_position(project: Project) -> None:
    done = _checked_in(project, "ryzen-ai.yaml").epbuild("run")
    assert done.returncode == 3
    assert "names an interpreter that does not exist: C:/ryzen-ai/python.exe" in done.stderr


def test_a_toolchain_of_unselected_steps_is_not_provisioned(project: Project) -> None:
    _checked_in(project, "two-toolchains.yaml").edit(
        "models:\n", "toolchains:\n  openvino: {packages: [onnxruntime-openvino, no-such-epbuild-package==1]}\nmodels:\n"
    )
    steps = compiled(project.build("epbuild.yaml", "emit:*/snapdragon-x/*"))
    assert steps == {"compile:vision/snapdragon-x/classifier", "compile:vision/snapdragon-x/squeezenet"}


def test_the_light_models_of_the_onnx_package_compile_completely(project: Project) -> None:
    _checked_in(project, "light-zoo.yaml").build()
    manifest = json.loads((project.folder / "dist/light-zoo/zoo/snapdragon-8-elite/manifest.json").read_text(encoding="utf-8"))
    assert {
        model["name"]: (len(model["ep_context_nodes"]), model["fallback_nodes"]) for model in manifest["models"]
    } == dict.fromkeys(("squeezenet", "resnet50", "shufflenet", "densenet121"), (1, 0))
