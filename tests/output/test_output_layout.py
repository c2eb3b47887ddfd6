"""Layouts: every artifact has the name that the recipe gives, and every reference follows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from epbuild.core.digest import Blob
from epbuild.core.errors import BuildError
from epbuild.output.files import OutputFile, RelinkedModel
from epbuild.output.parts import arrange
from epbuild.plan.result import CompileResult, Measurements, ModelResult, ModelSignature

STEP = "emit:decoder/npu/directory"
QNN = "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"


class StoredFile(Blob, frozen=True):
    """A file in the store that knows its name."""

    name: str


def stored(name: str, content: str = "") -> StoredFile:
    return StoredFile(f"digest of {content or name}", 1, name)


def compiled(member: str, *, binaries: Sequence[tuple[str, StoredFile]] = (), data: Sequence[StoredFile] = ()) -> CompileResult:
    own = stored(f"{member}_ctx.onnx")
    artifacts = {file.name: file for file in (own, *(file for _, file in binaries), *data)}
    by_ep = {file.name: ep for ep, file in binaries}
    names = tuple(file.name for file in data)
    model = ModelResult(member, ModelSignature((), ()), own.name, by_ep, names, nodes=(), fallback_nodes=0, compatibility={})
    return CompileResult(artifacts, Blob("log", 0), Measurements(0.0, {}, None), (model,))


def by_qnn(names: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the name of the context binary by member, for one EP."""
    return {member: {QNN: name} for member, name in names.items()}


SHARED = stored("prefill_ctx_qnn.bin")
PAIR = (compiled("prefill", binaries=[(QNN, SHARED)]), compiled("decode", binaries=[(QNN, SHARED)]))


def references(file: OutputFile) -> dict[str, str]:
    """Return the rewritten references of a file, by the old ones."""
    return dict(file.content.references) if isinstance(file.content, RelinkedModel) else {}


def stored_name(file: OutputFile) -> str:
    source = file.content.stored if isinstance(file.content, RelinkedModel) else file.content
    assert isinstance(source, StoredFile)
    return source.name


def paths(files: Sequence[OutputFile]) -> dict[str, tuple[str, Mapping[str, str]]]:
    return {item.path: (item.role, references(item)) for item in files}


def arranged(
    models: Sequence[CompileResult], names: Mapping[str, str], binaries: Mapping[str, Mapping[str, str]]
) -> tuple[OutputFile, ...]:
    return arrange(models, names, binaries, "manifest.json", STEP)


def test_sharing_models_are_emitted_with_one_renamed_binary() -> None:
    names = {"prefill": "prefill.onnx", "decode": "decode.onnx"}
    files = arranged(PAIR, names, by_qnn(dict.fromkeys(names, "llm.bin")))
    renamed = {"prefill_ctx_qnn.bin": "llm.bin"}
    assert paths(files) == {
        "decode.onnx": ("model", renamed),
        "llm.bin": ("context-binary", {}),
        "prefill.onnx": ("model", renamed),
    }


def test_binary_with_its_original_name_leaves_its_model_unchanged() -> None:
    [binary, model] = arranged(PAIR[:1], {"prefill": "x.onnx"}, by_qnn({"prefill": SHARED.name}))
    assert (binary.content, model.path, references(model)) == (SHARED, "x.onnx", {})


@pytest.mark.parametrize(
    ("model", "binary", "reference"),
    [
        ("a.onnx", "bin/a.bin", "bin/a.bin"),
        ("models/a.onnx", "models/a.bin", "a.bin"),
        ("models/a.onnx", "models/deep/a.bin", "deep/a.bin"),
    ],
)
def test_reference_is_relative_to_its_model(model: str, binary: str, reference: str) -> None:
    files = arranged(PAIR[:1], {"prefill": model}, by_qnn({"prefill": binary}))
    assert paths(files)[model] == ("model", {SHARED.name: reference})
    assert paths(files)[binary] == ("context-binary", {})


def test_external_data_keeps_its_position_relative_to_the_model() -> None:
    models = [compiled("prefill", data=[stored("weights/w.bin")])]
    assert list(paths(arranged(models, {"prefill": "deep/prefill.onnx"}, {}))) == ["deep/prefill.onnx", "deep/weights/w.bin"]


def test_data_file_shared_by_models_in_one_folder_is_emitted_once() -> None:
    weights = stored("w.bin")
    models = [compiled("prefill", data=[weights]), compiled("decode", data=[weights])]
    assert list(paths(arranged(models, {"prefill": "p.onnx", "decode": "d.onnx"}, {}))) == ["d.onnx", "p.onnx", "w.bin"]


def test_binaries_of_two_eps_are_emitted_under_separate_names() -> None:
    made = [(QNN, stored("m_ctx_qnn.bin")), (OPENVINO, stored("m_ctx_openvino.bin"))]
    files = arranged([compiled("m", binaries=made)], {"m": "m.onnx"}, {"m": {OPENVINO: "bin/cpu.bin", QNN: "bin/npu.bin"}})
    assert {item.path: stored_name(item) for item in files} == {
        "bin/cpu.bin": "m_ctx_openvino.bin",
        "bin/npu.bin": "m_ctx_qnn.bin",
        "m.onnx": "m_ctx.onnx",
    }
    assert paths(files)["m.onnx"] == ("model", {"m_ctx_qnn.bin": "bin/npu.bin", "m_ctx_openvino.bin": "bin/cpu.bin"})


def test_binaries_of_two_eps_under_one_name_are_refused() -> None:
    made = [(QNN, stored("m_ctx_qnn.bin")), (OPENVINO, stored("m_ctx_openvino.bin"))]
    code, message, where = refusal([compiled("m", binaries=made)], {"m": "m.onnx"}, {"m": {QNN: "m.bin", OPENVINO: "m.bin"}})
    assert (code, where) == ("EPB422", STEP)
    assert "'m.bin'" in message


def test_order_of_files_does_not_depend_on_the_order_of_models() -> None:
    names = {"prefill": "a/prefill.onnx", "decode": "b.onnx"}
    binaries = by_qnn(dict.fromkeys(names, "a/shared.bin"))
    assert [item.path for item in arranged(PAIR, names, binaries)] == [
        item.path for item in arranged(PAIR[::-1], names, binaries)
    ]


def refusal(
    models: Sequence[CompileResult], names: Mapping[str, str], binaries: Mapping[str, Mapping[str, str]]
) -> tuple[str, str, object]:
    with pytest.raises(BuildError) as refused:
        arranged(models, names, binaries)
    [problem] = refused.value.problems
    return problem.code, problem.message, problem.where


def test_model_with_more_binaries_than_names_is_refused() -> None:
    made = [(QNN, stored("one.bin")), (QNN, stored("two.bin"))]
    code, message, where = refusal(
        [compiled("prefill", binaries=made)], {"prefill": "prefill.onnx"}, by_qnn({"prefill": "prefill.bin"})
    )
    assert (code, where) == ("EPB421", STEP)
    assert "'prefill' has several context binaries (one.bin, two.bin)" in message


@pytest.mark.parametrize("name", ["w.bin", "W.bin"])
def test_artifacts_with_names_that_differ_only_in_case_are_refused(name: str) -> None:
    models = [compiled("prefill", data=[stored("w.bin", "old")]), compiled("decode", data=[stored(name, "new")])]
    code, message, _ = refusal(models, {"prefill": "p.onnx", "decode": "d.onnx"}, {})
    assert code == "EPB422"
    assert f"two different artifacts would be written to '{name}'" in message


def test_data_file_with_the_name_of_the_binary_is_refused() -> None:
    models = [compiled("prefill", binaries=[(QNN, SHARED)], data=[stored("llm.bin")])]
    assert refusal(models, {"prefill": "p.onnx"}, by_qnn({"prefill": "llm.bin"}))[0] == "EPB422"


def test_external_data_never_replaces_the_manifest() -> None:
    model = compiled("prefill", data=[stored("manifest.json")])
    with pytest.raises(BuildError) as caught:
        arrange([model], {"prefill": "prefill_ctx.onnx"}, {}, "manifest.json", STEP)
    assert [problem.code for problem in caught.value.problems] == ["EPB422"]
