"""`epbuild.api` for programs: typed, silent, usable from any thread, and cancelable."""

from __future__ import annotations

import ast
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import onnx
import pytest
from msgspec.structs import replace

from epbuild import api
from epbuild.engine.events import Event, EventList, StepStarted
from tests.support.commands import write_model
from tests.support.fake_builds import CLASSIFIER, EMIT_CLASSIFIER, STEPS, Workshop

ROOT = Path(__file__).parents[1]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def test_outdated_steps_are_built_and_reported(workshop: Workshop, capfd: pytest.CaptureFixture[str]) -> None:
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    assert [status.step.id for status in api.plan(workshop.request).steps() if status.state == "new"] == STEPS
    events = EventList()
    result = api.run(workshop.request, events)
    assert set(result.outcomes.values()) == {"built", "emitted"}
    assert list(result.outcomes) == [event.step for event in events if isinstance(event, api.StepFinished)]
    assert (result.failures, result.finished.exit_code) == ({}, 0)
    assert api.plan(workshop.request).up_to_date
    events = EventList()
    assert set(api.run(workshop.request, events).outcomes.values()) == {"current"}
    current = [event for event in events if isinstance(event, api.StepFinished)]
    assert sorted(event.step for event in current) == sorted(STEPS)
    assert {(event.outcome, event.progress) for event in current} == {("current", None)}
    assert {"digests", "references"} <= {
        finding.check for finding in api.verify(workshop.output()) if finding.outcome == "passed"
    }
    assert api.inspect(workshop.output() / "decode_ctx.onnx").sound
    assert capfd.readouterr() == ("", "")
    assert {number: signal.getsignal(number) for number in signals} == signals


def test_every_command_has_a_function_with_a_readable_result(workshop: Workshop, capfd: pytest.CaptureFixture[str]) -> None:
    found = api.validate(workshop.request)
    assert found.counts == {"model": 3, "target": 2, "group": 2, "step": 6}
    assert repr(found).endswith("epbuild.yaml is valid: 3 models, 2 targets, 2 groups, 6 steps")
    lines = repr(api.plan(workshop.request)).splitlines()
    assert (lines[0], lines[2].split()) == ("6 steps: 6 new", [STEPS[0], "new"])
    assert repr(api.coverage(workshop.request)).splitlines() == [
        "coverage: 3 partial",
        "model       target  outcome  fallback nodes  reason",
        "prefill     npu     partial  1",
        "decode      npu     partial  1",
        "classifier  plain   partial  1",
    ]
    assert not workshop.output().exists()
    assert repr(api.run(workshop.request)).splitlines()[0].endswith(" s: 4 current, 2 emitted")
    report = api.report(workshop.request)
    assert [row.outcome for row in report.coverage] == ["partial"] * 3
    assert repr(report).startswith("small: 6 steps: 6 current; last build: ")
    assert repr(api.verify(workshop.output())).splitlines()[0] == "21 findings: 1 skipped, 20 passed"
    assert repr(api.inspect(workshop.output() / "decode_ctx.onnx")).splitlines()[0] == "1 model"
    assert capfd.readouterr() == ("", "")


def test_a_lock_is_compared_and_written(workshop: Workshop) -> None:
    workshop.write_recipe(("packages: [onnxruntime-qnn==2.7.0]", f"interpreter: {sys.executable}"))
    lock = workshop.folder / "epbuild.lock"
    assert (api.lock(workshop.request, check=True).is_written, lock.exists()) == (False, False)
    written = api.lock(workshop.request)
    assert (written.is_written, lock.exists()) == (True, True)
    assert repr(written).splitlines()[-1].split() == ["added", "qnn", "onnxruntime-qnn", "2.7.0"]
    assert api.lock(workshop.request).changes == ()


def test_a_first_recipe_is_written_for_models(workshop: Workshop) -> None:
    models = [workshop.folder / "prefill.onnx", workshop.folder / "decode.onnx"]
    path = workshop.folder / "first.yaml"
    first = api.init(*models, ep="qnn", targets=["SM8750"], output=path)
    assert repr(first).splitlines()[0].endswith("first.yaml: 2 models for 1 target")
    assert api.validate(path).counts["model"] == 2
    for ep, wrong in (("qnn", "already exists"), ("npu9000", "invalid ep 'npu9000': expected one of ")):
        with pytest.raises(api.BadAnswer, match=wrong):
            api.init(*models, ep=ep, targets=["SM8750"], output=path)


def test_untrusted_text_in_a_result_is_neither_markup_nor_control_characters() -> None:
    shown = api.Findings([api.Finding("files", "<script>\x1b[31m", "failed", "x" * 500)])
    assert repr(shown).splitlines()[-1] == f"failed   files  <script>\\x1b[31m  {'x' * 160}..."
    assert ">&lt;script&gt;\\x1b[31m</td>" in shown._repr_html_()
    many = api.Findings([api.Finding("files", "f", "passed")] * 30)
    assert (repr(many).splitlines()[-1], many._repr_html_().count(">passed</td>")) == ("and 6 more", 24)


def test_an_interrupt_that_a_lock_replaces_by_its_own_error_is_an_interrupt(workshop: Workshop) -> None:
    class Interrupted:
        def report(self, event: Event, /) -> None:
            lock = threading.Lock()
            with lock:  # as an interrupted wait of a condition leaves it
                lock.release()
                raise KeyboardInterrupt

    for function in (api.run, api.coverage):
        with pytest.raises(KeyboardInterrupt):
            function(workshop.request, Interrupted())


def test_a_failed_build_raises_its_problems_and_outcomes(workshop: Workshop) -> None:
    workshop.write_recipe(("fallback_nodes: any", "fallback_nodes: 0"))
    with pytest.raises(api.BuildFailed) as failed:
        api.run(replace(workshop.request, keep_going=True))
    outcomes = failed.value.result.outcomes
    assert (outcomes[CLASSIFIER], outcomes[EMIT_CLASSIFIER], outcomes[STEPS[3]]) == ("failed", "skipped", "emitted")
    [problem] = failed.value.problems
    assert failed.value.result.failures == {CLASSIFIER: (problem,)}
    assert (problem.code[:4], str(problem.where)) == ("EPB4", CLASSIFIER) or problem.code.startswith("EPB6")


def test_a_mistake_in_the_recipe_has_its_position(workshop: Workshop) -> None:
    workshop.write_recipe(("plain: {toolchain: qnn", "plain: {toolchian: qnn"))
    for function in (api.plan, api.run):
        with pytest.raises(api.RecipeError) as refused:
            function(workshop.request)
        [problem, *_] = refused.value.problems
        assert isinstance(problem.where, api.Position)
        assert Path(problem.where.file).name == "epbuild.yaml"
        assert "toolchian" in problem.message


def test_a_build_in_another_thread_does_not_affect_the_process(workshop: Workshop) -> None:
    here = Path.cwd()
    done: list[api.BuildResult] = []
    folders = set[str]()

    class Folders:
        def report(self, event: Event, /) -> None:
            folders.add(os.getcwd())  # noqa: PTH109

    for _ in range(2):  # the second one reads a snapshot
        thread = threading.Thread(target=lambda: done.append(api.run(workshop.request, Folders())))
        thread.start()
        thread.join()
    assert [set(result.outcomes.values()) for result in done] == [{"built", "emitted"}, {"current"}]
    (workshop.folder / "classifier.onnx").write_bytes((workshop.folder / "decode.onnx").read_bytes())
    thread = threading.Thread(target=lambda: done.append(api.run(workshop.request, Folders())))
    thread.start()
    thread.join()
    assert [step for step, outcome in done[-1].outcomes.items() if outcome != "current"] == [CLASSIFIER, EMIT_CLASSIFIER]
    assert folders == {str(here)}


class _Node:
    """Object that refers to itself, which only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


def test_the_garbage_of_a_host_program_is_collected(workshop: Workshop) -> None:
    before = gc.isenabled(), gc.get_threshold()
    frozen = gc.get_freeze_count()
    cycles = []
    for call in (api.plan, api.run, api.plan, api.run):
        cycles += [weakref.ref(_Node()) for _ in range(100)]
        call(workshop.request)
    gc.collect()
    assert [cycle for cycle in cycles if cycle() is not None] == []
    assert (gc.isenabled(), gc.get_threshold()) == before
    assert gc.get_freeze_count() <= frozen  # those of the tests themselves may be freed


@pytest.mark.parametrize("main_thread", [True, False])
def test_a_build_is_cancelled_by_an_event(workshop: Workshop, main_thread: bool) -> None:
    cancelled = threading.Event()
    raised: list[BaseException] = []

    class CancelsAtOnce:
        def report(self, event: Event, /) -> None:
            if isinstance(event, StepStarted):
                cancelled.set()

    def build() -> None:
        try:
            api.run(workshop.request, CancelsAtOnce(), cancelled=cancelled)
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    if main_thread:
        build()
    else:
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
    assert [type(error) for error in raised] == [api.Cancelled]
    assert set(api.run(workshop.request).outcomes.values()) <= {"built", "emitted", "current", "restored"}


def test_an_exception_of_a_listener_ends_the_build_and_propagates(workshop: Workshop) -> None:
    class Broken:
        def report(self, event: Event, /) -> None:
            if isinstance(event, StepStarted):
                raise LookupError(event.step)  # noqa: TRY004

    with pytest.raises(LookupError):
        api.run(workshop.request, Broken())
    assert api.run(workshop.request).finished.failed == 0


def test_an_invalid_number_of_jobs_is_refused(workshop: Workshop) -> None:
    with pytest.raises(ValueError, match="invalid number of jobs '0': expected 1 or more"):
        api.Request(jobs=0)


def test_inspecting_several_files_shows_shared_files(workshop: Workshop) -> None:
    api.run(workshop.request)
    found = api.inspect(workshop.output())
    assert [Path(model["file"]).name for model in found.models] == ["decode_ctx.onnx", "prefill_ctx.onnx"]
    assert [shared["models"] for shared in found.shared] == [[model["file"] for model in found.models]]
    assert found.several


def test_the_types_of_an_inspection_match_its_contents(tmp_path: Path) -> None:
    from epbuild.verify import inspected

    write_model(tmp_path / "relu.onnx")
    [model] = api.inspect(tmp_path / "relu.onnx").models
    assert set(model) == set(inspected.InspectedModel.__annotations__)
    node = onnx.helper.make_node("EPContext", ["x"], ["y"], "n", domain="com.microsoft", embed_mode=1, ep_cache_context=b"1")
    values = [onnx.helper.make_tensor_value_info(name, 1, [1]) for name in ("x", "y")]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:1], values[1:])), tmp_path / "ctx.onnx")
    [compiled] = api.inspect(tmp_path / "ctx.onnx").models
    assert "problem" not in compiled
    assert set(compiled["ep_context_nodes"][0]) == set(inspected.InspectedNode.__annotations__)
    assert set(compiled["inputs"][0]) == set(inspected.InspectedValue.__annotations__)


def test_type_checkers_see_exactly_the_public_names() -> None:
    tree = ast.parse((ROOT / "epbuild/api.py").read_text(encoding="utf-8"))
    [typed] = [node for node in tree.body if isinstance(node, ast.If)]
    names = {(str(node.module), alias.name) for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {pair for pair in names if pair[0].startswith("epbuild")} == {
        (module, name) for module, found in api._MODULES.items() for name in found
    }
    for module, name in names:
        assert getattr(api, name, None) is not None or not module.startswith("epbuild")
    assert {"plan", "run", "verify", "inspect", "Request"} <= set(dir(api))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        api.nothing  # noqa: B018


@pytest.mark.slow
def test_importing_the_api_loads_no_other_module(tmp_path: Path) -> None:
    script = "import sys, epbuild.api; print(*sorted(name for name in sys.modules if name.startswith('epbuild')))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["epbuild", "epbuild.api"]
