"""Names of EPContext nodes that a recipe sets: the renamed model loads and computes the same."""

from __future__ import annotations

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.onnxfile.read.headers import read_header
from tests.support.projects import Project
from tests.support.quick_builds import write_model

RECIPE = """\
epbuild: 1
name: named
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {first: first.onnx, second: second.onnx}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}
groups:
  both:
    models: [first, {model: second, compile: {embed: true}}]
    targets: [npu]
    compile: {node_name_prefix: "${model}_"}
outputs:
  - {layout: directory, path: dist}
"""


@pytest.fixture
def named(project: Project) -> Project:
    for seed, name in enumerate(("first", "second")):
        write_model(project.folder / f"{name}.onnx", seed)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    return project


def node_names(project: Project, name: str) -> list[str]:
    """Return the names of a model's EPContext nodes, which are also the names of their graphs."""
    nodes = read_header(project.folder / "dist" / f"{name}_ctx.onnx").ep_context_nodes
    assert [node.partition_name for node in nodes] == [node.name for node in nodes]
    return [node.name for node in nodes]


def test_prefixed_nodes_compute_the_same_numbers(named: Project) -> None:
    named.edit('    compile: {node_name_prefix: "${model}_"}\n', "")
    named.build()
    plain = {name: node_names(named, name) for name in ("first", "second")}
    named.edit("    targets: [npu]\n", '    targets: [npu]\n    compile: {node_name_prefix: "${model}_"}\n')
    named.build()
    for name, (node,) in plain.items():
        assert node_names(named, name) == [f"{name}_{node}"]
    done = named.epbuild("verify", "dist", "--numbers", "--recipe", "epbuild.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "numbers        2 passed" in done.stdout
    assert "partitions     2 passed" in done.stdout
    assert named.epbuild("run", "--check").returncode == 0


def test_a_model_split_into_several_parts_of_one_context_is_refused(named: Project) -> None:
    random = numpy.random.default_rng(0)
    weights = [numpy_helper.from_array(random.normal(0, 0.1, (64, 64)).astype(numpy.float32), name) for name in "vwc"]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "v"], ["a"], name="in"),
            helper.make_node("CDist", ["a", "c"], ["b"], name="between", domain="com.microsoft", metric="euclidean"),
            helper.make_node("MatMul", ["b", "w"], ["y"], name="out"),
        ],
        "islands",
        [value("x", TensorProto.FLOAT, [1, 64])],
        [value("y", TensorProto.FLOAT, [1, 64])],
        weights,
        value_info=[value(name, TensorProto.FLOAT, [1, 64]) for name in "ab"],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), named.folder / "first.onnx")
    named.edit("soc_model: SM8750", "soc_model: SM8750, dump_json_qnn_graph: true, json_qnn_graph_dir: graphs")
    done = named.epbuild("run")
    assert done.returncode == 1
    text = " ".join((done.stdout + done.stderr).split())
    assert "cannot have the node_name_prefix 'first_': the model was compiled to 2 nodes, and QNN finds each graph" in text
    assert "[EPB440]" in text
    assert not (named.folder / "dist").exists()
    assert any(name.startswith("graphs/") for name in named.files(".epbuild/logs/compile+both+npu+first"))
    # A build without the prefix shows the number of nodes, so the next one fails without a compile.
    named.edit("    compile: {node_name_prefix", "    expect: {fallback_nodes: any}  # compile: {node_name_prefix")
    named.build()
    named.edit("    expect: {fallback_nodes: any}  # compile", "    compile")
    done = named.epbuild("run", "--json")
    assert (done.returncode, "EPB440" in done.stdout + done.stderr) == (1, True)
    assert '"compiling"' not in done.stdout


def test_a_group_that_shares_a_context_is_refused_before_anything_runs(named: Project) -> None:
    named.edit("{model: second, compile: {embed: true}}", "second")
    named.edit("    targets: [npu]\n", "    targets: [npu]\n    share_weights: true\n")
    done = named.epbuild("validate")
    assert done.returncode == 2
    assert "epbuild.yaml:13:33: error: the nodes of 'both'" in done.stderr
    assert "[EPB250]" in done.stderr


def test_models_whose_nodes_have_prefixes_are_merged_into_one(named: Project) -> None:
    named.edit("{model: second, compile: {embed: true}}", "second")
    named.edit(
        "    targets: [npu]\n",
        "    targets: [npu]\n    merge: {name: whole, connect: {first.y: second.x}, prefixes: {first: '', second: s_}}\n",
    )
    named.build()
    names = node_names(named, "whole")
    assert sorted(name.partition("_")[0] for name in names) == ["first", "second"]
    done = named.epbuild("verify", "dist", "--load")
    assert done.returncode == 0, done.stdout + done.stderr
