"""Decoders in onnxruntime-genai: it reads the emitted configuration and generates with the compiled models."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.output.genai import GenaiError, Stage, build_genai_config, check_base, check_stages
from tests.e2e.genai_runs import ask, genai_python
from tests.e2e.ort_package import CPU, QNN, open_package
from tests.support.projects import Project, copy_of_quickstart

ONLY_HERE = pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs contexts comes in the Linux wheel")
TARGET = "snapdragon-SM8750"
BASE: dict[str, Any] = {
    "model": {
        "context_length": 128,
        "vocab_size": 256,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "decoder": {
            "head_size": 24,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "inputs": {"past_key_names": "past_key_%d", "past_value_names": "past_value_%d"},
            "outputs": {"present_key_names": "present_key_%d", "present_value_names": "present_value_%d"},
            "sliding_window": {"window_size": 64, "alignment": "left", "slide_inputs": True, "slide_key_value_cache": False},
            "session_options": {"log_id": "tiny-llm", "provider_options": [{"cuda": {}}]},
        },
    },
    "search": {"max_length": 96, "do_sample": False},
}
GENAI_KEY = """\
    genai: {config: genai.json, roles: {prefill: prefill, decode: decode}, files: [tokenizer.json]}
"""
PACKAGE = """
  - {layout: ort-model-package, path: "dist/${group}.ortpackage", groups: [decoder], include_source: "${model}.onnx"}
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return genai_python()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, quickstart_store: Path) -> Path:
    """Build the quickstart's decoder, whose models share weights, and return its folder."""
    return _built(copy_of_quickstart(*_places(tmp_path_factory, "shared"), quickstart_store))


@pytest.fixture(scope="module")
def unshared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the decoder with a context binary for each model, as the emulator crashes on models that share weights."""
    project = copy_of_quickstart(*_places(tmp_path_factory, "unshared"))
    project.edit("share_weights: true", "share_weights: false")
    return _built(project)


def _places(factory: pytest.TempPathFactory, name: str) -> tuple[Path, Path]:
    folder = factory.mktemp(name)
    return folder / "quickstart", folder / "cache"


def _built(project: Project) -> Path:
    (project.folder / "genai.json").write_text(json.dumps(BASE), encoding="utf-8")
    (project.folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    project.edit("    expect: {ep_context_nodes: 1, fallback_nodes: 0}\n  classifier", f"{GENAI_KEY}  classifier")
    project.recipe.write_text(project.recipe.read_text(encoding="utf-8") + PACKAGE, encoding="utf-8")
    project.build("epbuild.yaml", "emit:decoder/*")
    return project.folder


def compiled(project: Path, place: Path) -> Path:
    """Copy the emitted decoder for one target, with its configuration for onnxruntime-genai."""
    shutil.copytree(project / "dist/quickstart/decoder" / TARGET, place)
    assert (place / "tokenizer.json").read_text(encoding="utf-8") == "{}"
    return place


def uncompiled(project: Path, place: Path) -> Path:
    """Copy the decoder before compilation, with a configuration."""
    shutil.copytree(project / "models/tiny-llm", place)
    (place / "genai_config.json").write_bytes(build_genai_config(BASE, base_stages(project)).data)
    return place


def stages_of(document: Mapping[str, Any]) -> list[Stage]:
    target = document["target"]
    return [
        Stage(
            model["name"],
            model["name"],
            model["file"],
            tuple(item["name"] for item in model["source"]["inputs"]),
            tuple(item["name"] for item in model["source"]["outputs"]),
            {"ep.share_ep_contexts": "1"} if document["share_weights"] else {},
            [(ep["ep"], ep["provider_options"]) for ep in target["eps"]],
        )
        for model in document["models"]
    ]


def test_a_genai_file_that_would_replace_a_source_model_is_refused(quickstart: Project) -> None:
    project = quickstart
    (project.folder / "genai.json").write_text(json.dumps(BASE), encoding="utf-8")
    (project.folder / "weights.bin").write_text("somebody else's", encoding="utf-8")
    files = GENAI_KEY.replace("tokenizer.json", "weights.bin")
    project.edit("    expect: {ep_context_nodes: 1, fallback_nodes: 0}\n  classifier", f"{files}  classifier")
    text = project.recipe.read_text(encoding="utf-8")
    project.recipe.write_text(text[: text.index("outputs:")] + "outputs:" + PACKAGE, encoding="utf-8")
    done = project.epbuild("run")
    assert done.returncode == 1
    assert "EPB422" in done.stderr
    assert "'decoder/base/weights.bin'" in " ".join(done.stderr.split())


def base_stages(project: Path) -> list[Stage]:
    manifest = project / "dist/quickstart/decoder" / TARGET / "manifest.json"
    stages = stages_of(json.loads(manifest.read_text(encoding="utf-8")))
    run = {"qnn.htp_perf_mode": "burst"}
    return [
        replace(stage, filename=f"{stage.name}.onnx", session_options={}, provider_options=(), run_options=run)
        for stage in stages
    ]


def test_genai_reads_the_configuration_of_models_that_share_a_context_binary(python: Path, built: Path, tmp_path: Path) -> None:
    folder = compiled(built, tmp_path / "decoder")
    stages = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]["pipeline"]
    for name, stage in zip(("prefill", "decode"), stages, strict=True):
        options = stage[name]["session_options"]
        assert options["ep.share_ep_contexts"] == "1"
        assert options["provider_options"] == [{"QNN": {"backend_type": "htp", "soc_model": "SM8750"}}]
    assert ask(python, folder, tmp_path / "answer.json") == {"read": True}


@ONLY_HERE
def test_genai_generates_the_same_tokens_with_compiled_models_as_with_their_sources(
    python: Path, unshared: Path, tmp_path: Path
) -> None:
    expected = ask(python, uncompiled(unshared, tmp_path / "sources"), tmp_path / "expected.json", tokens=3)
    found = ask(python, compiled(unshared, tmp_path / "decoder"), tmp_path / "found.json", tokens=3, qnn=True)
    # The NPU computes with 16 bits: the prompt's numbers are close, and the first tokens equal.
    assert found["logits"] == pytest.approx(expected["logits"], abs=0.02 * max(map(abs, expected["logits"])))
    assert found["tokens"] == expected["tokens"]
    assert found["logits"] != expected["logits"]


def test_a_decoder_is_one_component_with_its_configuration_in_each_variant(python: Path, built: Path, tmp_path: Path) -> None:
    package = built / "dist/decoder.ortpackage"
    component = open_package(package, sessions=False)["components"]["decoder"]
    assert component["variants"] == {"snapdragon-SC8380XP": QNN, TARGET: QNN, "base": CPU}
    manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    origin = manifest["components"]["decoder"]["variants"][TARGET]["additional_metadata"]["epbuild"]
    assert json.loads((package / origin["manifest"]).read_text(encoding="utf-8"))["target"]["name"] == TARGET
    assert (component["selected"], component["error"]) == ("base", None)
    # An application passes the folder of a selected variant to genai. The folder also has a manifest of epbuild.
    assert "tokens" in ask(python, package / component["folder"], tmp_path / "variant.json", tokens=1)
    # No wheel of onnxruntime-genai 0.15 to 0.18 can open packages, but they recognize one.
    whole = ask(python, package, tmp_path / "whole.json")
    assert whole.get("read") or "Model package support requires building onnxruntime-genai" in whole["error"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda base: base["model"].pop("context_length"), "context_length is 0 or was not set"),
        (lambda base: base["model"].update(pad_token_id=None), "Expected a number but saw a null"),
        (lambda base: base["model"].update(tokenizer_dir="\x01"), "Unsupported uXXXX code used"),
        (lambda base: base["model"].update(vocab_size=0), "vocab_size must be 1 or greater"),
        (lambda base: base["model"].update(eos_token_id=256), "must be in range [0, 256)"),
    ],
    ids=["no context length", "null", "control character", "no vocabulary", "no such token"],
)
def test_each_configuration_that_epbuild_refuses_fails_in_genai_too(
    python: Path, built: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    folder = uncompiled(built, tmp_path / "sources")
    document = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
    base = copy.deepcopy(BASE)
    change(document)
    change(base)
    (folder / "genai_config.json").write_text(json.dumps(document), encoding="utf-8")
    assert said in ask(python, folder, tmp_path / "answer.json", tokens=1)["error"]
    assert len(check_base(base)) == 1


def test_configurations_with_silently_wrong_tokens_are_refused(python: Path, built: Path, tmp_path: Path) -> None:
    right = ask(python, uncompiled(built, tmp_path / "right"), tmp_path / "right.json", tokens=3)
    folder = uncompiled(built, tmp_path / "wrong")
    document = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
    decoder = document["model"]["decoder"]

    names = decoder.pop("outputs")
    (folder / "genai_config.json").write_text(json.dumps(document), encoding="utf-8")
    assert ask(python, folder, tmp_path / "wrong.json", tokens=3)["tokens"] != right["tokens"]
    silent = copy.deepcopy(BASE)
    del silent["model"]["decoder"]["outputs"]
    assert all("model.decoder.outputs.present" in sentence for sentence in check_stages(silent, base_stages(built)))
    with pytest.raises(GenaiError):
        build_genai_config(silent, base_stages(built))

    decoder["outputs"] = names
    decoder["pipeline"] = [{"decoder": body} for stage in decoder["pipeline"] for body in stage.values()]
    (folder / "genai_config.json").write_text(json.dumps(document), encoding="utf-8")
    assert ask(python, folder, tmp_path / "twice.json", tokens=3)["tokens"] != right["tokens"]
    with pytest.raises(GenaiError, match="onnxruntime-genai treats them as one"):
        build_genai_config(BASE, [replace(stage, name="decoder") for stage in base_stages(built)])


def test_an_input_that_the_configuration_omits_is_refused(python: Path, built: Path, tmp_path: Path) -> None:
    folder = uncompiled(built, tmp_path / "sources")
    document = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
    document["model"]["decoder"]["inputs"]["position_ids"] = "positions"
    (folder / "genai_config.json").write_text(json.dumps(document), encoding="utf-8")
    assert "Missing Input: position_ids" in ask(python, folder, tmp_path / "answer.json", tokens=1)["error"]
    base = copy.deepcopy(BASE)
    base["model"]["decoder"]["inputs"]["position_ids"] = "positions"
    assert any("'position_ids'" in sentence for sentence in check_stages(base, base_stages(built)))
