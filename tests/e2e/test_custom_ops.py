"""Models that mix custom operators with nodes of the EP: compiled, loaded, run and opened elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from epbuild.cache.location import find_toolchain_directory
from epbuild.recipe.load import load
from epbuild.toolchain.provision import Requirements, get_environment_folder
from tests.support.projects import RECIPES, Project, compiled, emitted

PACKAGES = "[onnxruntime==1.31.1, onnxruntime-qnn==2.7.0, onnxruntime-extensions==0.15.2]"
RECIPE = f"""\
epbuild: 1
name: inverse
toolchains:
  qnn:
    packages: {PACKAGES}
models: {{inverse: inverse.onnx}}
targets:
  npu: {{toolchain: qnn, ep: QNNExecutionProvider, provider_options: {{backend_type: htp, soc_model: SM8750}}}}
groups:
  maths:
    models: [inverse]
    targets: [npu]
    expect: {{fallback_nodes: any}}
outputs:
  - {{layout: directory, path: dist, provenance: true}}
"""
OF_THE_TOOLCHAIN = (f"    packages: {PACKAGES}\n", f"    packages: {PACKAGES}\n    custom_ops: [onnxruntime_extensions]\n")
OF_ONES_OWN = (f"    packages: {PACKAGES}\n", f"    packages: {PACKAGES}\n    custom_ops: [ops/libours.so]\n")
COMPILE = "compile:maths/npu/inverse"
APPLICATION = """\
import json, sys
import numpy
import epbuild.runtime
with epbuild.runtime.open(sys.argv[1], custom_ops=json.loads(sys.argv[2])) as group:
    print(json.dumps(group["inverse"].run(None, {"x": numpy.eye(8, dtype="float32")})[0].tolist()))
"""


@pytest.fixture
def inverse(project: Project) -> Project:
    """Return a project whose NPU multiplies a matrix, and whose CPU inverts it with an operator of onnxruntime-extensions."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"], name="multiply"),
            helper.make_node("Inverse", ["y"], ["z"], name="invert", domain="ai.onnx.contrib"),
        ],
        "inverse",
        [value("x", TensorProto.FLOAT, [8, 8])],
        [value("z", TensorProto.FLOAT, [8, 8])],
        [numpy_helper.from_array(weights(), "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), project.folder / "inverse.onnx")
    project.recipe.write_text(RECIPE, encoding="utf-8")
    return project


@pytest.fixture
def with_library(inverse: Project) -> Project:
    """Return the project of `inverse` with the operator in a library of the user, a renamed copy of the package's library."""
    inverse.edit(*OF_THE_TOOLCHAIN)
    inverse.build()
    inverse.edit(*reversed(OF_THE_TOOLCHAIN))
    inverse.edit(*OF_ONES_OWN)
    (inverse.folder / "ops").mkdir()
    found = python_of(inverse).parents[1].rglob("_extensions_pydll*")
    (source,) = (path for path in found if path.suffix in (".so", ".pyd"))
    shutil.copy(source, inverse.folder / "ops" / "libours.so")
    return inverse


def weights() -> NDArray[numpy.float32]:
    """Return a matrix that is far from singular."""
    random = numpy.random.default_rng(0).normal(0, 0.1, (8, 8))
    return (random + numpy.eye(8)).astype(numpy.float32)


def python_of(project: Project) -> Path:
    """Return the interpreter of the project's toolchain."""
    (toolchain,) = load(project.recipe).toolchains.values()
    folder = get_environment_folder(Requirements(toolchain.packages, toolchain.python), find_toolchain_directory())
    return folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def application(project: Project, places: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run an application in the toolchain's Python. It imports epbuild from the source tree."""
    return subprocess.run(
        [python_of(project), "-c", APPLICATION, "dist", json.dumps(places)],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(RECIPES.parent)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def answer(done: subprocess.CompletedProcess[str]) -> NDArray[numpy.float64]:
    assert done.returncode == 0, done.stderr
    return numpy.array(json.loads(done.stdout.splitlines()[-1]))  # the EP writes on standard output too


def manifest(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.folder / "dist" / "manifest.json").read_text(encoding="utf-8"))
    return found


def test_a_model_without_its_library_is_refused_with_the_setting_to_add(inverse: Project) -> None:
    done = inverse.epbuild("run")
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1
    assert "ai.onnx.contrib:Inverse(-1) is not a registered function/op" in text
    assert "If ai.onnx.contrib:Inverse is a custom operator, add its library or package to 'custom_ops'." in text
    assert "[EPB401]" in text


@pytest.mark.gate
def test_a_package_of_the_toolchain_is_registered_wherever_the_model_is_opened(inverse: Project) -> None:
    inverse.edit(*OF_THE_TOOLCHAIN)
    inverse.build()
    nodes = {node.domain: node.op_type for node in onnx.load(inverse.folder / "dist" / "inverse_ctx.onnx").graph.node}
    assert nodes == {"com.microsoft": "EPContext", "ai.onnx.contrib": "Inverse"}
    assert manifest(inverse)["custom_ops"] == [{"module": "onnxruntime_extensions"}]
    assert inverse.epbuild("run", "--check").returncode == 0
    for more in (("--load",), ("--numbers", "--recipe", "epbuild.yaml"), ("--load", "--interpreter", str(python_of(inverse)))):
        done = inverse.epbuild("verify", "dist", "--strict", *more)
        assert done.returncode == 0, done.stdout + done.stderr
    assert numpy.allclose(answer(application(inverse)), numpy.linalg.inv(weights()), atol=0.01)
    statement = json.loads((inverse.folder / "dist" / "provenance.intoto.json").read_text(encoding="utf-8"))
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["builds"][0]["custom_ops"] == ["onnxruntime_extensions"]
    assert any(item["name"].startswith("onnxruntime_extensions/_ext") for item in definition["resolvedDependencies"])


def test_a_users_library_is_registered_from_the_path_in_the_recipe(with_library: Project) -> None:
    shutil.copytree(with_library.folder / "dist", with_library.folder / "before")
    events = with_library.build()
    assert (compiled(events), emitted(events)) == ({COMPILE}, {"emit:maths/npu/directory"})
    (listed,) = manifest(with_library)["custom_ops"]
    assert listed["library"] == "libours.so"
    difference = with_library.epbuild("diff", "before", "dist")
    assert difference.returncode == 1
    assert "The artifacts differ in settings" in difference.stdout, (
        "the operators came from elsewhere, and what was compiled is the same"
    )
    assert "libours.so" in difference.stdout
    done = with_library.epbuild("verify", "dist", "--load")
    text = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert "needs the custom operators of libours.so, which is not in the artifact; pass the library with --custom-ops" in text
    for more in (("--load", "--custom-ops", "ops/libours.so"), ("--numbers", "--recipe", "epbuild.yaml")):
        done = with_library.epbuild("verify", "dist", "--strict", *more)
        assert done.returncode == 0, done.stdout + done.stderr
    refused = application(with_library)
    assert refused.returncode == 1
    assert "npu needs the custom operators of libours.so; pass the path of the library on this machine" in refused.stderr
    found = answer(application(with_library, {"libours.so": "ops/libours.so"}))
    assert numpy.allclose(found, numpy.linalg.inv(weights()), atol=0.01)


def test_changing_a_library_compiles_again_and_touching_does_not(with_library: Project) -> None:
    with_library.build()
    library = with_library.folder / "ops" / "libours.so"
    library.touch()
    assert with_library.epbuild("run", "--check").returncode == 0
    with library.open("ab") as file:
        file.write(b"more")
    done = with_library.epbuild("plan")
    assert "the library of custom operators libours.so changed: " in " ".join(done.stdout.split())
    assert compiled(with_library.build()) == {COMPILE}


@pytest.mark.parametrize(
    ("ops", "code", "words"),
    [
        ("ops/nosuch.so", 2, "the library of custom operators does not exist: ops/nosuch.so"),
        ("no_such_ops", 3, "toolchain 'qnn' has no Python package 'no_such_ops', which should provide custom operators"),
        ("two words", 2, "EPB106"),
    ],
)
def test_missing_custom_operators_are_reported_at_their_position(inverse: Project, ops: str, code: int, words: str) -> None:
    inverse.edit(f"    packages: {PACKAGES}\n", f"    packages: {PACKAGES}\n    custom_ops: ['{ops}']\n")
    done = inverse.epbuild("run")
    assert done.returncode == code
    assert "epbuild.yaml:6:18: error: " in done.stderr
    assert words in " ".join(done.stderr.split())


def test_a_file_that_is_not_a_library_is_an_environment_error(inverse: Project) -> None:
    shutil.copy(inverse.folder / "inverse.onnx", inverse.folder / "bad.so")
    inverse.edit(f"    packages: {PACKAGES}\n", f"    packages: {PACKAGES}\n    custom_ops: [bad.so]\n")
    done = inverse.epbuild("run")
    assert done.returncode == 3
    assert "the custom operators of bad.so cannot be registered" in " ".join(done.stderr.split())
    assert "EPB444" in done.stderr
