"""Verified results: complete, for the requested target, and independent of their location."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.catalog.catalog import entry
from epbuild.catalog.facts import Binary
from epbuild.core.errors import VerifyError
from epbuild.onnxfile.read.payload import Payload
from epbuild.verify.checks import (
    CompiledModel,
    Expected,
    ExpectedEp,
    ExpectedModel,
    check_compiled,
    check_embedded_size,
    read_target,
)
from epbuild.verify.expectations import SharedBytes, check_shared_bytes
from epbuild.verify.facts import Model
from tests.onnxfile.context_models import encapsulated
from tests.support.compiled_models import BINARY, OPENVINO, QNN, TARGET_PATTERN, context_node, relu, save

STEP = "share:decoder/npu"
MODELS = {"prefill": "prefill_ctx.onnx", "decode": "decode_ctx.onnx"}


def wanted(
    *,
    target: str | None = "SC8380XP",
    embed: bool = False,
    one_binary: bool = True,
) -> Expected:
    """Return the expectations of a sharing group's result, with a test's changes."""
    return Expected(
        step=STEP,
        eps=(ExpectedEp(QNN, entry(QNN), target),),
        models=tuple(ExpectedModel(member, file, embed) for member, file in MODELS.items()),
        one_binary=one_binary,
    )


EXPECTED = wanted()

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Write a folder as an EP leaves it after a success."""
    folder = tmp_path / "out"
    for file in MODELS.values():
        save(folder / file, context_node())
    (folder / "llm.bin").write_bytes(BINARY)
    return folder


def problems(folder: Path, expected: Expected = EXPECTED) -> list[tuple[str, str]]:
    with pytest.raises(VerifyError) as refused:
        check_compiled(folder, expected)
    assert {problem.where for problem in refused.value.problems} == {STEP}
    return [(problem.code, problem.message) for problem in refused.value.problems]


def test_a_valid_result_passes_and_lists_its_files(out: Path) -> None:
    prefill, decode = check_compiled(out, EXPECTED)
    assert isinstance(prefill, CompiledModel)
    assert (prefill.member, prefill.file, prefill.binaries, prefill.data) == ("prefill", "prefill_ctx.onnx", {"llm.bin": QNN}, ())
    assert (decode.member, len(decode.header.ep_context_nodes), decode.header.other_nodes) == ("decode", 1, ())


def test_several_nodes_of_one_context_and_a_subfolder_are_accepted(out: Path) -> None:
    (out / "bin").mkdir()
    (out / "llm.bin").replace(out / "bin" / "llm.bin")
    for file in MODELS.values():
        save(out / file, context_node("bin/llm.bin"), context_node(None, main_context=0))
    compiled = check_compiled(out, EXPECTED)
    assert [model.binaries for model in compiled] == [{"bin/llm.bin": QNN}] * 2


def test_external_data_beside_a_model_is_part_of_the_result(out: Path) -> None:
    (out / "weights.bin").write_bytes(b"weights")
    save(out / "decode_ctx.onnx", context_node(), external="weights.bin")
    assert check_compiled(out, EXPECTED)[1].data == ("weights.bin",)


def test_an_embedded_context_is_checked_for_its_target_inside_the_model(out: Path) -> None:
    expected = wanted(embed=True, one_binary=False)
    for file in MODELS.values():
        save(out / file, context_node(None, embed_mode=1, ep_cache_context=BINARY))
    assert [model.binaries for model in check_compiled(out, expected)] == [{}, {}]
    assert {code for code, _ in problems(out, wanted(embed=True, one_binary=False, target="SM8750"))} == {"EPB608"}


def decode(*nodes: object, **options: str) -> Callable[[Path], object]:
    return lambda folder: save(folder / "decode_ctx.onnx", *nodes, **options)  # type: ignore[arg-type]


def truncate(folder: Path) -> None:
    path = folder / "decode_ctx.onnx"
    path.write_bytes(path.read_bytes()[:-3])


def second_binary(folder: Path) -> None:
    (folder / "other.bin").write_bytes(BINARY)
    save(folder / "decode_ctx.onnx", context_node("other.bin"))


FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a missing model": (
        lambda folder: (folder / "decode_ctx.onnx").unlink(),
        "EPB601",
        "the EP reported success for 'decode' but wrote no decode_ctx.onnx",
    ),
    "a truncated model": (truncate, "EPB602", "decode_ctx.onnx is not a complete ONNX file: "),
    "an empty model": (
        lambda folder: (folder / "decode_ctx.onnx").write_bytes(b""),
        "EPB602",
        "decode_ctx.onnx is not a complete",
    ),
    "a model that was not compiled": (
        decode(relu()),
        "EPB603",
        "decode_ctx.onnx contains no EPContext node: no part of it was compiled",
    ),
    "another EP's work": (
        decode(context_node(source="OpenVINOExecutionProvider")),
        "EPB604",
        "compiled by 'OpenVINOExecutionProvider'",
    ),
    "nobody's work": (decode(context_node(source="")), "EPB604", "decode_ctx.onnx: an EPContext node has no source"),
    "a dangling reference": (decode(context_node("gone.bin")), "EPB605", "the context binary 'gone.bin' does not exist beside"),
    "a reference upwards": (decode(context_node("../llm.bin")), "EPB605", "the reference '../llm.bin' contains '..'"),
    "a reference up and down again": (decode(context_node("../out/llm.bin")), "EPB605", "contains '..'"),
    "an absolute reference": (decode(context_node("/tmp/llm.bin")), "EPB605", "is an absolute path"),
    "a Windows path": (decode(context_node("C:\\out\\llm.bin")), "EPB605", "is an absolute path"),
    "an empty reference": (decode(context_node("")), "EPB605", "is empty"),
    "a reference to a folder": (decode(context_node("folder")), "EPB605", "'folder' does not exist"),
    "no reference at all": (decode(context_node(None)), "EPB605", "neither embeds a context nor refers to a context binary"),
    "an empty binary": (lambda folder: (folder / "llm.bin").write_bytes(b""), "EPB605", "the context binary 'llm.bin' is empty"),
    "external data that is missing": (
        decode(context_node(), external="w.bin"),
        "EPB605",
        "the external data file 'w.bin' does not exist",
    ),
    "external data elsewhere": (decode(context_node(), external="../w.bin"), "EPB605", "the reference '../w.bin' contains '..'"),
    "an absolute path of external data": (
        decode(context_node(), external="/etc/hostname"),
        "EPB605",
        "is an absolute path",
    ),
    "a name that no file can have": (decode(context_node(), external="x" * 5000), "EPB605", "the external data file 'xxx"),
    "an embedded context": (
        decode(context_node(None, embed_mode=1, ep_cache_context=BINARY)),
        "EPB606",
        "embeds its context, but the recipe sets embed to false",
    ),
    "a binary of its own for each model": (
        second_binary,
        "EPB607",
        "2 models that share weights must refer to one context binary, but they refer to 2: llm.bin, other.bin",
    ),
    "another SoC": (
        lambda folder: (folder / "llm.bin").write_bytes(BINARY.replace(b"SC8380XP", b"SM8750")),
        "EPB608",
        "llm.bin was compiled for SM8750, not for SC8380XP",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_result_is_refused_with_the_fault_named(out: Path, name: str) -> None:
    (out.parent / "w.bin").write_bytes(b"outside")
    (out.parent / "llm.bin").write_bytes(BINARY)
    (out / "folder").mkdir()
    spoil, code, words = FAULTS[name]
    spoil(out)
    found = problems(out)
    assert {seen for seen, _ in found} == {code}
    assert any(words in message for _, message in found)


def test_context_with_weights_in_a_second_file_is_refused(tmp_path: Path) -> None:
    encapsulated(tmp_path / "m_ctx.onnx")
    expected = Expected(STEP, (ExpectedEp(OPENVINO, entry(OPENVINO)),), (ExpectedModel("m", "m_ctx.onnx"),))
    [(code, message)] = problems(tmp_path, expected)
    assert code == "EPB421"
    assert "a context is in two files, net.xml and net.bin" in message


def two_eps(*, qnn: str | None = "SC8380XP", openvino: str | None = "NPU4000") -> Expected:
    """Return the expectations of a model that two EPs compiled together, each with its own target."""
    marked = replace(entry(OPENVINO), binary=Binary(name="", target_pattern="device=([A-Z0-9]+)"))
    eps = (ExpectedEp(QNN, entry(QNN), qnn), ExpectedEp(OPENVINO, marked, openvino))
    return Expected(STEP, eps, (ExpectedModel("m", "m_ctx.onnx"),))


@pytest.fixture
def made_by_two(tmp_path: Path) -> Path:
    """Write a folder as two EPs leave it after each compiled a part of one model."""
    (tmp_path / "qnn.bin").write_bytes(BINARY)
    (tmp_path / "openvino.bin").write_bytes(b"\0 device=NPU4000 \1")
    save(tmp_path / "m_ctx.onnx", context_node("qnn.bin"), context_node("openvino.bin", source=OPENVINO))
    return tmp_path


def test_each_binary_of_a_model_with_two_eps_is_assigned_to_its_ep(made_by_two: Path) -> None:
    [model] = check_compiled(made_by_two, two_eps())
    assert model.binaries == {"qnn.bin": QNN, "openvino.bin": OPENVINO}


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (two_eps(qnn="SM8750"), "qnn.bin was compiled for SC8380XP, not for SM8750"),
        (two_eps(openvino="NPU3720"), "openvino.bin was compiled for NPU4000, not for NPU3720"),
        (two_eps(qnn=None, openvino="NPU3720"), "openvino.bin was compiled for NPU4000, not for NPU3720"),
    ],
)
def test_each_binary_is_checked_against_the_target_of_its_own_ep(made_by_two: Path, expected: Expected, message: str) -> None:
    assert problems(made_by_two, expected) == [("EPB608", message)]


def test_a_part_compiled_by_an_unrequested_ep_is_refused_beside_requested_ones(made_by_two: Path) -> None:
    parts = [context_node("qnn.bin"), context_node("openvino.bin", source="VitisAIExecutionProvider")]
    save(made_by_two / "m_ctx.onnx", *parts)
    assert problems(made_by_two, two_eps()) == [
        ("EPB604", f"m_ctx.onnx: an EPContext node was compiled by 'VitisAIExecutionProvider', not by {QNN}, {OPENVINO}")
    ]


def test_an_ep_without_any_part_of_a_model_is_accepted(made_by_two: Path) -> None:
    save(made_by_two / "m_ctx.onnx", context_node("qnn.bin"), context_node(None, main_context=0))
    [model] = check_compiled(made_by_two, two_eps())
    assert model.binaries == {"qnn.bin": QNN}


def test_each_member_is_checked_against_its_own_settings(out: Path) -> None:
    save(out / "decode_ctx.onnx", context_node(None, embed_mode=1, ep_cache_context=BINARY), relu())
    models = (
        ExpectedModel("prefill", MODELS["prefill"], False),
        ExpectedModel("decode", MODELS["decode"], True),
    )
    eps = EXPECTED.eps
    assert [model.binaries for model in check_compiled(out, Expected(STEP, eps, models))] == [{"llm.bin": QNN}, {}]
    turned = tuple(
        replace(model, member=other.member, file=other.file) for model, other in zip(models, models[::-1], strict=True)
    )
    assert sorted(code for code, _ in problems(out, Expected(STEP, eps, turned))) == ["EPB606", "EPB606"]


@needs_links
@pytest.mark.parametrize(("reference", "external"), [("linked", None), ("llm.bin", "linked")])
def test_a_file_that_links_outside_the_result_is_refused(out: Path, reference: str, external: str | None) -> None:
    elsewhere = out.parent / "elsewhere"
    elsewhere.write_bytes(BINARY)
    (out / "linked").symlink_to(elsewhere)
    save(out / "decode_ctx.onnx", context_node(reference), external=external)
    [(code, message)] = problems(out)
    assert code == "EPB605"
    assert "linked" in message


@needs_links
def test_a_link_that_stays_inside_is_followed(out: Path) -> None:
    (out / "alias.bin").symlink_to("llm.bin")
    save(out / "decode_ctx.onnx", context_node("alias.bin"))
    compiled = check_compiled(out, wanted(one_binary=False))
    assert compiled[1].binaries == {"alias.bin": QNN}


def test_an_external_context_is_refused_if_embedding_was_requested(out: Path) -> None:
    found = problems(out, wanted(embed=True, one_binary=False))
    assert [code for code, _ in found] == ["EPB606", "EPB606"]
    assert "stores its context in a file" in found[0][1]


def test_an_empty_embedded_context_is_refused(out: Path) -> None:
    for file in MODELS.values():
        save(out / file, context_node(None, embed_mode=1))
    found = problems(out, wanted(embed=True, one_binary=False))
    assert [code for code, _ in found] == ["EPB605", "EPB605"]


def test_an_embedded_context_over_the_size_limit_is_refused(out: Path) -> None:
    save(out / "prefill_ctx.onnx", context_node(None, embed_mode=1, ep_cache_context=BINARY * 10))
    model = Model(out, "prefill_ctx.onnx")
    assert check_embedded_size(model) is None
    flaw = check_embedded_size(model, limit=100)
    assert flaw is not None
    assert (flaw.code, "exceeds 2 GiB" in flaw.text) == ("EPB606", True)


def test_all_faults_of_all_models_are_reported_in_one_run(out: Path) -> None:
    (out / "prefill_ctx.onnx").unlink()
    save(out / "decode_ctx.onnx", context_node("gone.bin", source="x"), relu())
    assert [code for code, _ in problems(out)] == ["EPB601", "EPB604", "EPB605"]


@pytest.mark.parametrize(("asked", "fine"), [("SC8380XP", True), ("sc8380xp", True), ("SM8750", False), (None, True)])
def test_the_target_is_compared_with_the_target_in_the_binary(out: Path, asked: str | None, fine: bool) -> None:
    expected = wanted(target=asked)
    if fine:
        check_compiled(out, expected)
    else:
        assert {code for code, _ in problems(out, expected)} == {"EPB608"}


def test_a_binary_without_target_information_is_accepted(out: Path) -> None:
    (out / "llm.bin").write_bytes(b"no such words")
    check_compiled(out, EXPECTED)


def test_fallback_nodes_are_listed_by_name_and_operator(out: Path) -> None:
    save(out / "decode_ctx.onnx", context_node(), relu())
    assert check_compiled(out, EXPECTED)[1].header.other_nodes == (("", "Relu"),)


@pytest.mark.parametrize(("shared", "wrong"), [(0, 0), (70, 0), (71, 1), (100, 1), (120, 1)])
def test_the_expected_sharing_ratio_is_an_exact_minimum(shared: int, wrong: int) -> None:
    assert len(check_shared_bytes(SharedBytes(shared, 100), STEP, 0.3)) == wrong


def test_insufficient_sharing_is_reported_with_sizes_and_exact_ratio() -> None:
    [problem] = check_shared_bytes(SharedBytes(700_001, 1_000_000), STEP, 0.3)
    assert (problem.code, problem.where) == ("EPB611", STEP)
    assert problem.message == (
        "the context binaries and data have 700,001 bytes with sharing and 1,000,000 bytes with each model compiled alone: "
        "the saved ratio is 0.299; the recipe expects at least 0.3"
    )
    [problem] = check_shared_bytes(SharedBytes(1_012_345, 1_000_000), STEP, 0.3)
    assert "ratio is -0.013;" in problem.message


def test_sharing_without_any_bytes_saves_nothing() -> None:
    assert len(check_shared_bytes(SharedBytes(0, 0), STEP, 0.3)) == 1


@given(before=st.binary(max_size=300), after=st.binary(max_size=300))
def test_a_target_is_found_at_any_position_in_a_binary(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, after: bytes
) -> None:
    binary = tmp_path_factory.getbasetemp() / "context.bin"
    binary.write_bytes(before + b"soc_type=SM8750;arch=79" + after)
    assert read_target(Payload.whole(binary), TARGET_PATTERN) == "SM8750"


def test_an_empty_binary_has_no_target(tmp_path: Path) -> None:
    (tmp_path / "empty.bin").write_bytes(b"")
    assert read_target(Payload.whole(tmp_path / "empty.bin"), TARGET_PATTERN) is None
