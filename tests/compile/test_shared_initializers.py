"""Groups with `share_initializers`: one weights file for all members, emitted where the EP goes on reading it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.core.defaults import MANIFEST
from epbuild.engine.events import StepFinished
from epbuild.onnxfile.read.headers import read_header
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import EMIT_CLASSIFIER, EMIT_DECODER, SHARE, Workshop

ON = ("share_weights: true", "share_weights: true\n    share_initializers: true")
WEIGHTS = "decoder.weights.bin"
OPENVINO = (
    ("qnn: {packages: [onnxruntime-qnn==2.7.0]}", "openvino: {packages: [onnxruntime==1.31.1, onnxruntime-ep-openvino==1.8.1]}"),
    ("    toolchain: qnn\n    ep: QNNExecutionProvider\n", "    toolchain: openvino\n    ep: OpenVINOExecutionProvider\n"),
    ('    provider_options: {htp_graph_finalization_optimization_mode: "${vars.quality}"}\n', ""),
    ("  plain: {toolchain: qnn, ep: QNNExecutionProvider}\n", "  plain: {toolchain: openvino, ep: OpenVINOExecutionProvider}\n"),
)
SIZE = 4096
"""Size in bytes of each of the models' two weights. Both models have one of them."""


def write_source(path: Path, own: int, *, external: bool = False) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE // 4]) for name in "xy"]
    arrays = {name: numpy.random.default_rng(seed).random(SIZE // 4, numpy.float32) for name, seed in (("w", 0), ("own", own))}
    nodes = [helper.make_node("Add", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "own"], ["y"])]
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    proto = helper.make_model(helper.make_graph(nodes, "graph", ends[:1], ends[1:], tensors))
    onnx.save(proto, path, save_as_external_data=external, location=f"{path.stem}.data", size_threshold=0)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Return a checkout whose decoder models share weights, inline in one model and external in the other."""
    made = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    write_source(made.folder / "prefill.onnx", 1)
    write_source(made.folder / "decode.onnx", 2, external=True)
    return made


def watch(workshop: Workshop, look: Callable[[dict[str, Any], Path], None]) -> None:
    """Pass each request and its staging directory to `look` before the worker runs."""

    def supervise(command: Any, folder: Path, log: Path, **options: Any) -> Ending:
        look(json.loads((folder / "request.json").read_text(encoding="utf-8")), folder)
        return workshop.worker(command, folder, log, **options)

    workshop.run_worker = supervise


def note(workshop: Workshop) -> str:
    [event] = [event for event in workshop.events if isinstance(event, StepFinished) and event.step == SHARE]
    return event.note


def test_ep_reads_models_with_all_weights_in_one_file(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.write_recipe(ON)
    before = {path.name: path.read_bytes() for path in workshop.folder.iterdir() if path.is_file()}
    seen: dict[str, list[bytes]] = {}

    def look(request: dict[str, Any], folder: Path) -> None:
        for member in request["members"]:
            source = folder / member["source"]
            if member["name"] == "classifier":
                continue
            assert sorted(path.name for path in source.parent.iterdir()) == sorted([source.name, WEIGHTS])
            assert read_header(source).external_locations == (WEIGHTS,)
            data = (source.parent / WEIGHTS).read_bytes()
            places = [weight.external for weight in read_header(source).initializers]
            seen[member["name"]] = [data[place.offset :][: place.length] for place in places if place is not None]
            assert (source.parent / WEIGHTS).stat().st_size == 3 * SIZE

    watch(workshop, look)
    assert workshop.build().exit_code == 0
    assert seen == {
        name: [
            numpy_helper.to_array(tensor).tobytes() for tensor in onnx.load(workshop.folder / f"{name}.onnx").graph.initializer
        ]
        for name in ("prefill", "decode")
    }
    assert note(workshop) == "2 models, weights shared in ONNX: 12,288 bytes instead of 16,384"
    assert {path.name: path.read_bytes() for path in workshop.folder.iterdir() if path.is_file()} == before


def test_ep_with_weights_in_its_binary_emits_no_extra_file(workshop: Workshop) -> None:
    workshop.build()
    plain = workshop.contents().keys()
    workshop.write_recipe(ON)
    assert workshop.build(EMIT_DECODER).exit_code == 0
    assert workshop.contents().keys() == plain


def test_ep_that_reads_source_data_gets_the_shared_file(workshop: Workshop) -> None:
    workshop.packages = {"onnxruntime": "1.31.1", "onnxruntime-ep-openvino": "1.8.1"}
    workshop.write_recipe(*OPENVINO)
    assert workshop.build(EMIT_DECODER).exit_code == 0, workshop.events
    assert "decode.data" in workshop.contents()
    workshop.write_recipe(*OPENVINO, ON)
    assert workshop.build(EMIT_DECODER).exit_code == 0
    contents = workshop.contents()
    assert "decode.data" not in contents
    assert len(contents[WEIGHTS]) == 3 * SIZE
    manifest = json.loads(contents[MANIFEST])
    assert [model["source"]["weights_file"] for model in manifest["models"]] == [WEIGHTS, WEIGHTS]
    assert {file["path"]: file["role"] for file in manifest["files"]}[WEIGHTS] == "external-data"


def test_the_data_of_a_weightless_context_is_emitted_beside_its_model(workshop: Workshop) -> None:
    write_source(workshop.folder / "classifier.onnx", 3, external=True)
    workshop.packages = {"onnxruntime": "1.31.1", "onnxruntime-ep-openvino": "1.8.1"}
    plain = "  plain: {toolchain: openvino, ep: OpenVINOExecutionProvider, device: gpu"  # NPUs need a compiler for Windows
    for more, names in (("", set()), (", session_options: {ep.enable_weightless: true}", {"classifier.data"})):
        (_, _, _, (target, _)) = OPENVINO
        external = "    targets: [plain]\n    compile: {initializers: {store: external, file: rest, threshold: 0}}\n"
        workshop.write_recipe(*OPENVINO[:3], (target, f"{plain}{more}}}\n"), ("    targets: [plain]\n", external))
        assert workshop.build(EMIT_CLASSIFIER).exit_code == 0, workshop.events
        assert {name for name in workshop.contents("classifier") if name.endswith(".data")} == names


def test_weights_of_ep_and_source_models_are_emitted_once(workshop: Workshop) -> None:
    workshop.packages = {"onnxruntime": "1.31.1", "onnxruntime-ep-openvino": "1.8.1"}
    workshop.write_recipe(*OPENVINO, ("{layout: directory, ", '{layout: directory, include_source: "${model}.onnx", '))
    assert workshop.build(EMIT_DECODER).exit_code == 0, workshop.failures
    contents = workshop.contents()
    assert contents["decode.data"] == (workshop.folder / "decode.data").read_bytes()
    assert {"decode.onnx", "decode_ctx.onnx", "prefill.onnx"} <= contents.keys()
    listed = [file["path"] for file in json.loads(contents[MANIFEST])["files"]]
    assert sorted([*listed, MANIFEST]) == sorted(contents)


def test_disabling_shared_initializers_restores_the_earlier_result(workshop: Workshop) -> None:
    workshop.build()
    before = workshop.contents()
    workshop.write_recipe(ON)
    assert workshop.reasons(SHARE) == (
        "share initializers file added: decoder.weights.bin",
        "share initializers threshold added: 1024",
    )
    workshop.build()
    assert workshop.compiled == ["prefill+decode"]
    workshop.build()
    assert workshop.compiled == []
    workshop.write_recipe()
    workshop.build()
    assert (workshop.compiled, workshop.contents()) == ([], before)


def test_another_checkout_restores_shared_initializers(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.write_recipe(ON)
    workshop.build()
    other = workshop.checkout(tmp_path / "other", monkeypatch)
    other.build(EMIT_DECODER)
    assert other.compiled == []
    assert other.contents() == workshop.contents()


def test_threshold_above_all_weights_leaves_models_unchanged(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    write_source(workshop.folder / "decode.onnx", 2)
    workshop.write_recipe(
        (ON[0], ON[1].replace("true\n    share_initializers: true", "true\n    share_initializers: {threshold: 9999}"))
    )
    files: set[str] = set()
    watch(workshop, lambda _, folder: files.update(path.name for path in (folder / "in").rglob("*.*")))
    assert workshop.build(EMIT_DECODER).exit_code == 0
    assert files == {"prefill.onnx", "decode.onnx"}
    assert note(workshop) == "2 models, weights shared in ONNX: 0 bytes instead of 0"


def test_too_short_data_fails_the_step_and_names_both_files(workshop: Workshop) -> None:
    workshop.write_recipe(ON)
    (workshop.folder / "decode.data").write_bytes(bytes(100))
    assert workshop.build().exit_code == 1
    assert workshop.failures == ["EPB418"]
    [message] = [problem.message for event in workshop.events for problem in getattr(event, "problems", ())]
    assert "decode.onnx: the tensor 'w' needs bytes 0 to 4,096 of decode.data, which has 100" in message
