"""Live check between compile and output: failures are not published, and new thresholds need no new run."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper

from epbuild.actions.types import Verify
from epbuild.cache.blobs import BlobStore
from epbuild.core.digest import Blob
from epbuild.core.errors import Problem
from epbuild.engine.events import StepOutput, Warned
from epbuild.plan.made import Made
from epbuild.plan.member import ModelFiles
from epbuild.plan.result import CompileResult, Measurements, ModelResult, ModelSignature, ValueType, open_action_records
from epbuild.plan.verification import CheckedMember, Verification, build_verification_document, with_inputs
from epbuild.recipe.model import VerifyChoice
from epbuild.recipe.patterns import FileFinder
from epbuild.report.json.build import build_plan_document
from epbuild.report.json.documents import format_json
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import HERE, SHARE, Workshop, sharing_group, source_model

VERIFY = "verify:classifier/plain"
VERIFY_DECODER = "verify:decoder/npu"
EMIT = "emit:classifier/plain/directory"
MODELS = "    models: [classifier]\n"
SHARED = "    models: [prefill, decode]\n"
CRASH = "Shared weights buffer isn't supported on this platform"


class Bench(Workshop):
    """Workshop whose models also run. They return their inputs, times a factor on an EP."""

    def __init__(self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, cache, monkeypatch)
        self.factor = 1.001
        self.runs: list[str] = []
        self.cannot_share = False
        self.device = "npu"
        self.broken = ""
        self.reference = 1.0
        self.refused = ""
        """Error of the CPU EP about its inputs; empty if it accepts them."""

    @property
    def warned(self) -> list[Problem]:
        """Warnings of the last build."""
        return [event.problem for event in self.events if isinstance(event, Warned)]

    def asks(self, verify: str, after: str = MODELS) -> None:
        self.write_recipe((after, f"{after}    verify: {verify}\n"))

    def worker(self, command: object, folder: Path, log: Path, **options: Any) -> Ending:
        request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        return self.runner(request, log) if "models" in request else super().worker(command, folder, log, **options)

    def runner(self, request: Mapping[str, Any], log: Path) -> Ending:
        on = "EP" if request["eps"] else "CPU"
        names = [model["name"] for model in request["models"]]
        if not names:
            chosen = {"event": "device", "ep": request["eps"][0]["name"], "type": self.device, "vendor": "Qualcomm"}
            log.write_text("chose\n", encoding="utf-8")
            return Ending("exited", 0, (chosen, {"event": "finished", "peak_memory": 1 << 20}), ())
        self.runs.append(f"{on}: {'+'.join(names)}")
        log.write_text(f"ran on {on}\n", encoding="utf-8")
        shared = request["session_options"].get("ep.share_ep_contexts") == "1"
        words = CRASH if on == "EP" and shared and self.cannot_share else self.broken if on == "EP" else self.refused
        if words:
            opening: Mapping[str, Any] = {"event": "opening", "model": names[0]}
            return Ending("exited", 1, (opening, {"event": "failed", "kind": "error", "type": "E", "message": words}), (words,))
        reports = []
        for model in request["models"]:
            for number, inputs in enumerate(model["inputs"]):
                with np.load(inputs["file"]) as given:
                    np.savez(inputs["outputs"], given["arr_0"] * np.float32(self.factor if on == "EP" else self.reference))
                reports.append({"event": "ran", "model": model["name"], "run": number, "outputs": ["y"]})
        return Ending("exited", 0, (*reports, {"event": "finished", "peak_memory": 1 << 20}), ())

    def figures(self, group: str = "classifier") -> dict[str, Any]:
        """Return the numbers of each model in the manifest."""
        models = json.loads((self.output(group) / "manifest.json").read_text(encoding="utf-8"))["models"]
        return {model["name"]: {key: model[key] for key in ("figures", "unjudged") if key in model} for model in models}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def test_a_passing_model_is_emitted_with_figures_and_not_run_again(bench: Bench) -> None:
    bench.asks("true")
    assert bench.build("*classifier*").exit_code == 0
    assert bench.runs == ["CPU: classifier", "EP: classifier"]
    (figures,) = bench.figures()["classifier"]["figures"]
    assert figures == {
        "output": "y", "cosine": 1.0, "snr_db": 60.0, "max_abs": pytest.approx(0.001, abs=0.001), "max_rel": 0.001, "top1": 1.0,
        "samples": 1, "evidence": "made", "reference": "source",
    }  # fmt: skip
    bench.runs.clear()
    assert bench.build("*classifier*").exit_code == 0
    assert bench.runs == []
    assert (bench.states()[VERIFY], bench.states()[EMIT]) == ("current", "current")


FAR = "y: snr_db is 6.0, below the limit 20, max_rel is 0.5, above the limit 0.1"


def test_a_failure_on_users_inputs_is_not_emitted_and_has_figures(bench: Bench) -> None:
    np.savez(bench.folder / "given.npz", x=np.array([1, 2, 3, 4], np.float32))
    bench.asks("{data: given.npz}")
    bench.factor = 0.5
    assert bench.build("*classifier*").exit_code == 1
    (problem,) = bench.problems
    assert problem.code == "EPB646"
    assert str(problem.where) == VERIFY
    assert FAR in problem.message
    assert problem.hint is not None
    assert "`metrics` in the recipe's `verify`" in problem.hint
    assert not bench.output("classifier").exists()


def test_a_failure_on_generated_inputs_only_is_emitted_with_a_warning(bench: Bench) -> None:
    bench.asks("true")
    bench.factor = 0.5
    assert bench.build("*classifier*").exit_code == 0
    (warning,) = bench.warned
    assert (warning.code, str(warning.where)) == ("EPB646", VERIFY)
    assert "for seed 0; generated inputs: weak evidence" in warning.message
    assert FAR in warning.message
    assert "The model is still emitted, because generated inputs are weak evidence." in (warning.hint or "")
    (figures,) = bench.figures()["classifier"]["figures"]
    assert (figures["evidence"], figures["snr_db"]) == ("made", 6.0)
    assert bench.states()[VERIFY] == "current"
    bench.asks("{metrics: {snr_db: 20}}")
    assert bench.build("*classifier*").exit_code == 1
    assert bench.failures == ["EPB646"]


@pytest.mark.parametrize("verify", ["true", "{data: {seed: 3}}"])
def test_inconclusive_generated_inputs_are_a_warning_unless_strict(bench: Bench, verify: str) -> None:
    bench.asks(verify)
    bench.factor = bench.reference = 1e-6
    bench.factor *= 2
    assert bench.build("*classifier*").exit_code == 0
    assert [(warning.code, str(warning.where)) for warning in bench.warned] == [("EPB665", VERIFY)]
    assert "all of its values are below 0.001" in bench.warned[0].message
    assert "all of its values are below 0.001" in bench.figures()["classifier"]["unjudged"]
    for harder in ("{unjudged: fail}", "{metrics: {snr_db: 20}}"):
        bench.asks(harder)
        assert bench.build("*classifier*").exit_code == 1
        assert bench.failures[-1] == "EPB665"
    bench.asks("{unjudged: emit}")
    assert bench.build("*classifier*").exit_code == 0
    assert bench.warned == []


def test_generated_inputs_that_the_source_refuses_are_a_warning(bench: Bench) -> None:
    bench.refused = "indices element out of data bounds, idx=9 must be within the inclusive range [-4,3]"
    bench.asks("true")
    assert bench.build("*classifier*").exit_code == 0
    assert [warning.code for warning in bench.warned] == ["EPB665"]
    assert "(generated inputs): the CPU EP cannot run the source with generated inputs: " in bench.warned[0].message
    assert bench.refused in bench.figures()["classifier"]["unjudged"]
    bench.asks("{unjudged: fail}")
    assert bench.build("*classifier*").exit_code == 1
    assert bench.failures == ["EPB665"]
    np.savez(bench.folder / "given.npz", x=np.array([1, 2, 3, 4], np.float32))
    bench.asks("{data: given.npz}")
    assert bench.build("*classifier*").exit_code == 1
    assert bench.failures[-1] == "EPB649"


def test_changed_metrics_judge_known_figures_without_a_run(bench: Bench) -> None:
    bench.asks("true")
    bench.factor = 0.95
    assert bench.build("*classifier*").exit_code == 0
    bench.runs.clear()
    bench.asks("{metrics: {snr_db: 30}}")
    assert bench.states()[VERIFY] == "out of date"
    assert "snr_db is 26.0, below the limit 30" in bench.reasons(VERIFY)[0]
    assert bench.build("*classifier*").exit_code == 1
    bench.asks("{metrics: {snr_db: 10}}")
    assert bench.build("*classifier*").exit_code == 0
    assert bench.runs == []


@pytest.mark.parametrize(
    "change",
    ["{data: {seed: 1}}", "{data: {samples: 2}}", "{data: {ranges: {x: [0, 1]}}}", "{data: given.npz}"],
)
def test_changed_inputs_run_the_check_without_a_compile(bench: Bench, change: str) -> None:
    np.savez(bench.folder / "given.npz", x=np.array([1, 2, 3, 4], np.float32))
    bench.asks("true")
    bench.build("*classifier*")
    bench.runs.clear()
    bench.asks(change)
    assert bench.build("*classifier*").exit_code == 0
    assert bench.runs == ["CPU: classifier", "EP: classifier"]
    assert bench.compiled == []
    (figures,) = bench.figures()["classifier"]["figures"]
    assert figures["evidence"] == ("given" if "npz" in change else "made")
    assert figures["samples"] == (2 if "samples" in change else 1)


def test_users_inputs_that_do_not_fit_or_change_are_reported(bench: Bench) -> None:
    np.savez(bench.folder / "given.npz", x=np.array([1, 2], np.float32))
    bench.asks("{data: given.npz}")
    assert bench.build("*classifier*").exit_code == 1
    assert bench.failures == ["EPB648"]
    assert "'x' in given.npz has the shape [2]; the model expects [4]" in bench.problems[0].message
    np.savez(bench.folder / "given.npz", x=np.array([1, 2, 3, 4], np.float32))
    assert bench.build("*classifier*").exit_code == 0
    np.savez(bench.folder / "given.npz", x=np.array([1, 2, 3, 5], np.float32))
    assert bench.reasons(VERIFY)[0].startswith("model classifier: samples given.npz changed: ")


def test_inconclusive_numbers_are_never_emitted_as_correct(bench: Bench) -> None:
    np.savez(bench.folder / "given.npz", x=np.full(4, np.nan, np.float32))
    bench.asks("{data: given.npz}")
    assert bench.build("*classifier*").exit_code == 1
    assert bench.failures == ["EPB665"]
    assert "the CPU EP itself returns NaN or infinity for 4 of 4 values" in bench.problems[0].message
    bench.asks("{data: given.npz, unjudged: emit}")
    assert bench.build("*classifier*").exit_code == 0
    assert "the CPU EP itself returns NaN" in bench.figures()["classifier"]["unjudged"]


def test_a_requested_real_device_is_checked_first_and_never_emulated(bench: Bench) -> None:
    bench.asks("{device: real}")
    bench.device = "cpu"
    assert bench.build("*classifier*").exit_code == 3
    assert bench.failures == ["EPB667"]
    assert "QNNExecutionProvider has no real device here: only cpu from Qualcomm, which emulates it" in bench.problems[0].message
    assert (bench.runs, bench.output("classifier").exists()) == ([], False)
    bench.device = "npu"
    assert bench.build("*classifier*").exit_code == 0
    (figures,) = bench.figures()["classifier"]["figures"]
    assert figures["device"] == "real"


def test_figures_of_an_emulator_do_not_count_for_a_real_device(bench: Bench) -> None:
    bench.asks("true")
    assert bench.build("*classifier*").exit_code == 0
    bench.runs.clear()
    bench.asks("{device: real}")
    assert bench.states()[VERIFY] == "out of date"
    steps = {step["id"]: step for step in json.loads(format_json(build_plan_document("epbuild.yaml", bench.survey())))["steps"]}
    assert [name for name, step in steps.items() if step.get("device") == "real"] == [VERIFY]
    assert bench.build("*classifier*").exit_code == 0
    assert bench.runs == ["CPU: classifier", "EP: classifier"]


def test_an_unloadable_group_is_compiled_unshared_and_marked(bench: Bench) -> None:
    bench.asks("true", SHARED)
    bench.cannot_share = True
    assert bench.build("*decoder*").exit_code == 0
    assert bench.runs == ["CPU: prefill", "CPU: decode", "EP: prefill+decode", "EP: prefill", "EP: decode"]
    assert bench.compiled == ["prefill+decode", "prefill", "decode"]
    figures = bench.figures("decoder")
    assert [figures[name]["figures"][0]["unshared"] for name in ("prefill", "decode")] == [True, True]


def outputs_of(bench: Bench, step: str) -> list[str]:
    return [event.text for event in bench.events if isinstance(event, StepOutput) and event.step == step]


def test_members_that_were_measured_alone_are_not_compiled_again_for_the_check(bench: Bench) -> None:
    gate = (
        "expect: {ep_context_nodes: 1, fallback_nodes: 1}",
        "expect: {fallback_nodes: 1, shared_bytes: {min_ratio: 0.1, measure: alone}}",
    )
    bench.write_recipe(gate, (SHARED, f"{SHARED}    verify: true\n"))
    bench.cannot_share = True
    assert bench.build("*decoder*").exit_code == 0
    assert bench.compiled == ["prefill+decode", "prefill", "decode"]
    restored = [f"restored {name}, which was compiled alone before" for name in ("prefill", "decode")]
    assert [text for text in outputs_of(bench, VERIFY_DECODER) if "running" not in text] == restored
    (bench.folder / "decode.onnx").write_bytes(source_model(7.0))
    bench.write_recipe((SHARED, f"{SHARED}    verify: true\n"))
    assert bench.build("*decoder*").exit_code == 0
    assert bench.compiled == ["prefill+decode", "decode"]
    compiling = "compiling decode without sharing, because the sharing group cannot be loaded here"
    assert [text for text in outputs_of(bench, VERIFY_DECODER) if "running" not in text] == [restored[0], compiling]
    assert not [text for text in outputs_of(bench, SHARE) if "alone" in text]


def test_a_damaged_result_of_a_member_alone_is_compiled_again(bench: Bench) -> None:
    bench.asks("true", SHARED)
    bench.cannot_share = True
    bench.build("*decoder*")
    records = open_action_records(bench.cache)
    documents = [records.peek(entry.name) or {} for entry in records.entries()]
    [prefill] = [found for found in documents if [member["name"] for member in found["document"]["members"]] == ["prefill"]]
    binary = BlobStore(bench.cache).place(prefill["result"]["artifacts"]["prefill_ctx_qnn.bin"]["digest"])
    binary.chmod(0o644)
    binary.write_bytes(b"x" * binary.stat().st_size)
    bench.asks("{data: {seed: 1}}", SHARED)
    assert bench.build("*decoder*").exit_code == 0
    assert bench.compiled == ["prefill"]


def test_a_loadable_group_is_run_with_sharing(bench: Bench) -> None:
    bench.asks("true", SHARED)
    assert bench.build("*decoder*").exit_code == 0
    assert bench.runs == ["CPU: prefill", "CPU: decode", "EP: prefill+decode"]
    assert "unshared" not in bench.figures("decoder")["decode"]["figures"][0]


def test_a_model_that_cannot_run_here_fails_unless_accepted(bench: Bench) -> None:
    bench.asks("true")
    bench.broken = "Compatible cache not found"
    assert bench.build("*classifier*").exit_code == 1
    assert bench.failures == ["EPB666"]
    assert "cannot be judged here: QNNExecutionProvider cannot load models that were compiled for several SoCs here" in (
        bench.problems[0].message
    )
    assert not bench.output("classifier").exists()
    bench.broken = ""
    assert bench.build("*classifier*").exit_code == 0  # the failure left no record
    bench.asks("{data: {seed: 1}, unjudged: emit}")
    bench.broken = "Compatible cache not found"
    assert bench.build("*classifier*").exit_code == 0
    assert bench.figures()["classifier"]["figures"] == []
    assert "cannot load models that were compiled for several SoCs" in bench.figures()["classifier"]["unjudged"]


def test_a_model_that_the_ep_cannot_run_fails_with_the_eps_message(bench: Bench) -> None:
    bench.asks("true")
    bench.broken = "Failed to get context binary info."
    assert bench.build("*classifier*").exit_code == 1
    assert bench.failures == ["EPB641"]
    assert "the model 'classifier' cannot be run on QNNExecutionProvider" in bench.problems[0].message


def test_one_member_can_skip_the_check_and_settings_are_merged(bench: Bench) -> None:
    bench.write_recipe((SHARED, "    models: [prefill, {model: decode, verify: false}]\n    verify: {metrics: {cosine: 0.5}}\n"))
    text = (bench.folder / "epbuild.yaml").read_text(encoding="utf-8")
    own = "{path: prefill.onnx, verify: {data: {seed: 7}}}"
    (bench.folder / "epbuild.yaml").write_text(text.replace("prefill: prefill.onnx", f"prefill: {own}"), encoding="utf-8")
    assert bench.build("*decoder*").exit_code == 0
    assert bench.runs[0] == "CPU: prefill"
    figures = bench.figures("decoder")
    assert figures["decode"] == {}
    assert len(figures["prefill"]["figures"]) == 1


def test_cancelling_a_build_stops_the_check(bench: Bench) -> None:
    seen: list[threading.Event] = []

    def stopped(command: object, folder: Path, log: Path, **options: Any) -> Ending:
        seen.append(options["cancelled"])
        options["cancelled"].set()
        return Ending("cancelled", -9, (), ())

    bench.asks("true")
    bench.build("compile:classifier*")
    bench.run_worker = stopped
    with pytest.raises(KeyboardInterrupt):
        bench.build("*classifier*")
    assert len(seen) == 1


def with_outputs(folder: Path, name: str, *outputs: str) -> ModelFiles:
    values = [helper.make_tensor_value_info(value, TensorProto.FLOAT, [4]) for value in ("x", *outputs)]
    nodes = [helper.make_node("Relu", ["x"], [output]) for output in outputs]
    onnx.save(helper.make_model(helper.make_graph(nodes, "graph", values[:1], values[1:])), folder / name)
    return ModelFiles(folder / name)


@pytest.mark.parametrize(
    ("outputs", "asked", "reference"),
    [
        (("y",), None, "source"),
        (("y", "z"), None, "prepared"),
        (("y",), "prepared", "prepared"),
        (("y", "z"), "source", "source"),
    ],
)
def test_a_prepared_model_is_compared_with_its_source_if_outputs_match(
    tmp_path: Path, outputs: tuple[str, ...], asked: Any, reference: str
) -> None:
    files = with_outputs(tmp_path, "source.onnx", *outputs)
    group = sharing_group("prefill")
    member = replace(group.members[0], prepared="prepare:prefill/1-cut", original=files)
    group = replace(group, members=(member,), share=False)
    signature = ModelSignature((ValueType("x", "float32", (4,)),), (ValueType("y", "float32", (4,)),))
    document = {"members": [{"name": "prefill", "graph": "b" * 64, "external": {}}]}
    model = ModelResult("prefill", signature, "a.onnx", {}, (), (), 0, {})
    result = CompileResult({}, Blob("ab" * 32, 0), Measurements(0.0, {}, None), (model,))
    choice = VerifyChoice(HERE, reference=asked)
    planned = Verification("decoder", group.target, (CheckedMember("prefill", group.id, choice),))
    planned = with_inputs(planned, {group.id: group}, {}, FileFinder(tmp_path, []), [])
    found = Verify().resolve_inputs(planned, [Made(group, "k", document, result)], BlobStore(tmp_path / "store"))
    assert found.members[0].reference == reference
    assert found.files == ((files.graph,) if reference == "source" else ())
    digests = {files.graph: "a" * 64}
    (listed,) = build_verification_document(found, digests, {})["members"]
    assert listed["graph"] == ("a" if reference == "source" else "b") * 64
