"""Source models: used for comparison only if the artifact was compiled from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.session.planning import read_plan
from epbuild.session.request import Request
from epbuild.verify.live.source import NoSource, Sources, WrongSource

RECIPE = """\
epbuild: 1
name: small
toolchains: {qnn: {packages: [onnxruntime-qnn==2.7.0]}}
models: {big: {path: big.onnx, dimensions: {rows: 7}}}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider}
groups:
  one: {models: [big], targets: [npu]}
outputs:
  - {layout: directory, path: "dist/${group}"}
"""


def write(folder: Path, *, operator: str = "Add", location: str = "big.data") -> Path:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4]) for name in ("x", "y")]
    weight = numpy_helper.from_array(np.ones((4,), np.float32), "w")
    graph = helper.make_graph([helper.make_node(operator, ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    model = helper.make_model(graph)
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], location)
    folder.mkdir(exist_ok=True)
    (folder / "big.data").write_bytes(weight.raw_data)
    model.graph.initializer[0].ClearField("raw_data")
    (folder / "big.onnx").write_bytes(model.SerializeToString())
    return folder / "big.onnx"


def manifest(graph: Path, **changes: Any) -> dict[str, Any]:
    digests = {name: hashlib.sha256(graph.with_name(name).read_bytes()).hexdigest() for name in ("big.onnx", "big.data")}
    source: Mapping[str, Any] = {"sha256": digests["big.onnx"], "external_data": {"big.data": digests["big.data"]}}
    return {"group": "one", "target": {"name": "npu"}, "models": [{"name": "big", "source": source}], **changes}


def of_recipe(recipe: Path) -> Sources:
    return Sources({}, recipe, read_plan(Request(recipe))[1])


def test_a_named_source_is_found_with_its_data(tmp_path: Path) -> None:
    graph = write(tmp_path)
    for named in ("big", ""):
        source = Sources({named: graph}).find("big", manifest(graph))
        assert (source.graph, source.external) == (graph, {"big.data": tmp_path / "big.data"})
        assert not source.is_quantized


def test_a_recipe_locates_the_source_and_its_free_dimensions(tmp_path: Path) -> None:
    graph = write(tmp_path)
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    source = of_recipe(tmp_path / "epbuild.yaml").find("big", manifest(graph))
    assert source.graph.samefile(graph)
    assert source.sizes == {"rows": 7}


def test_a_recipe_locates_external_data_in_another_folder(tmp_path: Path) -> None:
    graph = write(tmp_path)
    before = manifest(graph)
    (tmp_path / "data").mkdir()
    (tmp_path / "big.data").rename(tmp_path / "data" / "big.data")
    path = "models: {big: {path: big.onnx, "
    assert path in RECIPE
    (tmp_path / "epbuild.yaml").write_text(RECIPE.replace(path, f"{path}external_data: data, "), encoding="utf-8")
    source = of_recipe(tmp_path / "epbuild.yaml").find("big", before)
    assert source.external["big.data"].samefile(tmp_path / "data" / "big.data")
    placed = source.place_files(tmp_path / "scratch")
    assert (placed.parent / "big.data").read_bytes() == (tmp_path / "data" / "big.data").read_bytes()
    assert placed.read_bytes() == graph.read_bytes()


@pytest.mark.parametrize("name", ["big.onnx", "big.data"])
def test_a_changed_source_is_refused(tmp_path: Path, name: str) -> None:
    graph = write(tmp_path)
    before = manifest(graph)
    changed = bytearray((tmp_path / name).read_bytes())
    changed[-1] ^= 1
    (tmp_path / name).write_bytes(changed)
    with pytest.raises(NoSource, match=r"compiled from|compiled with|complete ONNX file") as raised:
        Sources({"big": graph}).find("big", before)
    assert isinstance(raised.value, WrongSource)


def test_an_unknown_source_is_reported_with_a_hint(tmp_path: Path) -> None:
    graph = write(tmp_path)
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    recipe = tmp_path / "epbuild.yaml"
    for sources, document, words in (
        (Sources({}), manifest(graph), "--recipe"),
        (of_recipe(recipe), None, "--source"),
        (of_recipe(recipe), manifest(graph, group="other"), "does not build the group 'other' for the target 'npu'"),
    ):
        with pytest.raises(NoSource, match=words) as raised:
            sources.find("big", document)
        assert not isinstance(raised.value, WrongSource)


def test_data_outside_the_models_folder_is_not_followed(tmp_path: Path) -> None:
    graph = write(tmp_path / "models", location="../secret")
    with pytest.raises(NoSource, match=r"'\.\.'") as raised:
        Sources({"big": graph}).find("big", None)
    assert isinstance(raised.value, WrongSource)


def test_a_missing_file_is_reported_by_name(tmp_path: Path) -> None:
    graph = write(tmp_path)
    (tmp_path / "big.data").unlink()
    with pytest.raises(NoSource, match=r"big\.data cannot be read"):
        Sources({"big": graph}).find("big", None)


def test_a_quantized_model_is_recognized_by_its_operators(tmp_path: Path) -> None:
    graph = write(tmp_path, operator="DequantizeLinear")
    assert Sources({"big": graph}).find("big", None).is_quantized


def test_linked_files_are_copied_because_onnx_runtime_refuses_links(tmp_path: Path) -> None:
    graph = write(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    try:
        for name in ("big.onnx", "big.data"):
            (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / name)
    except OSError:
        pytest.skip("no links here")
    placed = Sources({"": tmp_path / "snapshot/big.onnx"}).find("big", manifest(graph)).place_files(tmp_path / "scratch")
    assert placed == tmp_path / "scratch/big.onnx"
    assert not any(path.is_symlink() for path in (tmp_path / "scratch").iterdir())
    assert (tmp_path / "scratch/big.data").read_bytes() == (tmp_path / "blobs/big.data").read_bytes()
    assert Sources({"": graph}).find("big", None).place_files(tmp_path / "unused") == graph
