"""Sizes in a build's result: each output against its predecessor, and the bytes that sharing saves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from epbuild.core.digest import Blob
from epbuild.onnxfile.read.weights import WeightBytes
from epbuild.plan.result import CompileResult, Measurements, ModelResult, ModelSignature
from epbuild.publish import sizes as sizes_of
from epbuild.publish.sizes import ChangedFile, OutputCompared, SharingSaved
from epbuild.session.events import OutputRemoved
from tests.support.fake_builds import EMIT_CLASSIFIER, EMIT_DECODER, SHARE, Workshop, sharing_group, source_model

EXPECT = "expect: {ep_context_nodes: 1, fallback_nodes: 1}"
GATE = EXPECT.replace("}", ", shared_bytes: {min_ratio: 0.3, measure: alone}}")
MORE = ("{htp_graph_finalization_optimization_mode", "{vtcm_mb: 8, htp_graph_finalization_optimization_mode")
"""Edit that adds an option. The fake worker writes options into the binary, which becomes larger."""


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def outputs(workshop: Workshop) -> dict[str, OutputCompared]:
    return {event.step: event for event in workshop.events if isinstance(event, OutputCompared)}


def savings(workshop: Workshop) -> list[SharingSaved]:
    return [event for event in workshop.events if isinstance(event, SharingSaved)]


def sizes(workshop: Workshop, group: str = "decoder") -> dict[str, int]:
    """Return the sizes of the emitted files, without the manifest."""
    return {name: len(data) for name, data in workshop.contents(group).items() if name != "manifest.json"}


def test_first_build_of_an_output_has_no_previous_sizes(workshop: Workshop) -> None:
    workshop.build()
    found = outputs(workshop)
    assert found.keys() == {EMIT_DECODER, EMIT_CLASSIFIER}
    assert found[EMIT_DECODER].before is None
    assert found[EMIT_DECODER].after == sum(sizes(workshop).values())
    assert found[EMIT_DECODER].files == tuple(ChangedFile(name, None, size) for name, size in sorted(sizes(workshop).items()))


def test_only_changed_files_are_reported(workshop: Workshop) -> None:
    workshop.build()
    before = sizes(workshop)
    workshop.write_recipe(MORE)
    workshop.build()
    after = sizes(workshop)
    assert after["prefill_qnn.bin"] > before["prefill_qnn.bin"]
    [found] = outputs(workshop).values()
    assert (found.step, found.before, found.after) == (EMIT_DECODER, sum(before.values()), sum(after.values()))
    assert found.files == (ChangedFile("prefill_qnn.bin", before["prefill_qnn.bin"], after["prefill_qnn.bin"]),)
    workshop.build()
    assert outputs(workshop) == {}


def test_archive_size_excludes_the_separate_statement(workshop: Workshop) -> None:
    archive = ('path: "dist/${group}"', 'archive: zip, provenance: true, path: "dist/${group}.zip"')
    workshop.write_recipe(archive)
    workshop.build()
    workshop.write_recipe(archive, MORE)
    workshop.build()
    [found] = (event for step, event in outputs(workshop).items() if "decoder" in step)
    [change] = found.files
    assert (change.path, change.before, change.after) == ("decoder.zip", found.before, found.after)


def test_different_bytes_of_equal_size_are_a_change(workshop: Workshop) -> None:
    workshop.build()
    workshop.write_recipe(("vars: {quality: 3}", "vars: {quality: 1}"))
    workshop.build()
    size = sizes(workshop)["prefill_qnn.bin"]
    assert outputs(workshop)[EMIT_DECODER].files == (ChangedFile("prefill_qnn.bin", size, size),)


def test_output_is_compared_with_its_existing_manifest(workshop: Workshop) -> None:
    workshop.build()
    before = sizes(workshop)
    shutil.rmtree(workshop.folder / ".epbuild")
    workshop.write_recipe(MORE)
    workshop.build()
    found = outputs(workshop)[EMIT_DECODER]
    assert found.before == sum(before.values())
    assert [file.path for file in found.files] == ["prefill_qnn.bin"]
    assert outputs(workshop)[EMIT_CLASSIFIER].files == ()


def test_moved_output_is_compared_with_its_old_folder(workshop: Workshop) -> None:
    workshop.build()
    workshop.write_recipe(("dist/${group}", "out/${group}"))
    workshop.build()
    found = outputs(workshop)[EMIT_DECODER]
    assert found.before == found.after
    assert found.files == ()
    assert {event.size > 0 for event in workshop.events if isinstance(event, OutputRemoved)} == {True}


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", '{"files": 3}', '{"files": [{"path": "a"}]}', '{"additional_metadata": []}', "[" * 10**5]
)
def test_invalid_manifest_falls_back_to_the_recorded_files(tmp_path: Path, text: str) -> None:
    recorded = {"a.bin": {"digest": "x", "size": 3}}
    assert sizes_of.read_last_files(tmp_path / "nowhere", recorded) == recorded
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    assert sizes_of.read_last_files(tmp_path, recorded) == recorded
    archive = tmp_path / "a.zip"
    archive.write_bytes(b"")
    assert sizes_of.read_last_files(archive, recorded) == recorded


def test_files_of_a_model_package_are_read_from_additional_metadata(tmp_path: Path) -> None:
    listed = [{"path": "decoder/npu/a.bin", "sha256": "ab" * 32, "size": 7}]
    document = {"schema_version": "1.0", "components": {}, "additional_metadata": {"epbuild": {"format": 1, "files": listed}}}
    (tmp_path / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    assert sizes_of.read_last_files(tmp_path, {}) == {"decoder/npu/a.bin": {"digest": "ab" * 32, "size": 7}}


def test_unlisted_files_are_not_a_change() -> None:
    file = {"a.bin": {"digest": "x", "size": 3}}
    names = ("manifest.json", "provenance.intoto.json", "decoder/npu/manifest.json")
    unlisted = {name: {"digest": "y", "size": 5} for name in names}
    assert sizes_of.compare_outputs("emit:a", "dist", file, {**file, **unlisted}) == OutputCompared("emit:a", "dist", 3, 3, ())


def test_possible_savings_equal_the_common_weights_of_the_sources(workshop: Workshop) -> None:
    (workshop.folder / "decode.onnx").write_bytes((workshop.folder / "prefill.onnx").read_bytes())
    workshop.build()
    assert savings(workshop) == [SharingSaved(SHARE, 64, 32, measured=False, made=sizes(workshop)["prefill_qnn.bin"])]
    workshop.build()
    assert savings(workshop) == []


def test_models_with_different_weights_in_one_binary_save_nothing(workshop: Workshop) -> None:
    (workshop.folder / "prefill.onnx").write_bytes(source_model(1.0, common=3.0))
    (workshop.folder / "decode.onnx").write_bytes(source_model(2.0, common=4.0))
    workshop.build()
    assert savings(workshop) == [SharingSaved(SHARE, 64, 64, measured=False, made=sizes(workshop)["prefill_qnn.bin"])]


def test_savings_are_measured_if_the_recipe_requires_a_ratio(workshop: Workshop) -> None:
    workshop.write_recipe((EXPECT, GATE))
    workshop.build()
    [found] = savings(workshop)
    assert found.measured
    assert found.shared == sizes(workshop)["prefill_qnn.bin"]
    assert found.shared < found.unshared < 2 * found.shared, "alone, a member is smaller than both together"


def test_savings_of_a_restored_result_are_reported(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.build()
    told = savings(workshop)
    other = workshop.checkout(tmp_path / "other", monkeypatch)
    other.build()
    assert other.compiled == []
    assert savings(other) == told


def test_group_without_sharing_saves_nothing(workshop: Workshop) -> None:
    workshop.write_recipe(("share_weights: true", "share_weights: false"))
    workshop.build()
    assert savings(workshop) == []


def result_of(first: str, second: str, weights: WeightBytes | None = None) -> CompileResult:
    """Return a result in which two models refer to these binaries."""
    models = (
        ModelResult(name, ModelSignature((), ()), f"{name}.onnx", {binary: "EP"}, (), (), 0, {})
        for name, binary in (("prefill", first), ("decode", second))
    )
    file = Blob("d", 10)
    return CompileResult({first: file, second: file}, file, Measurements(1.0, {}, None), tuple(models), source_weights=weights)


def test_savings_need_a_shared_file_and_counted_weights() -> None:
    group = sharing_group("prefill", "decode")
    weights = WeightBytes(1600, 1200)
    told = sizes_of.compute_savings(group, result_of("a.bin", "a.bin", weights))
    assert told is not None
    assert (told.unshared, told.shared, told.measured) == (1600, 1200, False)
    assert sizes_of.compute_savings(group, result_of("a.bin", "b.bin", weights)) is None
    assert sizes_of.compute_savings(group, result_of("a.bin", "a.bin")) is None, "made before weights were counted"
    assert sizes_of.compute_savings(group, result_of("a.bin", "a.bin", WeightBytes(0, 0))) is None
