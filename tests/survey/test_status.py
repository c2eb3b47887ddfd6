"""`plan` and `run` together: correct outputs stay, and all others are reported with a reason and rebuilt."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from epbuild.cache.digests import Digests, StatKey
from epbuild.cache.garbage import discard_all
from epbuild.cache.state import FileMemory
from epbuild.cache.workspace import Workspace
from epbuild.core.defaults import MANIFEST
from epbuild.core.errors import PlanError, Problem, RecipeError, StoreError
from epbuild.engine.events import StepFinished, Warned
from epbuild.output.existing import OwnedFiles
from epbuild.survey.orphans import Outputs
from tests.support.fake_builds import (
    CLASSIFIER,
    COMPILES,
    EMIT_CLASSIFIER,
    EMIT_DECODER,
    LET_THE_CPU,
    SHARE,
    STEPS,
    Workshop,
    source_model,
    tamper,
)
from tests.support.moments import at_each_call, at_each_return

CURRENT = dict.fromkeys(STEPS, "current")
DECODER = [*COMPILES, SHARE]
EMIT_ZIP = "emit:decoder/npu/zip"


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


@pytest.fixture
def built(workshop: Workshop) -> Workshop:
    assert workshop.build().exit_code == 0
    assert workshop.compiled == ["prefill+decode", "classifier"]
    return workshop


def test_unbuilt_steps_are_new_and_a_query_writes_nothing(workshop: Workshop) -> None:
    assert workshop.states() == dict.fromkeys(STEPS, "new")
    assert not (workshop.folder / ".epbuild").exists()
    assert not workshop.cache.exists()


def test_built_steps_are_current_and_not_built_again(built: Workshop) -> None:
    assert built.states() == CURRENT
    before = {path: path.stat().st_mtime_ns for path in built.output().iterdir()}
    finished = built.build()
    assert (finished.exit_code, finished.current, finished.built) == (0, len(STEPS), 0)
    assert built.compiled == []
    assert before == {path: path.stat().st_mtime_ns for path in built.output().iterdir()}


def test_touched_file_rebuilds_nothing(built: Workshop) -> None:
    for name in ("prefill.onnx", "dist/decoder/decode_ctx.onnx"):
        os.utime(built.folder / name, ns=(1, 1))
    assert built.states() == CURRENT


def test_changed_model_outdates_only_its_own_group(built: Workshop) -> None:
    (built.folder / "decode.onnx").write_bytes(source_model(7.0))
    assert built.states() == {**CURRENT, **dict.fromkeys([*DECODER, EMIT_DECODER], "out of date")}
    [reason] = built.reasons(SHARE)
    assert reason.startswith("model decode changed: ")
    assert built.reasons(EMIT_DECODER) == (f"needs {SHARE}",)
    built.build()
    assert built.compiled == ["prefill+decode"]
    assert built.states() == CURRENT


def test_changed_option_outdates_the_steps_compiled_with_the_option(built: Workshop) -> None:
    built.write_recipe(("quality: 3", "quality: 1"))
    assert built.states() == {**CURRENT, **dict.fromkeys([*DECODER, EMIT_DECODER], "out of date")}
    assert built.reasons(SHARE) == ("option htp_graph_finalization_optimization_mode of QNNExecutionProvider changed: 3 -> 1",)


def test_changed_toolchain_version_outdates_everything(built: Workshop) -> None:
    built.packages["onnxruntime-qnn"] = "2.8.0"
    assert set(built.states().values()) == {"out of date"}
    assert built.reasons(CLASSIFIER) == ("package onnxruntime-qnn changed: 2.7.0 -> 2.8.0",)


def test_rebuild_with_equal_bytes_keeps_the_existing_files(built: Workshop) -> None:
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in built.output().iterdir()}
    bytes_before = built.contents()
    built.packages["onnxruntime-qnn"] = "2.8.0"
    assert built.build().built
    after = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in built.output().iterdir()}
    changed = {path.name for path in after if before[path] != after[path]}
    assert changed == {MANIFEST}  # it names the toolchain of the files, which has changed
    assert {name for name, content in built.contents().items() if content != bytes_before[name]} == {MANIFEST}
    assert not built.build().built


def test_reverting_to_an_earlier_recipe_needs_no_compile(built: Workshop) -> None:
    first = built.contents()
    built.write_recipe(("quality: 3", "quality: 1"))
    built.build()
    assert built.contents() != first
    built.write_recipe()
    assert built.states()[SHARE] == "restorable"
    built.build()
    assert built.compiled == []
    assert built.contents() == first
    assert built.states() == CURRENT


def test_another_checkout_restores_results_instead_of_compiling(
    built: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = built.checkout(tmp_path / "other", monkeypatch)
    assert other.states() == {
        **dict.fromkeys([*DECODER, CLASSIFIER], "restorable"),
        **dict.fromkeys([EMIT_DECODER, EMIT_CLASSIFIER], "new"),
    }
    finished = other.build()
    assert other.compiled == []
    assert finished.restored == len([*DECODER, CLASSIFIER])
    assert other.contents() == built.contents()
    assert other.states() == CURRENT


def put_link(path: Path) -> None:
    """Put a link in the place of a file, to the same content."""
    path.replace(path.with_name("x"))
    path.symlink_to("x")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a deleted model": (lambda folder: (folder / "decode_ctx.onnx").unlink(), "decode_ctx.onnx is missing"),
    "a deleted manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
    "a truncated binary": (
        lambda folder: (folder / "prefill_qnn.bin").write_bytes(b"short"),
        "prefill_qnn.bin has 5 bytes instead of",
    ),
    "an edited binary": (
        lambda folder: (folder / "prefill_qnn.bin").write_bytes((folder / "prefill_qnn.bin").read_bytes()[::-1]),
        "prefill_qnn.bin was changed",
    ),
    "a binary replaced by a link": (lambda folder: put_link(folder / "decode_ctx.onnx"), "decode_ctx.onnx is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_output_is_reported_and_restored_without_a_compile(built: Workshop, damage: str) -> None:
    if "link" in damage and sys.platform == "win32":
        pytest.skip("making links takes a privilege on Windows")
    before = built.contents()
    spoil, reason = DAMAGE[damage]
    spoil(built.output())
    assert built.states() == {**CURRENT, EMIT_DECODER: "restorable"}
    told, name = built.reasons(EMIT_DECODER), reason.split()[0]
    assert any(sentence.startswith(reason) for sentence in told)
    left = built.output() / name
    changed = os.path.lexists(left)
    assert (f"{name} was changed after epbuild wrote it, and will be kept" in told) == changed
    content = left.read_bytes() if changed else b""
    assert built.build().exit_code == 0
    assert built.compiled == []
    assert {name: data for name, data in built.contents().items() if name != "x" and ".saved" not in name} == before
    assert [path.read_bytes() for path in built.output().glob("*.saved")] == [content] * changed
    assert built.states() == CURRENT


def test_deleted_output_folder_is_restored_without_a_compile(built: Workshop) -> None:
    before = built.contents()
    for path in built.output().iterdir():
        path.unlink()
    built.output().rmdir()
    built.build()
    assert built.compiled == []
    assert built.contents() == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no time of the last change that a program cannot set")
def test_edit_with_equal_size_and_time_is_detected(built: Workshop) -> None:
    binary = built.output() / "prefill_qnn.bin"
    content = binary.read_bytes()
    with Workspace.open(built.folder / ".epbuild") as workspace:
        # As after a while, when the stat of a file is trusted.
        workspace.files.put_many({str(binary): (StatKey.of(binary), Digests(workspace.files).of(binary))})
    assert built.states() == CURRENT
    tamper(binary, content.replace(b"3", b"4"))
    assert built.states() == {**CURRENT, EMIT_DECODER: "restorable"}
    assert built.reasons(EMIT_DECODER) == ("prefill_qnn.bin was changed after epbuild wrote it, and will be kept",)


def test_emptied_store_has_no_effect_while_outputs_exist(built: Workshop) -> None:
    built.lose_blobs()
    assert built.states() == CURRENT
    assert built.build().exit_code == 0
    assert built.compiled == []


def test_output_with_a_lost_result_is_compiled_again(built: Workshop) -> None:
    before = built.contents()
    built.lose_blobs()
    (built.output() / "decode_ctx.onnx").unlink()
    assert built.states() == {**CURRENT, **dict.fromkeys(DECODER, "out of date"), EMIT_DECODER: "out of date"}
    assert built.reasons(EMIT_DECODER) == ("decode_ctx.onnx is missing",)
    assert built.reasons(SHARE) == ("its result is no longer in the store",)
    assert built.build().exit_code == 0
    assert built.compiled == ["prefill+decode"]
    assert built.contents() == before


def test_output_with_a_damaged_result_is_compiled_again(built: Workshop) -> None:
    before = built.contents()
    [blob] = [path for path in built.blobs() if path.read_bytes() == before["prefill_qnn.bin"]]
    blob.chmod(0o644)
    blob.write_bytes(bytes(blob.stat().st_size))
    (built.output() / "prefill_qnn.bin").unlink()
    assert built.build().exit_code == 0
    assert built.compiled == ["prefill+decode"]
    assert built.contents() == before


def draft_of_a_killed_build(output: Path) -> Path:
    """Create the draft that a build leaves beside an output if it is killed while it writes the output."""
    draft = output.with_name(f".{output.name}.epbuild-1234abcd")
    (draft / "made").mkdir(parents=True)
    (draft / "tree").mkdir()
    (draft / "tree" / "model.onnx").write_bytes(b"half of it")
    return draft


def test_leftovers_of_killed_builds_are_removed_without_a_compile(built: Workshop) -> None:
    before = built.contents()
    with Workspace.open(built.folder / ".epbuild") as workspace:
        built.memory(workspace).forget_steps(["share:decoder/npu"])
    for folder in ("cas", "actions"):
        discard_all(built.cache / folder)
    draft = draft_of_a_killed_build(built.output())
    assert built.build().exit_code == 0
    assert built.compiled == ["prefill+decode"]
    assert [event.outcome for event in built.events if isinstance(event, StepFinished) and event.step == EMIT_DECODER] == [
        "current"
    ]
    assert not draft.exists()
    assert built.contents() == before


def test_user_without_access_to_the_state_sees_new_steps(built: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
    assert (built.states(), built.survey().plan.warnings) == (CURRENT, ())
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    [warning] = built.survey().plan.warnings
    assert warning.code == "EPB513"
    assert warning.message.endswith("state.sqlite")
    assert built.states()[EMIT_DECODER] == "new"


def test_missing_toolchain_is_reported_as_the_reason(built: Workshop) -> None:
    built.toolchain_is_there = False
    assert set(built.states().values()) == {"out of date"}
    assert built.reasons(CLASSIFIER) == ("the toolchain 'qnn' is not provisioned yet",)


def test_missing_toolchain_before_the_first_build_is_no_error(workshop: Workshop) -> None:
    workshop.toolchain_is_there = False
    assert workshop.states() == dict.fromkeys(STEPS, "new")


def test_stricter_expectation_is_checked_against_existing_results(built: Workshop) -> None:
    built.write_recipe(("fallback_nodes: 1", "fallback_nodes: 0"))
    states = built.states()
    assert (states[SHARE], states[EMIT_DECODER], states[CLASSIFIER]) == ("out of date", "out of date", "current")
    assert built.reasons(SHARE) == tuple(
        f"QNNExecutionProvider did not compile 1 node of the model '{name}': 1 Relu. The recipe expects at most 0"
        for name in ("prefill", "decode")
    )
    before = built.contents()
    assert built.build().exit_code == 1
    assert built.failures == ["EPB609", "EPB609"]
    assert built.compiled == []
    assert built.contents() == before


def test_cpu_fallback_fails_its_step_unless_the_recipe_allows_the_fallback(workshop: Workshop) -> None:
    workshop.write_recipe((LET_THE_CPU, ""))
    assert workshop.build().exit_code == 1
    [problem] = workshop.problems
    assert (problem.code, problem.where) == ("EPB655", CLASSIFIER)
    assert problem.message == "QNNExecutionProvider did not compile 1 node of the model 'classifier': 1 Relu"
    assert problem.hint == (
        "To let the CPU run these nodes, write `expect: {fallback_nodes: 1}`, or end the target's `eps` with CPUExecutionProvider."
    )
    assert not workshop.output("classifier").exists()


WORDS = {
    "a number": "    expect: {fallback_nodes: 1}\n",
    "any": LET_THE_CPU,
}


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_allowing_the_fallback_causes_no_compile(workshop: Workshop, word: str) -> None:
    workshop.write_recipe((LET_THE_CPU, ""))
    workshop.build(CLASSIFIER)
    assert workshop.compiled == ["classifier"]
    workshop.write_recipe((LET_THE_CPU, word))
    assert workshop.build(CLASSIFIER).exit_code == 0
    assert workshop.compiled == []


def test_target_with_the_cpu_ep_last_allows_fallback(workshop: Workshop) -> None:
    eps = "plain: {toolchain: qnn, eps: [{ep: QNNExecutionProvider}, {ep: CPUExecutionProvider}]}"
    workshop.write_recipe((LET_THE_CPU, ""), ("plain: {toolchain: qnn, ep: QNNExecutionProvider}", eps))
    assert workshop.build(CLASSIFIER).exit_code == 0


def test_loosened_expectation_rebuilds_nothing(built: Workshop) -> None:
    built.write_recipe(("fallback_nodes: 1", "fallback_nodes: 2"))
    assert built.states() == CURRENT


def test_lost_state_causes_no_compile(built: Workshop) -> None:
    before = built.contents()
    for path in (built.folder / ".epbuild").glob("state.sqlite*"):
        path.unlink()
    assert built.build().exit_code == 0
    assert built.compiled == []
    assert built.contents() == before


def test_user_file_in_an_output_folder_survives_every_build(built: Workshop) -> None:
    note = built.output() / "notes" / "measured.txt"
    note.parent.mkdir()
    note.write_text("12 ms", encoding="utf-8")
    assert built.states() == CURRENT
    (built.folder / "decode.onnx").write_bytes(source_model(7.0))
    assert built.build().exit_code == 0
    assert note.read_text(encoding="utf-8") == "12 ms"


def test_renamed_artifacts_leave_no_old_files(built: Workshop) -> None:
    built.write_recipe(('"dist/${group}"', '"dist/${group}", model: "${model}.onnx"'))
    assert built.build().exit_code == 0
    assert built.compiled == []
    assert sorted(built.contents()) == ["decode.onnx", "manifest.json", "prefill.onnx", "prefill_qnn.bin"]


def test_model_that_differs_from_its_pin_is_refused_with_its_digest(workshop: Workshop) -> None:
    pin = f"{{path: decode.onnx, sha256: {'0' * 64}}}"
    workshop.write_recipe(("decode: decode.onnx", f"decode: {pin}"))
    with pytest.raises(PlanError) as refused:
        workshop.survey()
    [problem] = refused.value.problems
    assert problem.code == "EPB207"
    assert "'decode'" in problem.message


@pytest.mark.parametrize(
    ("pins", "told"),
    [
        ({"weights.bin": "0" * 64}, "the external data weights.bin of the model 'decode' does not match the recipe's pin"),
        ({"other.bin": "0" * 64}, "the model 'decode' has no external data other.bin, but the recipe pins it"),
    ],
)
def test_external_data_that_differs_from_its_pin_is_refused(workshop: Workshop, pins: dict[str, str], told: str) -> None:
    model = onnx.load(workshop.folder / "decode.onnx")
    weights = numpy_helper.from_array(np.arange(512, dtype=np.float32), "weights")
    model.graph.initializer.append(weights)
    onnx.save(model, workshop.folder / "decode.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    workshop.write_recipe(("decode: decode.onnx", f"decode: {{path: decode.onnx, data_sha256: {json.dumps(pins)}}}"))
    with pytest.raises(PlanError) as refused:
        workshop.survey()
    [problem] = refused.value.problems
    assert problem.code == "EPB207"
    assert problem.message.startswith(told)


def test_new_epbuild_release_emits_only_outputs_that_name_the_release(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = '  - {layout: directory, path: "dist/told/${group}", sbom: true}\n'
    workshop.write_recipe(("outputs:\n", f"outputs:\n{told}"))
    workshop.build()
    for module in ("output.bom", "output.tree", "output.provenance"):
        monkeypatch.setattr(f"epbuild.{module}.__version__", "1000.0")
    emissions = {step: state for step, state in workshop.states().items() if step.startswith("emit:")}
    assert {step for step, state in emissions.items() if state == "current"} == {
        step for step in emissions if "sbom" not in workshop.survey().actions[step].document
    }
    assert len(emissions) == 4
    [step] = [step for step, state in emissions.items() if state != "current" and "decoder" in step]
    [reason] = workshop.reasons(step)
    assert reason.startswith("epbuild's version changed: ")
    assert workshop.build().exit_code == 0
    assert set(workshop.states().values()) == {"current"}


def test_changed_image_description_emits_the_image_again(workshop: Workshop) -> None:
    image = ('path: "dist/${group}"}', 'archive: oci, path: "dist/${group}"}')
    workshop.write_recipe(("name: small\n", "name: small\ndescription: First.\n"), image)
    workshop.build()
    workshop.write_recipe(("name: small\n", "name: small\ndescription: Second.\n"), image)
    assert workshop.reasons("emit:decoder/npu/oci") == ("image description changed: First. -> Second.",)
    workshop.build()
    manifests = [data for path, data in workshop.contents().items() if b"org.opencontainers.image.description" in data]
    assert len(manifests) == 1
    assert b"Second." in manifests[0]


def test_impossible_output_is_reported_before_emitting_and_fails_alone(built: Workshop) -> None:
    model = onnx.load_from_string(source_model(2.0))
    (tensor, _) = model.graph.initializer
    tensor.CopyFrom(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    onnx.external_data_helper.set_external_data(tensor, "weights.bin")
    (built.folder / "weights.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    (built.folder / "classifier.onnx").write_bytes(model.SerializeToString())
    names = 'include_source: "${model}.base.onnx", context_binary: weights.bin, groups: [classifier]'
    built.write_recipe(
        ('  - {layout: directory, path: "dist/${group}"}', f'  - {{layout: directory, path: "dist/${{group}}", {names}}}')
    )
    assert built.build().exit_code == 1
    assert built.failures == ["EPB422"]
    assert built.reasons(EMIT_CLASSIFIER) == ("with 'include_source', two different files would be written to 'weights.bin'",)


def test_build_reports_the_end_of_every_step_once(workshop: Workshop) -> None:
    workshop.build()
    ended = [event.step for event in workshop.events if isinstance(event, StepFinished)]
    assert sorted(ended) == sorted(STEPS)


def warnings(workshop: Workshop) -> list[str]:
    return [event.problem.message for event in workshop.events if isinstance(event, Warned)]


def test_changed_file_that_is_no_longer_emitted_is_kept_and_reported(built: Workshop) -> None:
    (built.output() / "decode_ctx.onnx").write_bytes(b"mine")
    built.write_recipe(('path: "dist/${group}"', 'path: "dist/${group}", model: "${model}_npu.onnx"'))
    assert "decode_ctx.onnx was changed after epbuild wrote it, and will be kept" in built.reasons(EMIT_DECODER)
    assert not any("will be kept" in reason for reason in built.reasons(EMIT_CLASSIFIER))
    assert built.build().exit_code == 0
    [told] = warnings(built)
    assert told.replace(os.sep, "/").endswith("dist/decoder/decode_ctx.onnx was changed after epbuild wrote it and is kept")
    names = {"decode_ctx.onnx", "decode_npu.onnx", "prefill_npu.onnx", "prefill_qnn.bin", "manifest.json"}
    assert built.contents().keys() == names
    assert built.contents()["decode_ctx.onnx"] == b"mine"
    assert built.states() == CURRENT
    built.write_recipe()
    built.build()
    assert "EPB423" in built.failures, "from now on it is the user's"
    assert built.contents()["decode_ctx.onnx"] == b"mine"


def test_every_changed_file_is_saved_on_every_build(built: Workshop) -> None:
    manifest = built.output() / "manifest.json"
    for content in (b"first", b"second", b"second"):
        manifest.write_bytes(content)
        built.write_recipe(("name: small", f"name: {content.decode()}"))
        assert built.build().exit_code == 0
        assert len(warnings(built)) == 1
        assert json.loads(manifest.read_bytes())["recipe"] == content.decode()
    saved = {path.name: path.read_bytes() for path in built.output().glob("*.saved*")}
    assert saved == {"manifest.json.saved": b"first", "manifest.json.saved-2": b"second"}
    assert built.states() == CURRENT


def test_changed_archive_is_saved_beside_the_new_archive(built: Workshop) -> None:
    built.write_recipe(('path: "dist/${group}"', 'path: "dist/${group}.zip", archive: zip, provenance: true'))
    assert built.build().exit_code == 0
    archive, statement = (built.folder / "dist" / name for name in ("decoder.zip", "decoder.zip.intoto.json"))
    before = archive.read_bytes()
    archive.write_bytes(b"repacked")
    statement.write_bytes(b"noted")
    assert sum("will be kept" in reason for reason in built.reasons(EMIT_ZIP)) == 2
    assert built.build().exit_code == 0
    assert len(warnings(built)) == 2
    assert archive.read_bytes() == before
    assert archive.with_name("decoder.zip.saved").read_bytes() == b"repacked"
    assert statement.with_name("decoder.zip.intoto.json.saved").read_bytes() == b"noted"
    assert built.states()[EMIT_ZIP] == "current"


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_unrecorded_output_of_a_killed_build_is_not_saved_as_user_work(built: Workshop, form: str) -> None:
    """Check that no copy is kept, neither of the manifest nor of the archive, whose digests only the workspace knows."""
    change = [('path: "dist/${group}"', 'path: "dist/${group}.zip", archive: zip')] if form == "archive" else []
    built.write_recipe(*change)
    assert built.build().exit_code == 0

    def kill(call: object) -> None:
        raise KeyboardInterrupt

    for name in ("second", "third"):
        built.write_recipe(*change, ("name: small", f"name: {name}"))
        with pytest.raises(KeyboardInterrupt), at_each_call(Outputs.record, kill):
            built.build()
    built.write_recipe(*change, ("name: small", "name: fourth"))
    assert not any("kept" in reason for reason in built.reasons(EMIT_ZIP if form == "archive" else EMIT_DECODER))
    assert built.build().exit_code == 0
    assert warnings(built) == []
    assert not list((built.folder / "dist").rglob("*.saved*"))
    with Workspace.open(built.folder / ".epbuild") as workspace:
        assert workspace.facts("announced") == {}


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_output_of_a_deleted_workspace_is_not_saved_as_user_work_after_a_kill(built: Workshop, form: str) -> None:
    """Kill a build that has announced its files, but has not replaced the manifest or the archive, which nothing records."""
    change = [('path: "dist/${group}"', 'path: "dist/${group}.zip", archive: zip, provenance: true')] if form == "archive" else []
    built.write_recipe(*change)
    assert built.build().exit_code == 0
    shutil.rmtree(built.folder / ".epbuild")

    def kill(call: object) -> None:
        raise KeyboardInterrupt

    built.write_recipe(*change, ("name: small", "name: second"))
    with pytest.raises(KeyboardInterrupt), at_each_return(OwnedFiles.announce, kill):
        built.build()
    assert built.build().exit_code == 0
    assert warnings(built) == []
    assert not list((built.folder / "dist").rglob("*.saved*"))


def test_locked_state_at_any_moment_emits_nothing_outside_the_manifest(built: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    before = built.contents()
    with Workspace.open(built.folder / ".epbuild") as workspace:
        for path in built.output().iterdir():
            workspace.files.put_many({str(path): (StatKey.of(path), Digests(workspace.files).of(path))})
    (built.output() / "decode_ctx.onnx").unlink()
    link, linked = os.link, []

    def links(*arguments: Any, **options: Any) -> None:
        linked.append(arguments)
        link(*arguments, **options)

    def lock(call: object) -> None:
        if linked:
            raise StoreError(Problem("EPB507", "cannot use the state: database is locked"))

    monkeypatch.setattr(os, "link", links)
    with at_each_call(FileMemory.put_many, lock):
        assert built.build().exit_code == 0
    assert linked
    assert built.contents() == before


LONG = {
    "a folder": ('path: "dist/${group}"', f'path: "dist/{"d" * 245}${{group}}"'),
    "an archive": ('path: "dist/${group}"', f'path: "dist/{"d" * 241}${{group}}.zip", archive: zip'),
    "an image": ('path: "dist/${group}"', f'path: "dist/{"d" * 245}${{group}}", archive: oci'),
    "a package": ('directory, path: "dist/${group}"', f'ort-model-package, path: "dist/{"d" * 244}.ortpackage"'),
    "a model": ('path: "dist/${group}"', f'path: "dist/${{group}}", model: "{"m" * 240}${{model}}.onnx"'),
    "a binary": ('path: "dist/${group}"', f'path: "dist/${{group}}", context_binary: "{"b" * 251}.bin"'),
}


@pytest.mark.parametrize("change", LONG.values(), ids=LONG.keys())
def test_emitted_file_name_may_have_the_maximum_length(workshop: Workshop, change: tuple[str, str]) -> None:
    for name in ("small", "other"):
        workshop.write_recipe(change, ("name: small", f"name: {name}"))
        assert workshop.build().exit_code == 0, workshop.failures
    assert max(len(path.name) for path in (workshop.folder / "dist").rglob("*")) == 255
    assert set(workshop.states().values()) == {"current"}


@pytest.mark.parametrize(("layout", "said"), [("", "the key 'layout' is missing"), ("layout: tidy, ", "tidy")])
def test_unknown_layout_is_reported_with_its_place_among_other_problems(workshop: Workshop, layout: str, said: str) -> None:
    workshop.write_recipe(("layout: directory, ", layout))
    with pytest.raises(RecipeError) as caught:
        workshop.survey()
    [problem] = caught.value.problems
    assert said in problem.message
