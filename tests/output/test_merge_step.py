"""Merged groups: one emitted model in the place of several, in everything that describes the output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from epbuild.core.canonical import read_schema
from epbuild.diff.difference import compare
from epbuild.engine.events import StepFailed, StepFinished, StepOutput
from epbuild.onnxfile.read.headers import read_header
from epbuild.runtime.variants import find_variants
from epbuild.verify.artifact import find_artifacts
from epbuild.verify.live.source import NoSource, Sources
from epbuild.verify.static import check_artifact
from tests.support.fake_builds import Workshop, source_model

GROUP = "  classifier:\n    models: [classifier]\n"
MERGED = "  default: none\n  classifier:\n    models: [prefill, decode]\n    merge: SETTINGS\n"
SETTINGS = "{name: llm, connect: {prefill.y: decode.x}, prefixes: {decode: d_}}"
COMPILES = [f"compile:classifier/plain/{name}" for name in ("prefill", "decode")]
MERGE = "merge:classifier/plain"
EMIT = "emit:classifier/plain/directory"
ONLY = ("emit:classifier/*",)
MODEL = "llm_ctx.onnx"


def merging(workshop: Workshop, settings: str = SETTINGS, *more: tuple[str, str]) -> None:
    """Merge the group as `settings` say."""
    workshop.write_recipe((GROUP, MERGED.replace("SETTINGS", settings)), *more)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    merging(made)
    return made


@pytest.fixture
def merged(workshop: Workshop) -> Workshop:
    assert workshop.build(*ONLY).exit_code == 0
    assert workshop.compiled == ["prefill", "decode"]
    return workshop


def folder(workshop: Workshop) -> Path:
    return workshop.output("classifier")


def manifest(workshop: Workshop) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder(workshop) / "manifest.json").read_text(encoding="utf-8"))
    return found


def states(workshop: Workshop) -> dict[str, str]:
    return {step: state for step, state in workshop.states().items() if "classifier" in step}


def test_merged_output_has_one_model_and_all_binaries(merged: Workshop) -> None:
    assert sorted(merged.contents("classifier")) == ["decode_qnn.bin", MODEL, "manifest.json", "prefill_qnn.bin"]
    header = read_header(folder(merged) / MODEL)
    assert [node.reference for node in header.ep_context_nodes] == ["prefill_qnn.bin", "decode_qnn.bin"]
    assert ([value.name for value in header.inputs], [value.name for value in header.outputs]) == (["x"], ["d_y"])
    assert sorted(path.name for path in folder(merged).parent.iterdir()) == ["classifier"]


def test_merged_models_may_be_in_subfolders_of_the_output(workshop: Workshop) -> None:
    names = 'path: "dist/${group}", model: "m/${model}.onnx", context_binary: "m/bin/${model}.bin"'
    merging(workshop, SETTINGS, ('path: "dist/${group}"', names))
    assert workshop.build(*ONLY).exit_code == 0
    assert sorted(workshop.contents("classifier")) == ["m/bin/decode.bin", "m/bin/prefill.bin", "m/llm.onnx", "manifest.json"]
    nodes = read_header(folder(workshop) / "m/llm.onnx").ep_context_nodes
    assert [node.reference for node in nodes] == ["bin/prefill.bin", "bin/decode.bin"]


def test_embedded_contexts_are_merged_into_the_model(workshop: Workshop) -> None:
    merging(workshop, f"{SETTINGS}\n    compile: {{embed: true}}")
    assert workshop.build(*ONLY).exit_code == 0
    assert sorted(workshop.contents("classifier")) == [MODEL, "manifest.json"]
    assert [node.embed_mode for node in read_header(folder(workshop) / MODEL).ep_context_nodes] == [1, 1]


def test_merge_is_a_step_that_reports_its_connections(merged: Workshop) -> None:
    ended = [(event.step, event.outcome) for event in merged.events if isinstance(event, StepFinished)]
    assert ended[-2:] == [(MERGE, "built"), (EMIT, "emitted")]
    [note] = [event.note for event in merged.events if isinstance(event, StepFinished) and event.step == MERGE]
    assert note == "2 models"
    said = [event.text for event in merged.events if isinstance(event, StepOutput) and event.step == MERGE]
    assert said == ["prefill.y feeds decode.x"]


def test_current_merge_does_nothing(merged: Workshop) -> None:
    assert set(states(merged).values()) == {"current"}
    finished = merged.build(*ONLY)
    assert (finished.built, finished.current, merged.compiled) == (0, 4, [])


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS.replace("d_", "e_"),
        SETTINGS.replace("name: llm", "name: chat"),
        SETTINGS.replace("prefill.y: decode.x", ""),
        "{name: llm, prefixes: {prefill: p_, decode: d_}}",
    ],
)
def test_changed_settings_merge_again_without_a_compile(merged: Workshop, settings: str) -> None:
    before = merged.contents("classifier")
    merging(merged, settings)
    assert states(merged) == {COMPILES[0]: "current", COMPILES[1]: "current", MERGE: "out of date", EMIT: "out of date"}
    assert merged.reasons(MERGE) == merged.reasons(EMIT) != ()
    assert merged.build(*ONLY).exit_code == 0
    assert merged.compiled == []
    assert merged.contents("classifier") != before
    merging(merged)
    assert merged.build(*ONLY).exit_code == 0
    assert merged.contents("classifier") == before


def test_group_without_merge_emits_its_models_again(merged: Workshop) -> None:
    merged.write_recipe((GROUP, MERGED.replace("    merge: SETTINGS\n", "")))
    assert merged.build(*ONLY).exit_code == 0
    assert (merged.compiled, sorted(merged.contents("classifier"))) == (
        [],
        ["decode_ctx.onnx", "decode_qnn.bin", "manifest.json", "prefill_ctx.onnx", "prefill_qnn.bin"],
    )


def test_changed_weight_compiles_only_its_model_and_merges_again(merged: Workshop) -> None:
    before = merged.contents("classifier")
    (merged.folder / "decode.onnx").write_bytes(source_model(7.0))
    assert merged.build(*ONLY).exit_code == 0
    assert merged.compiled == ["decode"]
    after = merged.contents("classifier")
    assert {name for name in after if after[name] != before[name]} == {"decode_qnn.bin", "manifest.json"}


def test_unchanged_file_is_not_replaced(merged: Workshop) -> None:
    kept = {name: (folder(merged) / name).stat() for name in (MODEL, "prefill_qnn.bin")}
    (folder(merged) / "decode_qnn.bin").unlink()
    assert states(merged)[MERGE] == "restorable"
    assert merged.build(*ONLY).exit_code == 0
    for name, status in kept.items():
        assert (folder(merged) / name).stat().st_ino == status.st_ino
    assert set(states(merged).values()) == {"current"}


def test_models_lost_by_the_store_are_compiled_again_for_a_merge(merged: Workshop) -> None:
    before = merged.contents("classifier")
    merged.lose_blobs()
    (folder(merged) / MODEL).unlink()
    assert merged.build(*ONLY).exit_code == 0
    assert sorted(merged.compiled) == ["decode", "prefill"]
    assert merged.contents("classifier") == before


def test_equal_builds_have_equal_outputs(merged: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Workshop(tmp_path / "elsewhere", tmp_path / "another cache", monkeypatch)
    merging(other)
    assert other.build(*ONLY).exit_code == 0
    assert other.contents("classifier") == merged.contents("classifier")


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ("{name: llm}", "EPB627", "'prefill' and 'decode'"),
        (SETTINGS.replace("prefill.y", "prefill.q"), "EPB627", "'prefill' has no output 'q'"),
        (SETTINGS.replace("decode.x", "decode.q"), "EPB627", "'decode' has no input 'q'"),
    ],
)
def test_failed_merge_names_the_models_of_the_recipe_and_keeps_the_output(
    merged: Workshop, settings: str, code: str, words: str
) -> None:
    before = merged.contents("classifier")
    merging(merged, settings)
    assert merged.build(*ONLY).exit_code == 1
    [failed] = [event for event in merged.events if isinstance(event, StepFailed)]
    [problem] = failed.problems
    assert (failed.step, problem.where, problem.code) == (MERGE, MERGE, code)
    assert words in problem.message
    assert str(merged.folder) not in problem.text
    assert "--prefix" not in problem.text
    assert [event.outcome for event in merged.events if isinstance(event, StepFinished) and event.step == EMIT] == ["skipped"]
    assert merged.contents("classifier") == before
    assert [path.name for path in folder(merged).parent.iterdir()] == ["classifier"]


def test_manifest_lists_the_merged_model_and_the_source_of_each_member(merged: Workshop) -> None:
    document = manifest(merged)
    jsonschema.Draft202012Validator(read_schema("manifest")).validate(document)
    [model] = document["models"]
    assert (model["name"], model["file"], len(model["ep_context_nodes"]), model["fallback_nodes"]) == ("llm", MODEL, 2, 2)
    assert "source" not in model
    assert [member["name"] for member in model["merged"]] == ["prefill", "decode"]
    keys = {member["action_key"] for member in model["merged"]}
    assert len({*keys, model["action_key"]}) == 3
    assert [file["path"] for file in document["files"]] == ["decode_qnn.bin", MODEL, "prefill_qnn.bin"]


@pytest.mark.parametrize(
    "change", [lambda model: model.pop("merged"), lambda model: model.update(source=model["merged"][0]["source"])]
)
def test_model_has_its_own_source_or_sources_of_members(merged: Workshop, change: Callable[[Any], Any]) -> None:
    document = manifest(merged)
    change(document["models"][0])
    assert not jsonschema.Draft202012Validator(read_schema("manifest")).is_valid(document)


def test_verify_accepts_the_output_and_detects_a_flipped_byte(merged: Workshop) -> None:
    [artifact] = find_artifacts(folder(merged))
    assert [finding for finding in check_artifact(artifact) if finding.outcome == "failed" and finding.check != "target"] == []
    for name in ("prefill_qnn.bin", "decode_qnn.bin"):
        path = folder(merged) / name
        whole = path.read_bytes()
        path.unlink()
        path.write_bytes(b"?" + whole[1:])
        [artifact] = find_artifacts(folder(merged))
        assert ("digests", name) in {(item.check, item.subject) for item in check_artifact(artifact) if item.outcome == "failed"}
        path.write_bytes(whole)


def test_runtime_opens_the_output_as_one_model(merged: Workshop) -> None:
    [variant] = find_variants(folder(merged))
    assert variant.models == {"llm": folder(merged) / MODEL}
    assert variant.several


def test_difference_names_the_member_with_the_changed_source(
    merged: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Workshop(tmp_path / "elsewhere", tmp_path / "another cache", monkeypatch)
    merging(other)
    (other.folder / "decode.onnx").write_bytes(source_model(7.0))
    assert other.build(*ONLY).exit_code == 0
    told = {item.what for item in compare(folder(merged), folder(other)).differences}
    assert "llm: source file decode" in told
    assert not any("prefill" in what for what in told)
    assert not compare(folder(merged), folder(merged)).differences


def test_metrics_need_a_model_equivalent_to_the_merged_model(merged: Workshop) -> None:
    document = manifest(merged)
    with pytest.raises(NoSource, match=r"merged from prefill, decode; .* --source llm=FILE"):
        Sources({"": merged.folder / "decode.onnx"}).find("llm", document)
    source = Sources({"llm": merged.folder / "decode.onnx"}).find("llm", document)
    assert source.graph == merged.folder / "decode.onnx"
