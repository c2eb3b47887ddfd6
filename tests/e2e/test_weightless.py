"""Weightless contexts of a plugin EP in the real ONNX Runtime: weights beside a model, and once in a model package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.onnxfile.read.headers import read_header
from tests.e2e.contoso_library import EP, build_library, needs_compiler
from tests.e2e.ort_package import edited, open_package
from tests.support.projects import RECIPES, Project, toolchain_python

pytestmark = [pytest.mark.gate, needs_compiler]

SIZE = 4096
CATALOG = f"""\
ep = "{EP}"
short = "contoso"
kind = "plugin"
origin = "measured with contoso_ep.c"
module = "contoso_ep"
sources = ["{EP}"]
devices = ["cpu"]
weightless = {{ cpu = "external" }}
"""
RECIPE = f"""\
epbuild: 1
name: weightless
catalogs: [contoso.toml]
toolchains:
  onnxruntime: {{packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}}
models: {{add: add.onnx, keep: keep.onnx, twin: twin.onnx}}
targets:
  here:
    toolchain: onnxruntime
    ep: {EP}
    library: libcontoso_ep.so
    session_options: {{ep.enable_weightless: true}}
  there:
    toolchain: onnxruntime
    ep: {EP}
    library: libcontoso_ep.so
    session_options: {{ep.enable_weightless: true, session.intra_op.allow_spinning: 0}}
groups:
  all:
    models: [add, {{model: keep, compile: none}}]
    targets: [here, there]
    compile: &compile {{embed: true, initializers: {{store: external, file: "${{model}}.weights", threshold: 0}}}}
  twins:
    models: [add, {{model: twin, compile: none}}]
    targets: [here, there]
    compile: *compile
outputs:
  - {{layout: directory, groups: [all], path: "dist/${{target}}"}}
  - {{layout: ort-model-package, groups: [all], path: package, include_source: "${{model}}.onnx"}}
  - {{layout: ort-model-package, groups: [twins], path: twins}}
"""
WEIGHTS = numpy.random.default_rng(0).random(SIZE, numpy.float32)
RUN = """
import os, sys
import numpy, onnxruntime
import epbuild.runtime

onnxruntime.register_execution_provider_library("ContosoExecutionProvider", sys.argv[1])
x = numpy.zeros(4096, "float32")
for path, target in (("package", "here"), ("package", "there"), ("link", None), ("twins", "here"), ("alone", None)):
    try:
        with epbuild.runtime.open(path, target=target) as group:
            for model in group:
                print(group[model].run(None, {"x": x})[0].tobytes().hex(), flush=True)
    except epbuild.runtime.OpenError as error:
        print(error, flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Build two groups for two targets. Each has a compiled and an uncompiled model; those of `twins` have the same data."""
    folder = tmp_path_factory.mktemp("weightless")
    project = Project(folder / "project", folder / "cache")
    project.folder.mkdir()
    build_library(project.folder)
    (project.folder / "contoso.toml").write_text(CATALOG, encoding="utf-8")
    values = {name: [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE])] for name in "xy"}
    nodes, tensors = [helper.make_node("Add", ["x", "w"], ["y"], "add")], [numpy_helper.from_array(WEIGHTS, "w")]
    graph = helper.make_graph(nodes, "add", values["x"], values["y"], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    for name, data in (("keep", "keep.data"), ("twin", "add.data"), ("add", "add.data")):
        (project.folder / data).unlink(missing_ok=True)  # onnx.save appends
        onnx.save(deepcopy(model), project.folder / f"{name}.onnx", save_as_external_data=True, location=data, size_threshold=0)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    project.build()
    return project


@pytest.fixture
def package(built: Project) -> Iterator[Path]:
    """Return the package, and restore its shared files after the test."""
    folder = built.folder / "package"
    shared = {path: path.read_bytes() for path in (folder / "shared_assets").rglob("add.*")}
    yield folder
    for path, content in shared.items():
        path.write_bytes(content)


def test_a_weightless_model_runs_with_the_weights_beside_it(built: Project) -> None:
    files = built.files("dist/here")
    assert sorted(files) == ["add.data", "add.weights", "add_ctx.onnx", "keep.data", "keep.onnx", "manifest.json"]
    assert len(files["add_ctx.onnx"]) < WEIGHTS.nbytes
    assert read_header(built.folder / "dist/here/add_ctx.onnx").external_locations == ("add.weights",)
    text = built.recipe.read_text(encoding="utf-8")
    inline = text.replace(', initializers: {store: external, file: "${model}.weights", threshold: 0}', "")
    (built.folder / "inline.yaml").write_text(inline, encoding="utf-8")
    assert "the models would contain the weights" in built.epbuild("validate", "inline.yaml").stderr


def test_variants_of_a_package_share_one_copy_of_the_weights(built: Project, package: Path, tmp_path: Path) -> None:
    shared = [path for path in package.rglob("add.*") if path.suffix in (".data", ".weights")]
    assert sorted(path.name for path in shared) == ["add.data", "add.weights"]
    assert {path.parent.parent for path in shared} == {package / "shared_assets"}
    done = built.epbuild("verify", "package", "--numbers", "--recipe", "epbuild.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("^numbers +2 passed", done.stdout, re.MULTILINE), done.stdout

    def one_component_for_each_variant(components: dict[str, Any]) -> None:
        variants = components.pop("add")["variants"]
        components |= {name: {"variants": {name: variant}} for name, variant in variants.items()}

    place = edited(package, tmp_path / "p", one_component_for_each_variant)
    library = built.folder / "libcontoso_ep.so"
    found = open_package(place, EP, library=library, zeros=SIZE)["components"]
    assert [found[name]["result"] for name in ("here", "there")] == [WEIGHTS.tolist()] * 2
    assert open_package(place, zeros=SIZE)["components"]["base"]["result"] == WEIGHTS.tolist()


def test_weights_that_an_uncompiled_model_needs_stay_beside_it(built: Project) -> None:
    data = [path.relative_to(built.folder / "twins").as_posix() for path in built.folder.glob("twins/**/add.data")]
    assert sorted(data) == ["twins/here/add.data", "twins/there/add.data"]


def test_the_runtime_finds_shared_weights_and_says_if_they_are_missing(built: Project, package: Path) -> None:
    shutil.copytree(package / "all/here", built.folder / "alone")
    (built.folder / "link").symlink_to(package / "all/there")
    done = subprocess.run(
        [toolchain_python("onnxruntime-qnn==2.7.0"), "-c", RUN, built.folder / "libcontoso_ep.so"],
        cwd=built.folder,
        env={**os.environ, "PYTHONPATH": str(RECIPES.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    *numbers, _, error = done.stdout.splitlines()
    assert numbers == [WEIGHTS.tobytes().hex()] * 8, done.stderr
    assert re.search("is missing its file .*shared_assets.*add.data", error)


def test_verify_reports_missing_and_changed_shared_weights(built: Project, package: Path) -> None:
    [weights] = package.rglob("add.weights")
    weights.write_bytes(bytes(WEIGHTS.nbytes))
    for folder in ("package", "package/all/here"):
        done = built.epbuild("verify", folder, "--load")
        assert (done.returncode, done.stdout.count("[EPB613]")) == (1, 1)
        assert "It was not loaded" in " ".join(done.stdout.split())
    weights.unlink()
    for folder in ("package", "package/all/here"):
        done = built.epbuild("verify", folder)
        assert (done.returncode, done.stdout.count("[EPB615]")) == (1, 1)
        assert weights.relative_to(package).as_posix() in done.stdout
