"""`epbuild verify`: all faults that bytes can show, by name, before any EP opens a file, and no false ones."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epbuild.verify.artifact import find_artifacts
from epbuild.verify.findings import Finding
from epbuild.verify.static import check_artifact, find_faulty_models
from tests.onnxfile.context_models import encapsulated
from tests.support.compiled_models import (
    BINARY,
    GRAPHS,
    OPENVINO,
    QNN,
    SHARED,
    SIGNATURE,
    compatible,
    context_node,
    emitted,
    list_files,
    relu,
    save,
)

CHECKS = (
    "manifest", "files", "digests", "model", "schema", "references", "source data", "source", "target", "partitions", "sharing",
    "signature",
)  # fmt: skip

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return emitted(tmp_path / "dist")


def findings(path: Path) -> list[Finding]:
    return [finding for artifact in find_artifacts(path) for finding in check_artifact(artifact)]


def failures(path: Path) -> set[tuple[str, str, str | None]]:
    """Return the check, the subject and the code of each failure."""
    failed = [finding for finding in findings(path) if finding.outcome == "failed"]
    assert all(finding.message.endswith(".") and finding.code for finding in failed)
    return {(finding.check, finding.subject, finding.code) for finding in failed}


def test_a_complete_artifact_passes_every_check(folder: Path) -> None:
    found = findings(folder)
    assert {finding.outcome for finding in found} == {"passed"}
    assert tuple(dict.fromkeys(finding.check for finding in found)) == CHECKS


def test_a_valid_manifest_does_not_load_the_explaining_validator(folder: Path) -> None:
    code = (
        "import sys, pathlib, epbuild.verify.manifest as m\n"
        "assert m.read_manifest(pathlib.Path(sys.argv[1])).document\nassert 'jsonschema' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(folder / "manifest.json")], check=True)


def test_a_source_in_another_spelling_passes_every_check(folder: Path) -> None:
    for name, graph in GRAPHS.items():
        known = {"ep_compatibility_info.qnn": compatible("60")}
        save(folder / f"{name}_ctx.onnx", context_node(partition_name=graph, source="Qnn"), metadata=known)
    list_files(folder)
    found = findings(folder)
    assert {finding.outcome for finding in found} == {"passed"}
    assert "Its compatibility string is for SC8380XP." in {finding.message for finding in found}


def test_the_manifest_can_be_named_instead_of_the_folder(folder: Path) -> None:
    assert findings(folder / "manifest.json") == findings(folder)


def test_a_single_model_is_checked_as_far_as_possible_without_a_manifest(folder: Path) -> None:
    found = findings(folder / "decode_ctx.onnx")
    assert {finding.check for finding in found if finding.outcome == "passed"} >= {"model", "schema", "references", "source"}
    assert {finding.check for finding in found if finding.outcome == "skipped"} == {"manifest", "signature"}
    assert not [finding for finding in found if finding.outcome == "failed"]


def test_findings_are_yielded_one_by_one(folder: Path) -> None:
    [artifact] = find_artifacts(folder)
    coming = check_artifact(artifact)
    assert isinstance(coming, Iterator)
    assert next(coming).check == "manifest"
    (folder / "llm.bin").unlink()
    assert any(finding.code == "EPB615" for finding in coming)


def binary(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "llm.bin").write_bytes(content)


def decode(*nodes: Any, **options: Any) -> Callable[[Path], object]:
    return lambda folder: save(folder / "decode_ctx.onnx", *nodes, **options)


def node(reference: str | None = "llm.bin", **changes: Any) -> Any:
    return context_node(reference, **{"partition_name": GRAPHS["decode"], **changes})


def flipped(at: int) -> bytes:
    return SHARED[:at] + bytes([SHARED[at] ^ 1]) + SHARED[at + 1 :]


def without(made: Any, name: str) -> Any:
    kept = [attribute for attribute in made.attribute if attribute.name != name]
    del made.attribute[:]
    made.attribute.extend(kept)
    return made


STATEMENT = "provenance.intoto.json"
MODEL, BIN = "decode_ctx.onnx", "llm.bin"
DIGEST: set[tuple[str, str, str | None]] = {("digests", BIN, "EPB613")}

FAULTS: dict[str, tuple[Callable[[Path], object], set[tuple[str, str, str | None]]]] = {
    "a missing binary": (
        lambda folder: (folder / BIN).unlink(),
        {("files", BIN, "EPB615"), ("references", MODEL, "EPB605"), ("references", "prefill_ctx.onnx", "EPB605")},
    ),
    "an empty binary": (
        binary(b""),
        DIGEST | {("references", MODEL, "EPB605"), ("references", "prefill_ctx.onnx", "EPB605")},
    ),
    "a truncated binary": (binary(SHARED[: len(SHARED) // 2]), DIGEST),
    "a binary without its last byte": (binary(SHARED[:-1]), DIGEST),
    "another model's binary": (
        binary(BINARY + b"QNNExecutionProvider_99_1_0"),
        DIGEST | {("partitions", MODEL, "EPB618"), ("partitions", "prefill_ctx.onnx", "EPB618")},
    ),
    "a random binary": (binary(bytes(range(256)) * 4), DIGEST),
    "one bit flipped at the start": (binary(flipped(0)), DIGEST),
    "one bit flipped among the weights": (binary(flipped(len(SHARED) - 100)), DIGEST),
    "64 weight bytes zeroed": (binary(SHARED[:-100] + bytes(64) + SHARED[-36:]), DIGEST),
    "a binary for another target": (
        binary(SHARED.replace(b"SC8380XP", b"SM8750")),
        DIGEST | {("target", BIN, "EPB608")},
    ),
    "a truncated model": (
        lambda folder: (folder / MODEL).write_bytes((folder / MODEL).read_bytes()[:-4]),
        {("digests", MODEL, "EPB613"), ("model", MODEL, "EPB602"), ("sharing", "decoder", "EPB607")},
    ),
}


def stated(folder: Path) -> Path:
    """Add a provenance statement to the folder, as `provenance: true` does."""
    manifest = folder / "manifest.json"
    document = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps({**document, "provenance": STATEMENT}), encoding="utf-8")
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    subjects = [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()]
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": subjects}
    (folder / STATEMENT).write_text(json.dumps(statement), encoding="utf-8")
    return folder


def test_a_statement_about_the_emitted_files_passes(folder: Path) -> None:
    found = findings(stated(folder))
    assert {finding.outcome for finding in found} == {"passed"}
    assert [finding.subject for finding in found if finding.check == "provenance"] == [STATEMENT]


def rewritten(name: str, old: str, new: str) -> Callable[[Path], object]:
    def rewrite(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")

    return rewrite


UNSTATED: dict[str, tuple[Callable[[Path], object], tuple[str, str]]] = {
    "no statement": (lambda folder: (folder / STATEMENT).unlink(), (STATEMENT, "EPB615")),
    "a statement outside the folder": (
        rewritten("manifest.json", STATEMENT, "../provenance.json"),
        ("../provenance.json", "EPB615"),
    ),
    "no JSON": (lambda folder: (folder / STATEMENT).write_bytes(b"\xff"), (STATEMENT, "EPB613")),
    "another document": (rewritten(STATEMENT, "in-toto.io", "example.com"), (STATEMENT, "EPB613")),
    "a list": (lambda folder: (folder / STATEMENT).write_text("[]"), (STATEMENT, "EPB613")),
    "another manifest": (rewritten("manifest.json", "cpython-3.11", "cpython-3.12"), ("manifest.json", "EPB613")),
    "a file of another digest": (rewritten(STATEMENT, hashlib.sha256(SHARED).hexdigest(), "0" * 64), (BIN, "EPB613")),
    "an unlisted file": (rewritten(STATEMENT, BIN, "other.bin"), (BIN, "EPB613")),
}


@pytest.mark.parametrize("name", UNSTATED)
def test_a_statement_about_other_files_is_found(folder: Path, name: str) -> None:
    spoil, (subject, code) = UNSTATED[name]
    spoil(stated(folder))
    assert failures(folder) == {("provenance", subject, code)}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_file_is_found_by_every_check_that_can_detect_faults(folder: Path, name: str) -> None:
    spoil, expected = FAULTS[name]
    spoil(folder)
    assert failures(folder) == expected


EDITS: dict[str, tuple[Callable[[Path], object], set[tuple[str, str, str | None]], str]] = {
    "a reference upwards": (
        decode(node("../llm.bin")),
        {("references", MODEL, "EPB605"), ("sharing", "decoder", "EPB607")},
        "contains '..'",
    ),
    "a reference down and up": (
        decode(node("b/../llm.bin")),
        {("references", MODEL, "EPB605"), ("sharing", "decoder", "EPB607")},
        "'..'",
    ),
    "an absolute reference": (
        decode(node("/opt/llm.bin")),
        {("references", MODEL, "EPB605"), ("sharing", "decoder", "EPB607")},
        "is an absolute path",
    ),
    "a Windows reference": (
        decode(node("bin\\llm.bin")),
        {("references", MODEL, "EPB605"), ("sharing", "decoder", "EPB607")},
        "contains a backslash",
    ),
    "an empty reference": (
        decode(node("")),
        {("schema", MODEL, "EPB614"), ("references", MODEL, "EPB605"), ("sharing", "decoder", "EPB607")},
        "is missing or empty",
    ),
    "no reference": (
        decode(node(None)),
        {("schema", MODEL, "EPB614"), ("sharing", "decoder", "EPB607")},
        "no context: ep_cache_context is missing or empty",
    ),
    "another EP's source": (decode(node(source=OPENVINO)), {("source", MODEL, "EPB604")}, f"compiled by '{OPENVINO}'"),
    "an unknown source": (decode(node(source="QnnEP")), {("source", MODEL, "EPB604")}, "compiled by 'QnnEP'"),
    "no source": (decode(without(node(), "source")), {("source", MODEL, "EPB604")}, "has no source"),
    "main_context 0 on the only node": (
        decode(node(main_context=0)),
        {("schema", MODEL, "EPB614"), ("sharing", "decoder", "EPB607")},
        "no node with the source 'QNNExecutionProvider' has main_context 1",
    ),
    "a context on a secondary node": (
        decode(node(), node(main_context=0)),
        {("schema", MODEL, "EPB614")},
        "main_context 0 but contains a context",
    ),
    "main_context 2": (
        decode(node(main_context=2)),
        {("schema", MODEL, "EPB614")},
        "main_context 2, but the value must be 0 or 1",
    ),
    "embed_mode 7": (
        decode(node(embed_mode=7)),
        {("schema", MODEL, "EPB614"), ("sharing", "decoder", "EPB607")},
        "embed_mode 7, but the value must be 0 or 1",
    ),
    "no embed_mode, which means 1": (
        decode(without(node(), "embed_mode")),
        {("schema", MODEL, "EPB614"), ("sharing", "decoder", "EPB607")},
        "the file name 'llm.bin' instead of a context; its embed_mode must be 0",
    ),
    "an attribute of another type": (
        decode(node(max_size="big")),
        {("schema", MODEL, "EPB614")},
        "max_size of type STRING, but the type must be INT",
    ),
    "a negative max_size": (decode(node(max_size=-1)), {("schema", MODEL, "EPB614")}, "has the negative max_size -1"),
    "an edited partition": (
        decode(node(partition_name="QNNExecutionProvider_24_1_0")),
        {("partitions", MODEL, "EPB618")},
        "its context contains 'QNNExecutionProvider_17_1_0' instead",
    ),
    "a compatibility string for another target": (
        decode(node(), metadata={f"ep_compatibility_info.{QNN}": compatible("69")}),
        {("target", MODEL, "EPB608")},
        "is for SM8750, not for SC8380XP",
    ),
    "a model that was not compiled": (
        decode(relu()),
        {("model", MODEL, "EPB603"), ("sharing", "decoder", "EPB607")},
        "no part of it was compiled",
    ),
    "external data that is missing": (
        decode(node(), external="w.data"),
        {("references", MODEL, "EPB605")},
        "The external data file 'w.data' does not exist.",
    ),
    "external data elsewhere": (decode(node(), external="../w.data"), {("references", MODEL, "EPB605")}, "contains '..'"),
    "an embedded context in a sharing group": (
        decode(node(None, embed_mode=1, ep_cache_context=SHARED)),
        {("sharing", "decoder", "EPB607")},
        "decode_ctx.onnx refers to no context binary",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_fault_in_a_model_is_found_even_if_the_manifest_lists_it(folder: Path, name: str) -> None:
    (folder.parent / "llm.bin").write_bytes(SHARED)
    (folder.parent / "w.data").write_bytes(b"weights")
    spoil, expected, words = EDITS[name]
    spoil(folder)
    list_files(folder)
    assert failures(folder) == expected
    assert any(words in finding.message for finding in findings(folder) if finding.outcome == "failed")


@pytest.mark.parametrize("name", EDITS)
def test_faults_are_found_in_models_without_a_manifest(folder: Path, name: str) -> None:
    spoil, expected, _ = EDITS[name]
    (folder / "manifest.json").unlink()
    spoil(folder)
    # Without a manifest, the requested settings and the sharers of weights are unknown.
    beyond = {"another EP's source", "an unknown source"}
    left = set() if name in beyond else {row for row in expected if row[0] not in {"sharing", "model"}}
    if name == "a compatibility string for another target":
        left = {("target", BIN, "EPB608")}
    assert failures(folder) == left


def test_a_binary_for_another_target_than_its_model_names_is_found(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    binary(SHARED.replace(b"SC8380XP", b"SM8750"))(folder)
    assert failures(folder / MODEL) == {("target", BIN, "EPB608")}
    assert any(
        "compiled for SM8750, not for SC8380XP, the target in decode_ctx.onnx." in found.message
        for found in findings(folder / MODEL)
    )


@needs_links
@pytest.mark.parametrize("target", ["file", "folder"])
def test_a_link_out_of_the_artifact_is_not_followed(folder: Path, target: str) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (folder / BIN).rename(elsewhere / BIN)
    if target == "file":
        (folder / BIN).symlink_to(elsewhere / BIN)
        reference = BIN
    else:
        (folder / "linked").symlink_to(elsewhere)
        reference = f"linked/{BIN}"
        decode(node(reference))(folder)
    found = failures(folder)
    assert ("references", MODEL, "EPB605") in found
    assert ("files", BIN, "EPB615") in found
    assert any("is a link to a path outside" in finding.message for finding in findings(folder))
    assert not any(finding.check == "target" and finding.subject == reference for finding in findings(folder))


@needs_links
def test_a_model_that_links_outside_the_artifact_is_not_read(folder: Path) -> None:
    (folder / MODEL).rename(folder.parent / MODEL)
    (folder / MODEL).symlink_to(folder.parent / MODEL)
    assert {("files", MODEL, "EPB615"), ("model", MODEL, "EPB602")} <= failures(folder)


@needs_links
def test_a_link_that_stays_inside_is_followed(folder: Path) -> None:
    (folder / "bin").mkdir()
    (folder / BIN).rename(folder / "bin" / BIN)
    (folder / BIN).symlink_to(Path("bin") / BIN)
    assert failures(folder) == set()


def test_models_with_separate_binaries_are_not_a_sharing_group(folder: Path) -> None:
    decode(node("other.bin"))(folder)
    (folder / "other.bin").write_bytes(SHARED)
    list_files(folder)
    assert failures(folder) == {("sharing", "decoder", "EPB607")}
    list_files(folder, share=False)
    assert failures(folder) == set()


def test_a_binary_that_two_unshared_models_refer_to_is_a_failure(folder: Path) -> None:
    list_files(folder, share=False)
    assert failures(folder) == {("sharing", BIN, "EPB607")}


def test_an_unlisted_file_is_reported_and_not_a_failure(folder: Path) -> None:
    (folder / "README.txt").write_text("mine", encoding="utf-8")
    [skipped] = [finding for finding in findings(folder) if finding.outcome == "skipped"]
    assert (skipped.check, skipped.subject) == ("files", "README.txt")
    assert failures(folder) == set()


def test_an_unlisted_file_that_a_model_needs_is_a_failure(folder: Path) -> None:
    list_files(folder, leave_out=[BIN])
    assert failures(folder) == {("references", MODEL, "EPB605"), ("references", "prefill_ctx.onnx", "EPB605")}


def test_external_data_of_the_source_must_have_been_emitted(folder: Path) -> None:
    decode(node(), external="w.data")(folder)
    (folder / "w.data").write_bytes(b"weights")
    data = {**SIGNATURE, "external_data": {"w.data": "ef" * 32}}
    list_files(folder, source=data, leave_out=["w.data"])
    assert failures(folder) == {("source data", MODEL, "EPB616"), ("references", MODEL, "EPB605")}
    list_files(folder, source=data)
    assert failures(folder) == set()


def test_external_data_too_short_for_its_tensors_is_found_without_a_manifest(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    save(model, node(), external="w.data", extent=(64, 16))
    (tmp_path / BIN).write_bytes(SHARED)
    (tmp_path / "w.data").write_bytes(bytes(80))
    assert failures(model) == set()
    (tmp_path / "w.data").write_bytes(bytes(79))
    assert failures(model) == {("references", "m.onnx", "EPB605")}


def test_weights_beside_a_context_are_checked_with_it(tmp_path: Path) -> None:
    model = encapsulated(tmp_path / "m.onnx")
    assert failures(model) == set()
    eps = [{"ep": OPENVINO, "provider_options": {}}]
    encapsulated(tmp_path / "dist/prefill_ctx.onnx")
    list_files(tmp_path / "dist", share=False, eps=eps, models=["prefill"], leave_out=["net.bin"], source={})
    assert failures(tmp_path / "dist") == {("references", "prefill_ctx.onnx", "EPB605")}
    (tmp_path / "net.bin").write_bytes(bytes(31))
    assert failures(model) == {("references", "m.onnx", "EPB605")}
    (tmp_path / "net.bin").unlink()
    assert failures(model) == {("references", "m.onnx", "EPB605")}


def test_models_that_share_weights_through_the_sources_data_need_that_data(tmp_path: Path) -> None:
    for name in GRAPHS:
        save(tmp_path / f"{name}_ctx.onnx", context_node(f"{name}.bin", source=OPENVINO))
        (tmp_path / f"{name}.bin").write_bytes(b"blob")
    (tmp_path / "w.data").write_bytes(b"weights")
    eps = [{"ep": OPENVINO, "provider_options": {}}]
    data = {**SIGNATURE, "external_data": {"w.data": "ef" * 32}}
    list_files(tmp_path, eps=eps, source=data)
    assert failures(tmp_path) == set()
    list_files(tmp_path, eps=eps, source=data, leave_out=["w.data"])
    assert failures(tmp_path) == {("sharing", "w.data", "EPB616")}
    # They were compiled with another file in place of the source's external data.
    (tmp_path / "group.weights.bin").write_bytes(b"weights")
    replaced = {**data, "weights_file": "group.weights.bin"}
    list_files(tmp_path, eps=eps, source=replaced, leave_out=["w.data"])
    assert failures(tmp_path) == set()
    list_files(tmp_path, eps=eps, source=replaced, leave_out=["group.weights.bin"])
    assert failures(tmp_path) == {("sharing", "group.weights.bin", "EPB616")}


@pytest.mark.parametrize("requested", [True, False], ids=["by the target", "in the metadata"])
def test_models_with_weightless_contexts_need_the_data_of_their_source(tmp_path: Path, requested: bool) -> None:
    metadata = None if requested else {"weightless_mode": "1"}
    save(tmp_path / "prefill_ctx.onnx", context_node("m.bin", source=OPENVINO), metadata=metadata)
    (tmp_path / "m.bin").write_bytes(b"blob")
    (tmp_path / "w.data").write_bytes(b"weights")
    eps = [{"ep": OPENVINO, "provider_options": {}}]
    options = {"ep.enable_weightless": "1"} if requested else {}
    listing: dict[str, Any] = {"share": False, "eps": eps, "models": ["prefill"], "session_options": options}
    data = {**SIGNATURE, "external_data": {"w.data": "ef" * 32}}
    list_files(tmp_path, source=data, **listing)
    assert failures(tmp_path) == set()
    list_files(tmp_path, source=data, leave_out=["w.data"], **listing)
    assert failures(tmp_path) == {("source data", "prefill_ctx.onnx", "EPB616")}


def test_contexts_without_any_weights_need_the_source_model(tmp_path: Path) -> None:
    node = context_node("m.bin", source=OPENVINO, onnx_model_filename="m.onnx")
    model = save(tmp_path / "m_ctx.onnx", node, metadata={"weightless_mode": "2"})
    (tmp_path / "m.bin").write_bytes(b"blob")
    [found] = [finding for finding in findings(model) if finding.check == "source data"]
    assert (found.outcome, found.code) == ("failed", "EPB616")
    assert found.message == "Its contexts contain no weights, and the source model 'm.onnx' does not exist."
    (tmp_path / "m.onnx").write_bytes(b"a model")
    assert failures(model) == set()
    model = save(tmp_path / "m_ctx.onnx", node, metadata={"weightless_mode": "9"})
    assert [finding.message for finding in findings(model) if finding.check == "source data"] == [
        "Its weightless_mode '9' is unknown."
    ]


def test_a_fault_of_one_model_does_not_prevent_loading_others(tmp_path: Path) -> None:
    for name, graph in GRAPHS.items():
        save(tmp_path / f"{name}_ctx.onnx", context_node(f"{name}.bin", partition_name=graph), external=f"{name}.data")
        (tmp_path / f"{name}.bin").write_bytes(SHARED)
        (tmp_path / f"{name}.data").write_bytes(b"0123456789abcdef")
    list_files(tmp_path, share=False)
    (tmp_path / "notes.txt").write_text("listed", encoding="utf-8")

    def faulty(check: str, subject: str) -> dict[str, str]:
        [artifact] = find_artifacts(tmp_path)
        found = [*check_artifact(artifact), Finding(check, subject, "failed"), Finding("files", "decode.bin", "skipped")]
        return find_faulty_models(artifact, found)

    own = "one of its files failed a check"
    for subject in ("prefill_ctx.onnx", "prefill.bin", "prefill.data"):
        assert faulty("digests", subject) == {"prefill_ctx.onnx": own}
    everything = ["decode_ctx.onnx", "prefill_ctx.onnx"]
    for subject in ("manifest.json", "."):
        assert sorted(faulty("manifest", subject)) == everything
        assert set(faulty("manifest", subject).values()) == {f"the check 'manifest' of {subject} failed"}


SIGNATURES: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"name": "z"}, "The source's input 'z' is missing."),
    "another type": ({"type": "int64"}, "The input 'x' is float32; in the source it is int64."),
    "another size": ({"shape": [5, None, "n"]}, "has the shape [4, ?, n]; in the source it is [5, ?, n]"),
    "another rank": ({"shape": [4, None]}, "in the source it is [4, ?]"),
    "a size that is open now": ({"shape": [4, 7, "n"]}, "in the source it is [4, 7, n]"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_an_input_that_differs_from_the_source_is_a_failure(folder: Path, name: str) -> None:
    changes, words = SIGNATURES[name]
    list_files(folder, source={**SIGNATURE, "inputs": [{**SIGNATURE["inputs"][0], **changes}]})
    assert failures(folder) == {("signature", MODEL, "EPB617"), ("signature", "prefill_ctx.onnx", "EPB617")}
    assert any(words in finding.message for finding in findings(folder))


def test_a_dynamic_dimension_of_the_source_can_have_a_fixed_size(folder: Path) -> None:
    for shape in (["batch", None, "n"], [-1, -1, "n"], None):
        list_files(folder, source={**SIGNATURE, "inputs": [{**SIGNATURE["inputs"][0], "shape": shape}]})
        assert failures(folder) == set()


def test_a_wrongly_declared_output_is_compared_with_its_computed_shape(folder: Path) -> None:
    declared = {**SIGNATURE["outputs"][0], "shape": [5, None, "n"]}
    for computed, outcome in (([4, None, "n"], "passed"), ([4, None], "failed"), (None, "passed")):
        list_files(folder, source={**SIGNATURE, "outputs": [{**declared, "computed": computed}]})
        told = [finding for finding in findings(folder) if finding.check == "signature"]
        assert {finding.outcome for finding in told} == {outcome}
        if computed is not None and outcome == "passed":
            words = "The source declares the output 'y' as [5, ?, n]; ONNX Runtime computed [4, ?, n]."
            assert {finding.message for finding in told} == {words}


def test_without_source_data_in_the_manifest_the_signature_is_skipped(folder: Path) -> None:
    list_files(folder, source={})
    assert {finding.outcome for finding in findings(folder) if finding.check == "signature"} == {"skipped"}


def test_a_target_is_compared_in_any_spelling_of_the_manifest(folder: Path) -> None:
    for soc, wrong in {"60": set(), "sc8380xp": set(), "SM8750": {("target", BIN, "EPB608")}}.items():
        list_files(folder, eps=[{"ep": QNN, "provider_options": {"soc_model": soc}}])
        assert {row for row in failures(folder) if row[1] == BIN} == wrong


def test_an_unknown_ep_is_checked_by_name(folder: Path) -> None:
    decode(node(source="AcmeExecutionProvider"))(folder)
    list_files(folder, eps=[{"ep": "AcmeExecutionProvider", "provider_options": {"speed": "11"}}])
    assert failures(folder) == {("source", "prefill_ctx.onnx", "EPB604")}


def test_an_embedded_context_is_read_from_the_model(tmp_path: Path) -> None:
    model = save(tmp_path / "m_ctx.onnx", node(None, embed_mode=1, ep_cache_context=SHARED))
    assert failures(model) == set()
    list_files(tmp_path, share=False, models=["m"], eps=[{"ep": QNN, "provider_options": {"soc_model": "SM8750"}}])
    assert failures(tmp_path) == {("target", "m_ctx.onnx", "EPB608")}
    save(model, node(None, embed_mode=1, ep_cache_context=BINARY + b"QNNExecutionProvider_17_1_0"))
    assert failures(model) == {("partitions", "m_ctx.onnx", "EPB618")}


def test_a_node_that_uses_another_nodes_context_can_be_empty(tmp_path: Path) -> None:
    """Check the form in which OpenVINO writes it."""
    second = context_node(None, embed_mode=1, main_context=0, ep_cache_context=b"", partition_name=GRAPHS["prefill"])
    model = save(tmp_path / "m.onnx", node(None, embed_mode=1, ep_cache_context=SHARED), second)
    assert failures(model) == set()
    assert [finding.outcome for finding in findings(model) if finding.check == "partitions"] == ["passed", "passed"]


def test_a_context_without_graph_names_is_not_a_failure(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", node())
    (tmp_path / BIN).write_bytes(BINARY)
    assert failures(model) == set()
    assert {finding.outcome for finding in findings(model) if finding.check == "partitions"} == {"skipped"}


def test_only_graphs_of_eps_that_find_them_by_node_may_have_a_prefix(tmp_path: Path) -> None:
    for source, outcome in ((QNN, "passed"), (OPENVINO, "skipped")):
        model = save(tmp_path / "m.onnx", node(source=source, partition_name=f"other_{source}_17_1_0"))
        (tmp_path / BIN).write_bytes(BINARY + f"model_{source}_17_1_0".encode())
        assert {finding.outcome for finding in findings(model) if finding.check == "partitions"} == {outcome}


@pytest.mark.parametrize("graph", ["1", "graph_1", "1_0"])
def test_graph_names_that_are_nearly_numbers_are_not_confused(tmp_path: Path, graph: str) -> None:
    model = save(tmp_path / "m.onnx", node(partition_name=graph))
    (tmp_path / BIN).write_bytes(BINARY + b" 27 graph_2 2_0")
    assert failures(model) == set()


@pytest.mark.skipif(sys.platform == "win32" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_a_failure_and_not_a_crash(folder: Path) -> None:
    (folder / BIN).chmod(0)
    assert ("digests", BIN, "EPB600") in failures(folder)
