"""Invalid input: refused with one message and exit code 2 or 3, before anything is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.support.projects import RECIPES, Project

RECIPE = """
epbuild: 1
name: bad
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models:
  prefill: models/prefill.onnx
  decode: models/decode.onnx
targets:
  npu:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {backend_type: htp, soc_model: SM8750}
groups:
  decoder:
    models: [prefill, decode]
    targets: [npu]
    share_weights: true
outputs:
  - layout: directory
    path: dist/${group}/${target}
"""


def _recipe(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "epbuild.yaml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return change


def _truncate(folder: Path) -> None:
    path = folder / "models/decode.onnx"
    path.write_bytes(path.read_bytes()[:-100])


def _outside(folder: Path) -> None:
    shutil.move(folder / "models/weights.bin", folder / "weights.bin")
    path = folder / "models/decode.onnx"
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../weights.bin"
    path.write_bytes(model.SerializeToString())


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "models" / name).unlink()


CASES: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "a model that does not exist": (_remove("decode.onnx"), 2, "does not exist"),
    "a model that is cut off": (_truncate, 2, "not a complete ONNX file"),
    "a missing external data file": (_remove("weights.bin"), 2, "weights.bin"),
    "external data outside the model's folder": (_outside, 2, "outside its own folder"),
    "an unknown EP": (
        _recipe("QNNExecutionProvider", "QNNExecutionProvidr"),
        2,
        "Did you mean 'QNNExecutionProvider'?",
    ),
    "a package that does not exist": (
        _recipe("onnxruntime==1.31.1, onnxruntime-qnn==2.7.0", "onnxruntime-qnn==2.7.0, no-such-epbuild-package==1"),
        3,
        "no-such-epbuild-package",
    ),
    "two models with one name": (_recipe("  decode: models/", "  prefill: models/"), 2, "prefill"),
    "sharing with embed": (_recipe("share_weights: true", "share_weights: true\n    compile: {embed: true}"), 2, "embed"),
    "an output outside the recipe's folder": (_recipe("dist/${group}", "../dist/${group}"), 2, "is outside the recipe's folder"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_in_a_sentence_before_anything_is_written(project: Project, name: str) -> None:
    change, code, words = CASES[name]
    shutil.copytree(RECIPES / "models/tiny-llm", project.folder / "models")
    project.recipe.write_text(RECIPE, encoding="utf-8")
    change(project.folder)
    before = sorted(project.folder.rglob("*"))
    done = project.epbuild("run")
    assert done.returncode == code, done.stdout + done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    told = [line for line in done.stderr.splitlines() if "error:" in line]
    assert 1 <= len(told) <= 2, done.stderr  # a second one only where two places are wrong
    assert all(line.startswith("epbuild.yaml:") for line in told)
    assert sorted(project.folder.rglob("*")) == before
    assert not (project.cache / "cas").exists()


# ONNX Runtime or the EP was seen to accept each of these without an error.
SILENT = {
    "soc_modell: SM8750": "Did you mean 'soc_model'?",
    "htp_arch: 999": "'999'",
    "vtcm_mb: banana": "'banana'",
    "soc_model: SM9999": "'SM9999'",
    "backend_type: bogus": "'bogus'",
}
SILENT_KEYS = {"ep.share_ep_contexts: banana": "share_weights", "ep.not_a_key: 1": "no session key 'ep.not_a_key'"}


@pytest.mark.parametrize(("option", "words"), [*SILENT.items(), *SILENT_KEYS.items()])
def test_options_that_the_ep_would_ignore_silently_are_refused(project: Project, option: str, words: str) -> None:
    shutil.copytree(RECIPES / "models/tiny-llm", project.folder / "models")
    options = "session_options: {" + option if option in SILENT_KEYS else "provider_options: {" + option
    project.recipe.write_text(
        RECIPE.replace("provider_options: {backend_type: htp, soc_model: SM8750", options), encoding="utf-8"
    )
    for command in ("validate", "run"):
        done = project.epbuild(command)
        assert done.returncode == 2, done.stdout + done.stderr
        assert words in done.stderr
        assert "epbuild.yaml:13:" in done.stderr


def test_an_unknown_openvino_device_is_refused(project: Project) -> None:
    shutil.copytree(RECIPES / "models/tiny-llm", project.folder / "models")
    text = RECIPE
    for old, new in {
        "onnxruntime==1.31.1, onnxruntime-qnn==2.7.0": "onnxruntime-openvino==1.24.1",
        "    share_weights: true\n": "",
        "QNNExecutionProvider": "OpenVINOExecutionProvider",
        "{backend_type: htp, soc_model: SM8750}": "{device_type: NPUU}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    project.recipe.write_text(text, encoding="utf-8")
    done = project.epbuild("validate")
    assert done.returncode == 2
    assert "'NPUU'" in done.stderr
