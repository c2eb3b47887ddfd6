"""`verify --here`: the exit code says how this machine runs a model, with the real QNN EP."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest

from tests.support.projects import Project, toolchain_python

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]


def answer(project: Project, path: Path, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the exit code of `verify --here`, and the findings of loading by check."""
    python = str(toolchain_python("onnxruntime-qnn==2.7.0"))
    setting = ("--interpreter", python, "--option", "backend_type=htp")
    done = project.epbuild("verify", str(path), "--here", *setting, *arguments, "--json")
    found = json.loads(done.stdout)["findings"]
    return done.returncode, {item["check"]: item for item in found if item["check"] in ("sdk", "load", "here")}


def test_the_exit_code_tells_running_from_recompiling_and_never(quickstart: Project, tmp_path: Path) -> None:
    quickstart.build("epbuild.yaml", "emit:classifier/snapdragon-SM8750/*")
    folder = quickstart.folder / "dist/quickstart/classifier/snapdragon-SM8750"
    # The emulator opens the model, but the EP answers only for NPUs.
    code, found = answer(quickstart, folder)
    assert (code, found["here"]["fitness"], found["sdk"]["outcome"]) == (4, "runs", "passed")
    # A machine without an NPU cannot run it there.
    code, found = answer(quickstart, folder, "--device", "npu")
    assert (code, found["here"]["fitness"], found["here"]["code"]) == (6, "cannot", "EPB640")
    assert "has no suitable device" in found["here"]["message"]
    # Nor can an environment without the EP.
    code, found = answer(quickstart, folder, "--interpreter", sys.executable)
    assert (code, found["here"]["fitness"]) == (6, "cannot")
    assert "lacks the package onnxruntime-qnn for QNNExecutionProvider" in found["here"]["message"]

    # A model of a newer SDK is reported, and must be compiled again if it does not open.
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("classifier_ctx.onnx", "classifier_qnn.bin"):
        (copy / name).write_bytes((folder / name).read_bytes())
    model = onnx.load(copy / "classifier_ctx.onnx", load_external_data=False)
    [attribute] = [item for item in model.graph.node[0].attribute if item.name == "ep_sdk_version"]
    attribute.s = b"v2.60.0.270101"
    onnx.save(model, copy / "classifier_ctx.onnx")
    code, found = answer(quickstart, copy)
    assert (code, found["here"]["fitness"], found["sdk"]["outcome"]) == (4, "runs", "passed")
    newer = "It was compiled with the SDK v2.60.0.270101, which is newer than 2.51.0, the SDK of QNNExecutionProvider here."
    assert found["sdk"]["message"] == f"{newer} It opens nevertheless."
    (copy / "classifier_qnn.bin").write_bytes((folder / "classifier_qnn.bin").read_bytes()[:100_000])
    code, found = answer(quickstart, copy)
    assert (code, found["here"]["fitness"], found["load"]["outcome"]) == (5, "recompile", "failed")
    assert (found["sdk"]["message"], found["sdk"]["code"]) == (newer, "EPB669")
    assert found["sdk"]["hint"].startswith("Update onnxruntime-qnn on this machine")


def test_a_damaged_artifact_fails_as_without_here(quickstart: Project) -> None:
    quickstart.build("epbuild.yaml", "emit:classifier/snapdragon-SM8750/*")
    folder = quickstart.folder / "dist/quickstart/classifier/snapdragon-SM8750"
    (folder / "classifier_qnn.bin").unlink()
    code, found = answer(quickstart, folder)
    assert (code, found["here"]["fitness"]) == (1, "cannot")
