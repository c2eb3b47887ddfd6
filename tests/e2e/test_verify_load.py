"""`epbuild verify --load` and `--numbers` with the real QNN EP: only good models pass."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.projects import Project, copy_of_quickstart, toolchain_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"
)

CLASSIFIER = "dist/quickstart/classifier/snapdragon-SM8750"
DECODER = "dist/quickstart/decoder/snapdragon-SM8750"
# In the context binary that onnxruntime-qnn 2.7.0 writes for the quickstart's classifier, these are weights.
WEIGHTS_AT = 172_032


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, quickstart_store: Path) -> Project:
    """Build the quickstart once for tests that only read it."""
    folder = tmp_path_factory.mktemp("built")
    project = copy_of_quickstart(folder / "quickstart", folder / "cache", quickstart_store)
    project.build("epbuild.yaml", "emit:*/snapdragon-SM8750/*")
    return project


@pytest.fixture
def damageable(quickstart: Project) -> Project:
    quickstart.build("epbuild.yaml", "emit:classifier/snapdragon-SM8750/*")
    return quickstart


def findings(project: Project, *arguments: str, status: int) -> dict[tuple[str, str], dict[str, Any]]:
    done = project.epbuild("verify", *arguments, "--json")
    assert done.returncode == status, done.stdout + done.stderr
    found = json.loads(done.stdout)["findings"]
    return {(item["check"], item["subject"]): item for item in found if item["check"] in {"load", "compatibility", "numbers"}}


def change_binary(project: Project, content: bytes) -> None:
    """Replace the classifier's context binary, and update the manifest to match."""
    folder = project.folder / CLASSIFIER
    (folder / "classifier_qnn.bin").unlink()
    (folder / "classifier_qnn.bin").write_bytes(content)
    document = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (listed,) = (file for file in document["files"] if file["path"] == "classifier_qnn.bin")
    listed |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_text(json.dumps(document), encoding="utf-8")


def test_the_unshared_classifier_has_the_numbers_of_its_source(built: Project) -> None:
    found = findings(built, CLASSIFIER, "--numbers", "--recipe", "epbuild.yaml", status=0)
    load, numbers = found["load", "classifier_ctx.onnx"], found["numbers", "classifier_ctx.onnx"]
    assert (load["outcome"], numbers["outcome"]) == ("passed", "passed")
    assert "with onnxruntime 1.31.1 and onnxruntime-qnn 2.7.0." in load["message"]
    assert "for seed 0 (generated inputs: weak evidence): probabilities: cosine " in numbers["message"]
    assert "; the worst value, for seed 0, is probabilities[0, " in numbers["message"]
    (figures,) = numbers["figures"]
    assert (figures["output"], figures["evidence"]) == ("probabilities", "made")
    assert figures["cosine"] > 0.999
    # On x86-64 the EP cannot check compatibility. That is reported, but is no failure.
    compatibility = found["compatibility", "classifier_ctx.onnx"]
    assert compatibility["outcome"] == "skipped"
    assert "QNNExecutionProvider did not report whether the model is compatible with this machine" in compatibility["message"]


def test_a_source_can_be_named_and_run_on_the_users_inputs(built: Project, tmp_path: Path) -> None:
    image = np.random.default_rng(5).standard_normal((1, 3, 32, 32)).astype(np.float32)
    np.savez(tmp_path / "image.npz", image=image)
    for number in (0, 1):
        place = tmp_path / f"sets/test_data_set_{number}"
        place.mkdir(parents=True)
        (place / "input_0.pb").write_bytes(numpy_helper.from_array(image * (number + 1), "image").SerializeToString())
    for inputs, words in (
        (tmp_path / "image.npz", "for image.npz: probabilities: cosine "),
        (tmp_path / "sets", "for 2 sets of inputs: probabilities: cosine "),
    ):
        arguments = ("--numbers", "--source", "classifier=models/classifier/classifier.onnx", "--inputs", str(inputs))
        found = findings(built, CLASSIFIER, *arguments, status=0)
        assert words in found["numbers", "classifier_ctx.onnx"]["message"]


def test_zeroed_weights_load_but_fail_with_the_worst_number_named(damageable: Project) -> None:
    content = bytearray((damageable.folder / CLASSIFIER / "classifier_qnn.bin").read_bytes())
    content[WEIGHTS_AT : WEIGHTS_AT + 64] = bytes(64)
    change_binary(damageable, bytes(content))
    assert damageable.epbuild("verify", CLASSIFIER).returncode == 0  # only its numbers reveal it
    found = findings(damageable, CLASSIFIER, "--numbers", "--recipe", "epbuild.yaml", status=1)
    assert found["load", "classifier_ctx.onnx"]["outcome"] == "passed"
    numbers = found["numbers", "classifier_ctx.onnx"]
    assert (numbers["outcome"], numbers["code"]) == ("failed", "EPB646")
    assert "; the worst value, for seed 0, is probabilities[0, " in numbers["message"]
    assert "expected 0." in numbers["message"]


def test_a_binary_that_the_ep_refuses_fails_with_the_eps_reason(damageable: Project) -> None:
    content = bytearray((damageable.folder / CLASSIFIER / "classifier_qnn.bin").read_bytes())
    content[8192:8256] = bytes(64)
    change_binary(damageable, bytes(content))
    found = findings(damageable, CLASSIFIER, "--numbers", "--recipe", "epbuild.yaml", status=1)
    load = found["load", "classifier_ctx.onnx"]
    assert (load["outcome"], load["code"]) == ("failed", "EPB641")
    assert "QNN_CONTEXT_ERROR_CREATE_FROM_BINARY" in load["message"]
    assert found["numbers", "classifier_ctx.onnx"]["outcome"] == "skipped"


def test_files_known_to_be_damaged_are_never_loaded(damageable: Project) -> None:
    binary = damageable.folder / CLASSIFIER / "classifier_qnn.bin"
    content = binary.read_bytes()
    binary.unlink()
    binary.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    found = findings(damageable, CLASSIFIER, "--load", status=1)
    assert found["load", "classifier_ctx.onnx"]["message"] == "It was not loaded, because one of its files failed a check."


def test_a_shared_context_that_x86_cannot_load_fails_only_on_request(built: Project) -> None:
    found = findings(built, DECODER, "--load", status=0)
    for name in ("prefill_ctx.onnx", "decode_ctx.onnx"):
        assert found["load", name]["outcome"] == "skipped"
        sentence = (
            "QNNExecutionProvider cannot load models that share weights here: on x86-64, loading a context with shared weights"
        )
        assert found["load", name]["message"].startswith(sentence)
    strict = findings(built, DECODER, "--load", "--strict", status=1)
    assert {strict["load", name]["code"] for name in ("prefill_ctx.onnx", "decode_ctx.onnx")} == {"EPB640"}


def test_openvino_models_that_linux_wheels_cannot_load_are_skipped(project: Project) -> None:
    """Skip OpenVINO models on any processor. The Linux wheels of onnxruntime-openvino cannot read a compiled model."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "abs", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), project.folder / "abs.onnx")
    project.recipe.write_text(
        """\
epbuild: 1
name: abs
toolchains: {openvino: {packages: [onnxruntime-openvino==1.24.1]}}
models: {abs: abs.onnx}
targets: {cpu: {toolchain: openvino, ep: OpenVINOExecutionProvider, provider_options: {device_type: CPU}}}
groups: {all: {models: [abs], targets: [cpu]}}
outputs: [{layout: directory, path: dist}]
""",
        encoding="utf-8",
    )
    project.build()
    load = findings(project, "dist", "--load", status=0)["load", "abs_ctx.onnx"]
    assert load["outcome"] == "skipped"
    sentence = (
        "OpenVINOExecutionProvider cannot load the CPU models that it compiles here: the Linux wheels lack OpenVINO's IR frontend"
    )
    assert load["message"].startswith(sentence)


def test_a_shared_context_is_compared_through_its_unshared_model(built: Project) -> None:
    found = findings(built, DECODER, "--numbers", "--recipe", "epbuild.yaml", status=0)
    for name in ("prefill_ctx.onnx", "decode_ctx.onnx"):
        assert found["numbers", name]["outcome"] == "passed"
        assert "These figures are for the same model compiled without sharing" in found["numbers", name]["message"]
    without = findings(built, DECODER, "--numbers", status=0)
    assert without["numbers", "decode_ctx.onnx"]["outcome"] == "skipped"
    assert (
        "to compile the model without sharing and compare its outputs, pass --recipe"
        in without["numbers", "decode_ctx.onnx"]["message"]
    )
    unshared = built.recipe.read_text(encoding="utf-8").replace("share_weights: true", "share_weights: false")
    (built.folder / "unshared.yaml").write_text(unshared, encoding="utf-8")
    plan = json.loads(built.epbuild("plan", "unshared.yaml", "compile:decoder/snapdragon-SM8750/*", "--json").stdout)
    assert [step["state"] for step in plan["steps"]] == ["restorable"] * 2, "the check stored what it compiled"


_CRASHING = """
import os
from types import SimpleNamespace

__version__ = "1.99.0"
register_execution_provider_library = lambda name, path: None
hardware = SimpleNamespace(type=SimpleNamespace(name="NPU"), vendor="Acme", metadata={})
get_ep_devices = lambda: [SimpleNamespace(ep_name="QNNExecutionProvider", device=hardware, ep_metadata={})]


class SessionOptions:
    def add_provider_for_devices(self, devices, options):
        pass


class InferenceSession:
    def __init__(self, file, **options):
        os.write(2, b"[ERROR] the driver is gone\\n")
        os.abort()
"""


def test_an_unexplained_crash_is_reported_as_a_crash(built: Project, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    for name, text in (("onnxruntime", _CRASHING), ("onnxruntime_qnn", "get_library_path = lambda: 'none.so'\n")):
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text(text, encoding="utf-8")
        (packages / f"{name}-1.99.0.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.99.0\n"
        (packages / f"{name}-1.99.0.dist-info/METADATA").write_text(metadata, encoding="utf-8")
    (packages / "onnxruntime/capi").mkdir()
    (packages / "onnxruntime/capi/onnxruntime_pybind11_state.py").touch()
    found = findings(built, CLASSIFIER, "--load", "--interpreter", str(tmp_path / "env/bin/python"), status=1)
    load = found["load", "classifier_ctx.onnx"]
    assert (load["outcome"], load["code"]) == ("failed", "EPB642")
    assert (
        load["message"]
        == "The process crashed (SIGABRT) while the model was being opened. The EP logged: [ERROR] the driver is gone."
    )


def test_a_foreign_model_is_loaded_with_the_users_settings(built: Project, tmp_path: Path) -> None:
    for name in ("classifier_ctx.onnx", "classifier_qnn.bin"):
        (tmp_path / name).write_bytes((built.folder / CLASSIFIER / name).read_bytes())
    model = str(tmp_path / "classifier_ctx.onnx")
    missing = built.epbuild("verify", model, "--load")
    assert missing.returncode == 2
    assert "--interpreter" in missing.stderr
    with_it = ("--interpreter", str(toolchain_python("onnxruntime-qnn")), "--source", "models/classifier/classifier.onnx")
    lacking = findings(built, model, "--numbers", *with_it, status=1)
    assert "Could not determine default backend path" in lacking["load", "classifier_ctx.onnx"]["message"]
    found = findings(built, model, "--numbers", *with_it, "--option", "backend_type=htp", status=0)
    assert found["numbers", "classifier_ctx.onnx"]["outcome"] == "passed"


def test_a_device_missing_from_this_machine_skips_the_load(built: Project) -> None:
    found = findings(built, CLASSIFIER, "--load", "--device", "npu", status=0)
    assert found["load", "classifier_ctx.onnx"]["outcome"] == "skipped"
    assert "has no suitable device; available: cpu from" in found["load", "classifier_ctx.onnx"]["message"]


def test_a_source_with_another_digest_is_refused(built: Project) -> None:
    model = onnx.load(built.folder / "models/classifier/classifier.onnx")
    model.producer_name = "another"
    onnx.save(model, built.folder / "another.onnx")
    found = findings(built, CLASSIFIER, "--numbers", "--source", "another.onnx", status=1)
    assert found["numbers", "classifier_ctx.onnx"]["code"] == "EPB647"


def test_archives_are_loaded_and_compared_like_folders(built: Project, tmp_path: Path) -> None:
    text = built.recipe.read_text(encoding="utf-8")
    outputs = text.index("outputs:")
    built.recipe.with_name("packed.yaml").write_text(
        text[:outputs] + "outputs:\n"
        '  - {layout: directory, archive: tar.zst, path: "packed/${group}-${target}.tar.zst", groups: [classifier], provenance: true}\n'
        '  - {layout: directory, archive: oci, path: "packed/${group}-${target}", groups: [classifier]}\n',
        encoding="utf-8",
    )
    built.build("packed.yaml", "emit:classifier/snapdragon-SM8750/*")
    for name in ("packed/classifier-snapdragon-SM8750.tar.zst", "packed/classifier-snapdragon-SM8750"):
        found = findings(built, name, "--numbers", "--recipe", "epbuild.yaml", status=0)
        assert found["load", "classifier_ctx.onnx"]["outcome"] == "passed"
        assert found["numbers", "classifier_ctx.onnx"]["outcome"] == "passed"


def test_messages_of_onnx_runtime_name_the_archive_of_the_file(built: Project, tmp_path: Path) -> None:
    folder = built.folder / CLASSIFIER
    model = onnx.load(folder / "classifier_ctx.onnx")
    model.ir_version = 99
    with zipfile.ZipFile(built.folder / "newer.zip", "w") as archive:
        archive.writestr("classifier_ctx.onnx", model.SerializeToString())
        archive.write(folder / "classifier_qnn.bin", "classifier_qnn.bin")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    built.environment.update(dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary)))
    interpreter = str(toolchain_python("onnxruntime-qnn==2.7.0"))
    done = built.epbuild("verify", "newer.zip", "--load", "--interpreter", interpreter, "--option", "backend_type=htp")
    for name in ("TMPDIR", "TEMP", "TMP"):
        del built.environment[name]
    assert done.returncode == 1
    assert "Load model from newer.zip/classifier_ctx.onnx failed" in " ".join(done.stdout.split())
    assert str(temporary) not in done.stdout + done.stderr
    assert not list(temporary.glob("epbuild*"))
