"""`NumbersCheck` alone, with a function as its worker: the results, and the runs that they need."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper

from epbuild.cache.blobs import BlobStore
from epbuild.core.errors import BuildError, Problem
from epbuild.engine.events import NoProgress
from epbuild.onnxfile.read.headers import read_header
from epbuild.plan.member import ModelFiles
from epbuild.toolchain.execution import Execution
from epbuild.toolchain.process import Ending
from epbuild.verify.live.inputs import Sample
from epbuild.verify.live.numbers_check import MemberResult, NumbersCheck, Subject, compile_unshared
from epbuild.verify.live.source import RunnableSource
from epbuild.verify.live.verdict import format_losses
from epbuild.verify.live.worker import RAISED, LoadFailure
from tests.verify.live.fake_trials import session

NAMES = ("prefill", "decode")
CANNOT_SHARE = LoadFailure("prefill", "the machine cannot load shared contexts", "EPB640", cannot_load=True)


class Runs:
    """Worker that returns each input, times `factor` on an EP. The model `fails` fails in the step `when`."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.prepared_factor = 1.0
        """Factor of a prepared model on the CPU EP."""
        self.breaks_prepared = False
        self.fails = ""
        self.when = "running"
        self.on_cpu = False
        self.last = 10
        """Number of inputs that the worker runs before it ends."""
        self.requests: list[tuple[str, list[str]]] = []

    def __call__(self, command: Sequence[str], folder: Path, log: Path, **options: Any) -> Ending:
        request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        on_ep = bool(request["eps"])
        self.requests.append(("EP" if on_ep else "CPU", [model["name"] for model in request["models"]]))
        reports: list[dict[str, Any]] = []
        for model in request["models"]:
            failing = model["name"] == self.fails and on_ep != self.on_cpu
            if (failing and self.when == "running") or (self.breaks_prepared and "prepared" in model["file"]):
                return self._failed(model["name"], reports)
            cpu_factor = self.prepared_factor if "prepared" in model["file"] else 1
            for number, inputs in enumerate(model["inputs"][: self.last if on_ep else None]):
                with np.load(inputs["file"]) as given:
                    np.savez(inputs["outputs"], given["arr_0"] * np.float32(self.factor if on_ep else cpu_factor))
                reports.append({"event": "ran", "model": model["name"], "run": number, "outputs": ["y"]})
        if self.fails and self.when == "closing" and on_ep:
            return self._failed(self.fails, reports)
        return Ending("exited", 0, (*reports, {"event": "finished", "peak_memory": 1 << 20}), ())

    def _failed(self, name: str, reports: list[dict[str, Any]]) -> Ending:
        failure = {"event": "failed", "kind": "error", "type": "Fail", "message": "it is broken"}
        return Ending("exited", 1, (*reports, {"event": self.when, "model": name}, failure), ())


@pytest.fixture
def runs() -> Runs:
    return Runs()


def check(folder: Path, runs: Runs, **options: Any) -> NumbersCheck:
    on_ep = session(folder)
    on_ep = replace(on_ep, environment=replace(on_ep.environment, run_worker=runs))
    return NumbersCheck({name: folder / f"{name}_ctx.onnx" for name in NAMES}, on_ep, folder / "scratch", **options)


def subject(folder: Path, name: str, samples: int = 1) -> Subject:
    values = [helper.make_tensor_value_info(value, TensorProto.FLOAT, [4]) for value in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], name, values[:1], values[1:])
    onnx.save(helper.make_model(graph), folder / f"{name}.onnx")
    source = RunnableSource(folder / f"{name}.onnx", {}, read_header(folder / f"{name}.onnx"), {})
    arrays = [Sample(f"set {number}", {"x": np.arange(1, 5, dtype=np.float32)}) for number in range(samples)]
    return Subject(name, source, arrays, ("x",))


def compared(folder: Path, runs: Runs, **options: Any) -> dict[str, MemberResult]:
    subjects = [subject(folder, name) for name in NAMES]
    return {result.subject.name: result for result in check(folder, runs, **options).compare(subjects)}


def test_models_run_together_after_their_sources(tmp_path: Path, runs: Runs) -> None:
    runs.factor = 1.5
    found = compared(tmp_path, runs)
    assert runs.requests == [("CPU", ["prefill"]), ("CPU", ["decode"]), ("EP", ["prefill", "decode"])]
    for result in found.values():
        assert (result.failure, result.unshared) == (None, None)
        assert result.measured is not None
        assert result.measured.figures[0].max_abs == 2.0
        assert result.measured.worst is not None
        assert result.measured.worst.place == "y[3]: expected 4, got 6"


def test_a_failure_applies_to_all_later_models(tmp_path: Path, runs: Runs) -> None:
    runs.fails = "decode"
    found = compared(tmp_path, runs)
    assert found["prefill"].measured is not None
    assert found["decode"].measured is None
    assert [result.failure.model for result in found.values() if result.failure is not None] == ["decode", "decode"]


def test_models_are_measured_even_if_closing_fails(tmp_path: Path, runs: Runs) -> None:
    runs.fails, runs.when = "decode", "closing"
    for result in compared(tmp_path, runs).values():
        assert result.measured is not None
        assert result.failure is not None
        assert result.failure.message.startswith("closing the model failed")


def test_a_failing_source_affects_only_its_own_model(tmp_path: Path, runs: Runs) -> None:
    runs.fails, runs.on_cpu = "prefill", True
    found = compared(tmp_path, runs)
    assert found["prefill"].source_failure is not None
    assert found["prefill"].source_failure.code == RAISED
    assert found["decode"].measured is not None


def test_a_worker_that_skips_samples_is_a_failure(tmp_path: Path, runs: Runs) -> None:
    runs.last = 1
    [result] = check(tmp_path, runs).compare([subject(tmp_path, "prefill", samples=2)])
    assert result.measured is None
    assert result.failure is not None
    assert (result.failure.model, result.failure.code) == ("prefill", "EPB642")


def test_models_that_cannot_load_together_are_compiled_unshared(tmp_path: Path, runs: Runs) -> None:
    compiled = []

    def compile_unshared(subject: Subject, staging: Path) -> Path:
        compiled.append(subject.name)
        if subject.name == "decode":
            raise BuildError(Problem("EPB400", "it does not compile"))
        return staging / "model.onnx"

    checking = check(tmp_path, runs, compile_unshared=compile_unshared)
    found = {
        result.subject.name: result for result in checking.compare([subject(tmp_path, name) for name in NAMES], CANNOT_SHARE)
    }
    assert compiled == ["prefill", "decode"]
    assert runs.requests[2:] == [("EP", ["prefill"])]
    assert {result.unshared for result in found.values()} == {CANNOT_SHARE}
    assert found["prefill"].measured is not None
    assert "it does not compile" in str(found["decode"].compile_error)
    assert [log.relative_to(tmp_path / "scratch").as_posix() for log in checking.logs] == [
        "reference-0/worker.log", "reference-1/worker.log", "alone-0.log", "alone-0/run/worker.log", "alone-1.log",
    ]  # fmt: skip


def prepared_subject(folder: Path) -> Subject:
    """Return a subject whose source was prepared."""
    plain = subject(folder, "prefill")
    result = folder / "prepared.onnx"
    result.write_bytes(plain.source.graph.read_bytes())
    return replace(plain, source=replace(plain.source, prepared=ModelFiles(result)))


def test_losses_of_the_preparations_and_of_the_ep_are_measured_separately(tmp_path: Path, runs: Runs) -> None:
    runs.prepared_factor, runs.factor = 1.1, 1.32
    [result] = check(tmp_path, runs).compare([prepared_subject(tmp_path)])
    assert result.measured is not None
    losses = result.measured.losses["y"]
    assert losses.preparation.snr_db == pytest.approx(20, abs=0.1)  # a difference of 0.1 of the reference
    assert losses.ep.snr_db == pytest.approx(14, abs=0.1)  # a difference of 0.2 of the prepared model's output
    assert result.measured.figures[0].snr_db == pytest.approx(9.9, abs=0.1)
    assert format_losses(losses) == (
        "most of the difference comes from the EP (preparations alone: cosine 1.000000, snr_db 20.0; "
        "EP alone: cosine 1.000000, snr_db 14.0)"
    )


def test_model_is_judged_even_if_its_prepared_source_cannot_run(tmp_path: Path, runs: Runs) -> None:
    runs.breaks_prepared = True
    [result] = check(tmp_path, runs).compare([prepared_subject(tmp_path)])
    assert result.measured is not None
    assert result.measured.losses == {}


def test_a_compile_is_repeated_in_an_empty_folder(tmp_path: Path) -> None:
    store, attempts = BlobStore(tmp_path / "store"), []
    (tmp_path / "made").write_bytes(b"model")
    blob = store.put(tmp_path / "made")

    def compile_alone(group: Any, member: Any, execution: Execution, step: str, doing: str) -> Any:
        (execution.staging / "out").mkdir()
        attempts.append(execution.log)
        digest = "0" * 64 if len(attempts) == 1 else blob.digest
        return SimpleNamespace(digests={"m.onnx": digest}, model=lambda name: SimpleNamespace(file="m.onnx"))

    log, alone = tmp_path / "alone.log", tmp_path / "alone"
    alone.mkdir()
    environment: Any = None
    execution = Execution(environment, alone, log, "log", store, NoProgress(), threading.Event())
    member: Any = SimpleNamespace(name="m")
    found = compile_unshared(compile_alone, member, member, execution, "verify:x")
    assert (found.read_bytes(), attempts) == (b"model", [log, log])
