"""External weights of If branches: staged and unpacked for ONNX Runtime, which refuses links to them."""

from __future__ import annotations

from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.projects import Project

pytestmark = pytest.mark.gate

RECIPE = """\
epbuild: 1
name: branches
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {first: {path: first.onnx}, second: {path: second.onnx}}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}
groups:
  both:
    models: [first, second]
    targets: [npu]
    expect: {fallback_nodes: any}
outputs:
  - {layout: directory, path: dist}
"""
SIZE = 64


def external(name: str, location: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[SIZE, SIZE], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": str(SIZE * SIZE * 4)}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def write_branching_model(path: Path, seed: int) -> None:
    """Write a multiplication that the EP takes and an If that falls back to the CPU, each with external weights."""
    main, branch = f"{path.stem}.main.bin", f"{path.stem}.branch.bin"
    random = numpy.random.default_rng(seed)
    for name in (main, branch):
        random.normal(0, 0.1, (SIZE, SIZE)).astype(numpy.float32).tofile(path.with_name(name))
    info = helper.make_tensor_value_info
    taken = helper.make_graph(
        [helper.make_node("CDist", ["m", "a"], ["t"], name="branch", domain="com.microsoft", metric="euclidean")],
        "taken",
        [],
        [info("t", TensorProto.FLOAT, [1, SIZE])],
        [external("a", branch)],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["m"], ["e"], name="neg")], "other", [], [info("e", TensorProto.FLOAT, [1, SIZE])]
    )
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="main"),
            helper.make_node("If", ["c"], ["y"], name="if", then_branch=taken, else_branch=other),
        ],
        "g",
        [info("x", TensorProto.FLOAT, [1, SIZE]), info("c", TensorProto.BOOL, [])],
        [info("y", TensorProto.FLOAT, [1, SIZE])],
        [external("w", main)],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8
    )
    path.write_bytes(made.SerializeToString())


@pytest.fixture
def branches(project: Project) -> Project:
    for seed, name in enumerate(("first", "second")):
        write_branching_model(project.folder / f"{name}.onnx", seed)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    return project


def test_a_model_with_external_weights_in_a_branch_compiles(branches: Project) -> None:
    branches.build()
    sources = {path.name: path.stat() for path in branches.folder.glob("*.bin")}
    assert len(sources) == 4
    assert {name: stat.st_nlink for name, stat in sources.items()} == dict.fromkeys(sources, 1)
    assert branches.epbuild("verify", "dist", "--load").returncode == 0
    done = branches.epbuild("verify", "dist", "--numbers", "--recipe", "epbuild.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert branches.epbuild("run", "--check").returncode == 0

    # The files of a source can be hard links, which ONNX Runtime refuses.
    for data in list(branches.folder.glob("*.bin")):
        data.with_suffix(".copy").hardlink_to(data)
    done = branches.epbuild("verify", "dist", "--numbers", "--recipe", "epbuild.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_model_with_external_branch_weights_compiles_from_memory(branches: Project) -> None:
    branches.edit("{path: first.onnx}", "{path: first.onnx, load_from: memory}")
    branches.build()
    assert branches.epbuild("verify", "dist", "--load").returncode == 0


def test_models_with_external_branch_weights_can_share_one_weights_file(branches: Project) -> None:
    branches.edit("    targets: [npu]\n", "    targets: [npu]\n    share_weights: true\n    share_initializers: true\n")
    branches.build()
    assert sum(name.endswith("_qnn.bin") for name in branches.files()) == 1


@pytest.mark.parametrize("store", ["source", 'external, file: "${model}.rest.bin", threshold: 16'])
def test_an_image_of_models_with_external_branch_weights_loads(branches: Project, store: str) -> None:
    branches.edit("    targets: [npu]\n", f"    targets: [npu]\n    compile: {{initializers: {{store: {store}}}}}\n")
    branches.edit("path: dist}", "path: dist, archive: oci}")
    branches.build()
    blobs = list((branches.folder / "dist/blobs/sha256").iterdir())
    done = branches.epbuild("verify", "dist", "--load")
    assert done.returncode == 0, done.stdout + done.stderr
    done = branches.epbuild("verify", "dist", "--numbers", "--recipe", "epbuild.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {blob.stat().st_nlink for blob in blobs} == {1}


def test_only_external_data_of_branches_is_copied(branches: Project) -> None:
    """Share a weight between the graph and a branch. It counts as the branch's, whatever its file is called in each."""
    path = branches.folder / "first.onnx"
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "./first.branch.bin"
    path.write_bytes(model.SerializeToString())
    branches.build()
    assert branches.epbuild("verify", "dist", "--load").returncode == 0
