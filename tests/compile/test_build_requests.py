"""Requests to a worker, and the names of its inputs: as the recipe says, for each EP and each member."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from epbuild.compile.executor import ALLOCATION
from epbuild.compile.node_names import prefix_nodes
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import CLASSIFIER, QNN, SHARE, Workshop
from tests.support.moments import at_each_call

OPENVINO = "OpenVINOExecutionProvider"


class RequestRecorder:
    """Wrapper of a workshop's worker that records the request of each session group, by its first member."""

    def __init__(self, workshop: Workshop) -> None:
        self.requests: dict[str, dict[str, Any]] = {}
        self.environments: dict[str, Mapping[str, str]] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self._worker = workshop.worker
        workshop.run_worker = self._supervise

    def _supervise(self, command: Any, folder: Path, log: Path, *, environment: Mapping[str, str], **options: Any) -> Ending:
        request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        first = request["members"][0]["name"]
        self.requests[first] = request
        self.environments[first] = environment
        self.files[first] = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }
        return self._worker(command, folder, log, environment=environment, **options)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


@pytest.fixture
def recorder(workshop: Workshop) -> RequestRecorder:
    return RequestRecorder(workshop)


PLAIN = "  plain: {toolchain: qnn, ep: QNNExecutionProvider}\n"
TWO_EPS = """\
  plain:
    toolchain: qnn
    eps:
      - {ep: QNNExecutionProvider, library: own/libqnn_ep.so, provider_options: {backend_path: own/libQnnHtp.so}}
      - {ep: OpenVINOExecutionProvider, provider_options: {disable_dynamic_shapes: yes}}
"""


@pytest.fixture
def with_two_eps(workshop: Workshop) -> Workshop:
    own = workshop.folder / "own"
    own.mkdir()
    for name in ("libqnn_ep.so", "libQnnHtp.so"):
        (own / name).write_bytes(name.encode())
    workshop.write_recipe(
        (PLAIN, TWO_EPS), ("[onnxruntime-qnn==2.7.0]", "[onnxruntime-qnn==2.7.0, onnxruntime-ep-openvino==1.8.1]")
    )
    return workshop


def test_worker_gets_the_eps_of_a_target_in_order_with_their_options(with_two_eps: Workshop, recorder: RequestRecorder) -> None:
    assert with_two_eps.build().exit_code == 0
    qnn, openvino = recorder.requests["classifier"]["eps"]
    assert (qnn["name"], openvino["name"]) == (QNN, OPENVINO)
    assert qnn["options"].keys() == {"backend_path"}
    assert openvino["options"] == {"disable_dynamic_shapes": "True"}


def test_custom_library_reaches_the_worker_as_an_absolute_path(with_two_eps: Workshop, recorder: RequestRecorder) -> None:
    with_two_eps.build()
    qnn, openvino = recorder.requests["classifier"]["here"]["eps"]
    assert Path(qnn["library"]) == (with_two_eps.folder / "own" / "libqnn_ep.so").resolve()
    [installed] = recorder.requests["prefill"]["here"]["eps"]
    assert (openvino["library"], installed["library"]) == (None, None)


def test_option_file_is_staged_under_its_given_name(with_two_eps: Workshop, recorder: RequestRecorder) -> None:
    with_two_eps.build()
    named = recorder.requests["classifier"]["eps"][0]["options"]["backend_path"]
    assert recorder.files["classifier"][named] == b"libQnnHtp.so"
    # The options that an EP writes into its output must be the same on every machine.
    assert str(with_two_eps.folder) not in named


@pytest.mark.parametrize("name", ["libQnnHtp.so", "libqnn_ep.so"])
def test_changed_file_of_a_target_causes_a_compile(with_two_eps: Workshop, name: str) -> None:
    with_two_eps.build()
    (with_two_eps.folder / "own" / name).write_bytes(b"another")
    with_two_eps.build()
    assert with_two_eps.compiled == ["classifier"]


def test_user_input_survives_a_build(with_two_eps: Workshop) -> None:
    def mine() -> dict[Path, bytes]:
        paths = (*with_two_eps.folder.glob("*.onnx"), *(with_two_eps.folder / "own").iterdir())
        return {path: path.read_bytes() for path in paths}

    before = mine()
    assert with_two_eps.build().exit_code == 0
    assert mine() == before


def test_each_ep_has_its_own_binary_and_the_manifest_names_both_binaries(with_two_eps: Workshop) -> None:
    assert with_two_eps.build().exit_code == 0
    output = with_two_eps.contents("classifier")
    binaries = {name: content for name, content in output.items() if name.endswith(".bin")}
    assert sorted(content.split(b":")[0] for content in binaries.values()) == [
        b"by OpenVINOExecutionProvider",
        b"by " + QNN.encode(),
    ]
    manifest = json.loads(output["manifest.json"])
    assert [ep["ep"] for ep in manifest["target"]["eps"]] == [QNN, OPENVINO]
    [model] = manifest["models"]
    assert {node["reference"] for node in model["ep_context_nodes"]} == binaries.keys()


def test_environment_of_a_target_reaches_only_its_worker(workshop: Workshop, recorder: RequestRecorder) -> None:
    environment = "environment: {QNN_QUALITY: '${vars.quality}', EMPTY: ''}"
    workshop.write_recipe((PLAIN, PLAIN.replace("}", f", {environment}}}", 1)))
    workshop.build()
    own = {"QNN_QUALITY": "3", "EMPTY": ""}
    assert recorder.environments == {"prefill": ALLOCATION, "classifier": {**ALLOCATION, **own}}
    manifest = json.loads(workshop.contents("classifier")["manifest.json"])
    assert manifest["target"]["environment"] == own


def test_memory_settings_of_a_target_override_the_default(workshop: Workshop, recorder: RequestRecorder) -> None:
    workshop.write_recipe((PLAIN, PLAIN.replace("}", ", environment: {GLIBC_TUNABLES: ''}}")))
    workshop.build()
    assert "glibc.malloc.top_pad=67108864" in recorder.environments["prefill"]["GLIBC_TUNABLES"].split(":")
    assert recorder.environments["classifier"] == {"GLIBC_TUNABLES": ""}


def test_changed_environment_causes_a_new_result(workshop: Workshop) -> None:
    workshop.build()
    workshop.write_recipe((PLAIN, PLAIN.replace("}", ", environment: {QNN_QUALITY: 3}}")))
    workshop.build()
    assert workshop.compiled == ["classifier"]


def test_member_settings_override_group_settings(workshop: Workshop, recorder: RequestRecorder) -> None:
    workshop.write_recipe(
        (
            "classifier: classifier.onnx}",
            "classifier: {path: classifier.onnx, load_from: memory, dimensions: {n: 4}}}",
        ),
        (
            "models: [classifier]\n",
            "models: [{model: classifier, compile: {node_name_prefix: '${model}_', embed: true}}, decode]\n",
        ),
        ("    targets: [plain]\n", "    targets: [plain]\n    compile: {graph_optimization_level: basic}\n"),
    )
    model = onnx.load_from_string((workshop.folder / "classifier.onnx").read_bytes())
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    (workshop.folder / "classifier.onnx").write_bytes(model.SerializeToString())
    assert workshop.build().exit_code == 0
    [classifier] = recorder.requests["classifier"]["members"]
    [decode] = recorder.requests["decode"]["members"]
    keys = ("read", "free_dimensions", "denoted_dimensions", "embed", "graph_optimization_level", "node_name_prefix")
    classifier, decode = ({**member, **member["compile"]} for member in (classifier, decode))
    assert [classifier[key] for key in keys] == ["bytes", {"n": 4}, {}, True, "basic", "classifier_"]
    assert [decode[key] for key in keys] == ["file", {}, {}, False, "basic", None]


def test_full_disk_after_the_compile_is_reported(workshop: Workshop) -> None:
    def fill(call: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with at_each_call(prefix_nodes, fill):
        assert workshop.build("compile:classifier/plain/classifier").exit_code == 3
    assert workshop.failures == ["EPB405"]


def test_expectation_applies_only_to_its_member(workshop: Workshop) -> None:
    workshop.write_recipe(
        ("models: [classifier]\n", "models: [{model: classifier, expect: {fallback_nodes: 0}}, decode]\n"),
    )
    assert workshop.build("compile:classifier/plain/decode").exit_code == 0
    assert workshop.build("compile:classifier/plain/classifier").exit_code == 1
    assert workshop.failures == ["EPB609"]


def test_half_written_files_of_killed_builds_are_removed(workshop: Workshop) -> None:
    drafts = [workshop.cache / folder / "tmp" for folder in ("cas", "actions")]
    for folder in drafts:
        folder.mkdir(parents=True)
        for name in ("old", "new"):
            (folder / name).write_bytes(b"half")
        os.utime(folder / "old", (1, 1))
    workshop.build()
    assert [[path.name for path in folder.iterdir()] for folder in drafts] == [["new"], ["new"]]


def test_worker_gets_the_key_document_and_the_unkeyed_options(with_two_eps: Workshop, recorder: RequestRecorder) -> None:
    assert with_two_eps.build().exit_code == 0
    for first, step in (("prefill", SHARE), ("classifier", CLASSIFIER)):
        sent, keyed = dict(recorder.requests[first]), with_two_eps.record(step).key_document
        sent.pop("here")
        sent.pop("session_options")
        for ep in sent["eps"]:
            ep.pop("options")
        expected = {**keyed, "eps": [{name: ep[name] for name in ep if name != "options"} for ep in keyed["eps"]]}
        expected.pop("session_options")
        assert sent == expected
