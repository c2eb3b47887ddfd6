"""Results of a live check: each model loads, the device runs it, and its numbers match its source."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec import field
from msgspec.structs import replace
from onnx import TensorProto, helper

from epbuild.catalog.catalog import entry
from epbuild.catalog.facts import Limitation, Thresholds
from epbuild.compile.alone import compile_alone
from epbuild.core.shown import discard_line
from epbuild.plan.target import PlannedEp
from epbuild.recipe.model import MadeInputs
from epbuild.toolchain.environment import Environment, Toolchains
from epbuild.toolchain.process import Ending
from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.facts import Model
from epbuild.verify.findings import Finding
from epbuild.verify.live.check import LiveCheck, check_live
from epbuild.verify.live.comparison import OutputComparison
from epbuild.verify.live.source import Sources
from epbuild.verify.manifest import ListedModel, Manifest
from tests.verify.live.fake_trials import QNN, environment, fake_worker, planned

pytestmark = pytest.mark.slow  # every test starts processes

NAMES = ("prefill", "decode")


class OneToolchain(Toolchains, frozen=True):
    """Single toolchain for all requirements, and the requests of its workers."""

    requests: list[dict[str, Any]] = field(default_factory=list)

    def is_ready(self, *asked: object, **more: object) -> bool:
        return True

    def prepare(self, *asked: object, **more: object) -> Environment:
        found = environment(self.home / "worker.py")

        def run_worker(command: Sequence[str], folder: Path, log: Path, **options: Any) -> Ending:
            self.requests.append(json.loads((folder / "request.json").read_text(encoding="utf-8")))
            return found.run_worker(command, folder, log, **options)

        return replace(found, run_worker=run_worker)


class PlannedSources(Sources, frozen=True):
    """Sources of a recipe with QNN as `planned`."""

    planned: PlannedEp = field(default_factory=planned)

    def find_eps(self, document: Any) -> dict[str, PlannedEp]:
        return {QNN: self.planned}


class Unasked(Sources, frozen=True):
    """Sources that must not be asked how to load a model."""

    def find_eps(self, document: Any) -> dict[str, PlannedEp]:
        return pytest.fail("asked for a session")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write two compiled models with their sources. The worker's fake onnxruntime runs models as they specify."""
    fake_worker(tmp_path)
    for name in NAMES:
        node = helper.make_node("EPContext", ["x"], ["file"], domain="com.microsoft", source=QNN, embed_mode=0, main_context=1)
        write(tmp_path / f"{name}_ctx.onnx", node)
        write(tmp_path / f"{name}.onnx", helper.make_node("Relu", ["x"], ["file"]))
        for stem in (name, f"{name}_ctx"):
            behave(tmp_path, stem)
    return tmp_path


def write(path: Path, node: Any, **metadata: str) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "file")]
    model = helper.make_model(helper.make_graph([node], "graph", values[:1], values[1:]))
    for key, value in metadata.items():
        model.metadata_props.add(key=f"ep_compatibility_info.{key}", value=value)
    onnx.save(model, path)


def behave(folder: Path, stem: str, **commands: Any) -> None:
    (folder / f"{stem}.json").write_text(json.dumps(commands), encoding="utf-8")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def artifact(folder: Path, *, share: bool = False, names: Sequence[str] = NAMES) -> ArtifactFolder:
    source = {name: {"sha256": digest(folder / f"{name}.onnx"), "external_data": {}} for name in names}
    document = {
        "group": "decoder",
        "target": {"name": "npu", "eps": [{"ep": QNN, "provider_options": {}}], "session_options": {}, "environment": {}},
        "toolchain": {"python": "cpython-3.11", "platform": "linux-x86_64", "distributions": {"onnxruntime": "1.99.0"}},
        "models": [{"name": name, "file": f"{name}_ctx.onnx", "source": source[name]} for name in names],
    }
    listed = tuple(ListedModel(name, f"{name}_ctx.onnx", frozenset(), None) for name in names)
    manifest = Manifest("decoder", "npu", share, {QNN: {}}, listed, {}, None, document)
    return ArtifactFolder(folder, tuple(Model(folder, f"{name}_ctx.onnx") for name in names), "npu/", manifest)


def sources(folder: Path) -> PlannedSources:
    return PlannedSources({name: folder / f"{name}.onnx" for name in NAMES})


def tried(
    folder: Path, check: LiveCheck | None = None, *, share: bool = False, names: Sequence[str] = NAMES
) -> dict[tuple[str, str], Finding]:
    check = check or LiveCheck(sources=PlannedSources({}))
    found = list(check_live(artifact(folder, share=share, names=names), here(folder, check), discard_line))
    assert all(finding.message.endswith(".") for finding in found)
    by_place = {(finding.check, finding.subject.removeprefix("npu/").removesuffix("_ctx.onnx")): finding for finding in found}
    assert len(by_place) == len(found)
    return by_place


def here(folder: Path, check: LiveCheck) -> LiveCheck:
    """Return a check with the toolchain of a folder, unless it has another one."""
    known = isinstance(check.toolchains, OneToolchain)
    return check if known else replace(check, timeout=60, toolchains=OneToolchain(folder))


def compared(folder: Path, **comparison: Any) -> Finding:
    check = LiveCheck(
        numbers=True, sources=sources(folder), comparison=OutputComparison(**comparison, compile_alone=compile_alone)
    )
    return tried(folder, check, names=["decode"])["numbers", "decode"]


def test_each_loaded_model_is_reported_with_its_device_and_packages(folder: Path) -> None:
    found = tried(folder)
    assert [(*place, finding.outcome) for place, finding in found.items()] == [
        ("load", "prefill", "passed"),
        ("load", "decode", "passed"),
    ]
    message = found["load", "prefill"].message
    assert message.startswith("Opened in ")
    assert message.endswith(" s on cpu from Acme, with onnxruntime 1.99.0.")


def test_a_faulty_model_and_its_sharers_are_never_loaded(folder: Path) -> None:
    faulty = {"prefill_ctx.onnx": "one of its files failed a check"}
    for share, outcome in ((False, "passed"), (True, "skipped")):
        check = here(folder, LiveCheck(sources=PlannedSources({})))
        found = list(check_live(artifact(folder, share=share), check, discard_line, faulty))
        outcomes = {finding.subject: (finding.outcome, finding.message) for finding in found}
        assert outcomes["npu/prefill_ctx.onnx"] == ("skipped", "It was not loaded, because one of its files failed a check.")
        assert outcomes["npu/decode_ctx.onnx"][0] == outcome
        if share:
            words = "It was not loaded, because it would be loaded together with npu/prefill_ctx.onnx, which failed a check."
            assert outcomes["npu/decode_ctx.onnx"][1] == words


def test_a_sharing_group_without_context_nodes_has_nothing_to_load(folder: Path) -> None:
    for name in NAMES:
        write(folder / f"{name}_ctx.onnx", helper.make_node("Relu", ["x"], ["file"]))
    check = LiveCheck(numbers=True, sources=PlannedSources({}), comparison=OutputComparison(compile_alone=compile_alone))
    assert tried(folder, check, share=True) == {}


def test_no_toolchain_is_searched_if_no_model_can_be_loaded(folder: Path) -> None:
    faulty = {f"{name}_ctx.onnx": "one of its files failed a check" for name in NAMES}
    check = LiveCheck(sources=Unasked({}))
    assert {finding.outcome for finding in check_live(artifact(folder), check, discard_line, faulty)} == {"skipped"}


def test_a_model_that_fails_to_load_does_not_stop_other_models(folder: Path) -> None:
    behave(folder, "prefill_ctx", open="fail")
    found = tried(folder, LiveCheck(numbers=True, sources=sources(folder)))
    load = found["load", "prefill"]
    assert (load.outcome, load.code) == ("failed", "EPB641")
    assert load.message.startswith("Opening the model failed: Failed to get context binary info.")
    assert (found["numbers", "prefill"].outcome, found["numbers", "prefill"].code) == ("skipped", None)
    assert found["load", "decode"].outcome == found["numbers", "decode"].outcome == "passed"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_a_crash_in_a_sharing_group_names_the_model_and_skips_later_models(folder: Path) -> None:
    behave(folder, "prefill_ctx", open="crash")
    found = tried(folder, share=True)
    assert (found["load", "prefill"].outcome, found["load", "prefill"].code) == ("failed", "EPB642")
    assert found["load", "prefill"].message.startswith("The process crashed (SIGABRT) while the model was being opened.")
    assert found["load", "decode"].outcome == "skipped"


def test_sharing_models_are_opened_together_with_the_sharing_option(folder: Path) -> None:
    toolchain = OneToolchain(folder)
    check = LiveCheck(sources=PlannedSources({}), timeout=60, toolchains=toolchain)

    def opened() -> list[Any]:
        found = [([model["name"] for model in request["models"]], request["session_options"]) for request in toolchain.requests]
        toolchain.requests.clear()
        return found

    assert {finding.outcome for finding in tried(folder, check, share=True).values()} == {"passed"}
    assert opened() == [(["prefill", "decode"], {"ep.share_ep_contexts": "1"})]
    tried(folder, check)
    assert opened() == [(["prefill"], {}), (["decode"], {})]


@pytest.mark.parametrize("strict", [False, True])
def test_limitations_of_the_ep_fail_only_in_strict_checks(folder: Path, strict: bool) -> None:
    known = replace(entry(QNN), cannot=(Limitation("load models that share", "it crashes", "measured", symptom="its reason"),))
    behave(folder, "prefill_ctx", open="crash")
    limited = replace(sources(folder), planned=planned(entry=known))
    found = tried(folder, LiveCheck(numbers=True, strict=strict, sources=limited), share=True)
    assert set(found) == {(check, name) for check in ("load", "numbers") for name in NAMES}
    assert {finding.outcome for finding in found.values()} == {"failed" if strict else "skipped"}
    assert {finding.code for finding in found.values()} == {"EPB640" if strict else None}
    assert found["load", "decode"].message == f"{QNN} cannot load models that share here: it crashes."
    assert (
        "it crashes; to compile the model without sharing and compare its outputs, pass --recipe"
        in found["numbers", "decode"].message
    )


def test_an_artifact_that_cannot_be_loaded_here_is_skipped_with_the_reason(folder: Path) -> None:
    found = artifact(folder)
    assert found.manifest is not None
    strange = dataclasses.replace(found, manifest=replace(found.manifest, eps={"AcmeExecutionProvider": {}}))
    findings = list(check_live(strange, LiveCheck(), discard_line))
    assert {finding.outcome for finding in findings} == {"skipped"}
    assert findings[0].message.startswith("AcmeExecutionProvider is not in the catalog; ")


@pytest.mark.parametrize(
    ("written", "outcome", "code", "words"),
    [
        ("EP_SUPPORTED_OPTIMAL", "passed", None, f"{QNN} accepts the model on cpu from Acme without recompilation."),
        ("EP_SUPPORTED_PREFER_RECOMPILATION", "passed", None, "recommends recompiling it"),
        (
            "EP_UNSUPPORTED",
            "failed",
            "EPB645",
            f"{QNN} rejects the model on cpu from Acme; the model was compiled for EP_UNSUPPORTED.",
        ),
        ("EP_NOT_APPLICABLE", "skipped", None, "does not report whether"),
        ("EP_SOMETHING_NEW", "skipped", None, "returned the unknown answer EP_SOMETHING_NEW"),
        ("v2:6", "skipped", None, "did not report whether the model is compatible with this machine: cannot judge v2:6."),
    ],
)
def test_the_eps_compatibility_verdict_is_reported(
    folder: Path, written: str, outcome: str, code: str | None, words: str
) -> None:
    node = helper.make_node("EPContext", ["x"], ["file"], domain="com.microsoft", source=QNN, embed_mode=0, main_context=1)
    write(folder / "decode_ctx.onnx", node, **{QNN: written})
    found = tried(folder, LiveCheck(strict=True, sources=PlannedSources({})))
    assert ("compatibility", "prefill") not in found
    assert (found["compatibility", "decode"].outcome, found["compatibility", "decode"].code) == (outcome, code)
    assert words in found["compatibility", "decode"].message


def test_close_numbers_pass_and_distant_numbers_are_named(folder: Path) -> None:
    behave(folder, "decode_ctx", factor=1.001)
    near = compared(folder, made=MadeInputs(3))
    assert near.outcome == "passed"
    assert near.message.startswith(
        "Its outputs are close enough to the outputs of the CPU EP, for seed 3 (generated inputs: weak evidence): file: cosine "
        "1.000000, snr_db 60.0"
    )
    assert "; the worst value, for seed 3, is file[" in near.message
    behave(folder, "decode_ctx", factor=2)
    far = compared(folder, made=MadeInputs(3))
    assert (far.outcome, far.code) == ("failed", "EPB646")
    assert far.message.startswith(
        "Its only output differs too much from the CPU EP, for seed 3 (generated inputs: weak evidence): "
        "file: snr_db is 0.0, below the limit 20"
    )
    (figures,) = far.figures
    assert (figures["output"], figures["evidence"], figures["samples"]) == ("file", "made", 1)
    assert figures["cosine"] == pytest.approx(1)
    assert figures["snr_db"] == pytest.approx(0)
    assert figures["max_rel"] == pytest.approx(1)


def test_requested_metrics_replace_the_metrics_of_the_catalog(folder: Path) -> None:
    behave(folder, "decode_ctx", factor=2)
    assert compared(folder, asked=Thresholds(cosine=0.99)).outcome == "passed"
    found = compared(folder, asked=Thresholds(max_rel=0.5, cosine=0.99))
    assert (found.outcome, found.code) == ("failed", "EPB646")
    assert "max_rel is 1, above the limit 0.5" in found.message


def test_a_requested_tolerance_applies_to_each_number(folder: Path) -> None:
    behave(folder, "decode_ctx", factor=2)
    assert compared(folder, rtol=2.0).outcome == "passed"
    far = compared(folder, rtol=0.5)
    assert far.message.startswith("3 of 6 values differ too much from the values of the CPU EP; the worst, for seed 0, is file[")
    assert far.hint is not None
    assert "allow it with --atol and --rtol" in far.hint
    assert "file: cosine 1.000000, snr_db 0.0" in far.message


def test_numbers_smaller_than_the_tolerance_can_still_fail(folder: Path) -> None:
    np.savez(folder / "in.npz", x=np.full((2, 3), 0.01, np.float32) * np.arange(6, dtype=np.float32).reshape(2, 3))
    behave(folder, "decode_ctx", factor=0)
    found = compared(folder, inputs={"": folder / "in.npz"}, atol=0.1)
    assert (found.outcome, found.code) == ("failed", "EPB646")
    assert "no value is larger than the allowed difference, so the output was judged by its own scale" in found.message
    behave(folder, "decode_ctx", factor=1.001)
    assert compared(folder, inputs={"": folder / "in.npz"}, atol=0.1).outcome == "passed"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.nan, "the CPU EP itself returns NaN or infinity for 1 of 6 values with these inputs"),
        (np.inf, "the CPU EP itself returns NaN or infinity for 1 of 6 values with these inputs"),
        (0.0, "all expected values are the same (zero), so a match proves nothing"),
    ],
)
def test_an_inconclusive_reference_never_passes(folder: Path, value: float, words: str) -> None:
    array = np.zeros((2, 3), np.float32)
    array[0, 0] = value
    np.savez(folder / "in.npz", x=array)
    found = compared(folder, inputs={"": folder / "in.npz"})
    assert (found.outcome, found.code) == ("skipped", "EPB665")
    assert "With in.npz, its outputs cannot be judged: file: " in found.message
    assert words in found.message
    assert found.hint is not None
    assert "--inputs" in found.hint
    assert "--atol" not in found.hint


def test_sharing_models_run_in_one_process_and_are_compared_separately(folder: Path) -> None:
    behave(folder, "decode_ctx", factor=2)
    found = tried(folder, LiveCheck(numbers=True, sources=sources(folder)), share=True)
    outcomes = {place: finding.outcome for place, finding in found.items() if place[0] == "numbers"}
    assert outcomes == {("numbers", "prefill"): "passed", ("numbers", "decode"): "failed"}


def test_the_worst_of_several_inputs_is_reported_with_its_name(folder: Path) -> None:
    for number, size in enumerate((0.0, 8.0, 1.0)):
        place = folder / f"sets/test_data_set_{number}"
        place.mkdir(parents=True)
        tensor = onnx.numpy_helper.from_array(np.full((2, 3), size, np.float32), "x")
        (place / "input_0.pb").write_bytes(tensor.SerializeToString())
    behave(folder, "decode_ctx", factor=1.5)
    found = compared(folder, inputs={"": folder / "sets"}, rtol=0.0, atol=0.25)
    message = "12 of 18 values differ too much from the values of the CPU EP; the worst, for test_data_set_1, is file[0, 0]: "
    assert found.message.startswith(f"{message}expected 8, got 12")


@pytest.mark.parametrize(
    ("change", "outcome", "code", "words"),
    [
        (
            lambda folder: behave(folder, "decode", run="fail"),
            "failed",
            "EPB649",
            "The CPU EP cannot run the source model: running",
        ),
        (lambda folder: behave(folder, "decode_ctx", run="fail"), "failed", "EPB641", "Running the model failed: Failed to get"),
        (lambda folder: behave(folder, "decode_ctx", run="give a list"), "skipped", None, "The output 'file' is not a tensor."),
    ],
)
def test_a_comparison_that_cannot_run_is_reported_with_its_reason(
    folder: Path, change: Callable[[Path], None], outcome: str, code: str | None, words: str
) -> None:
    change(folder)
    found = compared(folder)
    assert (found.outcome, found.code) == (outcome, code)
    assert words in found.message


def test_a_wrong_source_is_refused_and_a_missing_source_is_requested(folder: Path) -> None:
    wrong = LiveCheck(numbers=True, sources=PlannedSources({"decode": folder / "decode_ctx.onnx"}))
    found = tried(folder, wrong)
    assert (found["numbers", "decode"].outcome, found["numbers", "decode"].code) == ("failed", "EPB647")
    assert "is not the one that the model was compiled from: its SHA-256 is " in found["numbers", "decode"].message
    assert found["numbers", "prefill"].outcome == "skipped"
    assert "specify the recipe with --recipe, or the source model with --source" in found["numbers", "prefill"].message


def test_inputs_that_do_not_fit_are_refused(folder: Path) -> None:
    np.savez(folder / "in.npz", x=np.zeros((1, 3), np.float32))
    found = compared(folder, inputs={"decode": folder / "in.npz"})
    assert (found.outcome, found.code) == ("failed", "EPB648")
    assert "'x' in in.npz has the shape [1, 3]; the model expects [2, 3]." in found.message
