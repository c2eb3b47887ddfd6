"""Build records for reports: written after every kind of end, and free of cost if nothing was to do."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.cache.state import Configuration
from epbuild.commands.reporting.build_record import BuildRecord, BuildRecords
from epbuild.commands.reporting.recording import Recording
from epbuild.commands.reporting.report import report
from epbuild.commands.run import run
from epbuild.engine.events import Event, NoProgress, RunStarted, StepFinished, StepStarted
from epbuild.plan.steps import Plan, Step
from epbuild.session.events import Fetched, Fetching, ResultsShared, ToolchainReady, ToolchainStarted
from epbuild.session.request import Request
from epbuild.survey.action_status import ActionStatus
from epbuild.survey.status import Survey
from epbuild.toolchain.process import Ending
from tests.support.build_records import EMPTY
from tests.support.fake_builds import CLASSIFIER, COMPILES, SHARE, Workshop


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def files(workshop: Workshop) -> list[Path]:
    folder = workshop.folder / ".epbuild" / "reports"
    return sorted(folder.iterdir()) if folder.exists() else []


def last(workshop: Workshop) -> BuildRecord:
    found = BuildRecords(workshop.folder / ".epbuild").find_last(Configuration.of(workshop.request.recipe, (), {}).ident)
    assert found is not None
    return found


def test_records_have_totals_of_builds_of_the_whole_recipe(workshop: Workshop) -> None:
    workshop.build()
    found = report(workshop.request)
    [built] = found.history
    assert built.totals is not None
    assert built.totals.coverage == Counter(row.outcome for row in found.coverage)
    assert built.totals.size == sum(output.size for output in found.outputs)
    workshop.write_recipe(("quality: 3", "quality: 2"))
    workshop.build(SHARE)
    workshop.build()
    assert [build.totals is None for build in report(workshop.request).history] == [False, True, False]


def test_build_with_nothing_to_do_writes_no_record(workshop: Workshop) -> None:
    workshop.build()
    assert len(files(workshop)) == 1
    workshop.build()
    assert len(files(workshop)) == 1


def test_build_record_keeps_the_reasons_for_a_run(workshop: Workshop) -> None:
    workshop.build()
    workshop.write_recipe(("quality: 3", "quality: 2"))
    workshop.build()
    runs = {run.step: run for run in last(workshop).runs}
    assert any("htp_graph_finalization_optimization_mode" in reason for reason in runs[SHARE].because)
    assert CLASSIFIER not in runs, "which had nothing to do with it"
    assert [doing for doing, _ in runs[COMPILES[0]].phases] == ["staging"]


def test_interrupted_build_records_its_steps(workshop: Workshop) -> None:
    stop = threading.Event()

    def worker(command: object, folder: Path, log: Path, **options: Any) -> Ending:
        raise KeyboardInterrupt

    workshop.run_worker = worker
    with pytest.raises(KeyboardInterrupt):
        run(workshop.request, NoProgress(), stop)
    record = last(workshop)
    assert record.exit_code == 130
    assert {run.step: run.worker for run in record.runs if run.outcome == "interrupted"} == {COMPILES[0]: 0, SHARE: 0}


def test_build_that_raises_an_error_records_its_steps(workshop: Workshop) -> None:
    def worker(command: object, folder: Path, log: Path, **options: Any) -> Ending:
        raise RuntimeError("a mistake")

    workshop.run_worker = worker
    with pytest.raises(RuntimeError):
        workshop.build()
    assert last(workshop).exit_code == 1


def test_unreadable_or_unwritable_records_do_not_stop_a_build(workshop: Workshop) -> None:
    workshop.build()
    [path] = files(workshop)
    for damage in (b"", b"{", b"[]", b'{"format": 99}', b'{"format": 1}'):
        path.write_bytes(damage)
        assert BuildRecords(workshop.folder / ".epbuild").find_last("x" * 64) is None
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("in the way", encoding="utf-8")
    workshop.write_recipe(("quality: 3", "quality: 2"))
    assert workshop.build().exit_code == 0


def test_record_with_unreportable_numbers_is_ignored(workshop: Workshop) -> None:
    workshop.build()
    [path] = files(workshop)
    text = path.read_text(encoding="utf-8")
    assert last(workshop).seconds >= 0
    path.write_text(re.sub(r'"seconds":[0-9.]+', '"seconds":1e999', text), encoding="utf-8")
    assert BuildRecords(workshop.folder / ".epbuild").find_last(Configuration.of(workshop.request.recipe, (), {}).ident) is None


def test_only_the_latest_build_records_are_kept(tmp_path: Path) -> None:
    records = BuildRecords(tmp_path)
    for number in range(30):
        records.put(replace(EMPTY, began=1_800_000_000.0 + number, seconds=number))
    assert len(list((tmp_path / "reports").iterdir())) == 10
    found = records.find_last(EMPTY.configuration)
    assert found is not None
    assert found.seconds == 29
    (tmp_path / "reports" / "notes.txt").write_text("mine", encoding="utf-8")
    for name, age in ((".a-1.json", 100_000), (".b-2.json", 0)):
        (tmp_path / "reports" / name).write_text("half", encoding="utf-8")
        os.utime(tmp_path / "reports" / name, (time.time() - age,) * 2)
    records.put(replace(EMPTY, began=1_900_000_000.0))
    assert (tmp_path / "reports" / "notes.txt").exists()
    assert [path.name for path in (tmp_path / "reports").glob(".*")] == [".b-2.json"], "what another build may be writing"


def test_record_of_the_current_process_is_recognized(tmp_path: Path) -> None:
    records = BuildRecords(tmp_path)
    now = time.time()
    records.put(replace(EMPTY, began=now, process=-1))
    assert records.find_own(now - 1) is None
    records.put(record := replace(EMPTY, began=round(now + 1, 3)))
    assert records.find_own(now) == record
    assert records.find_own(now + 2) is None


def record_of_events(request: Request, steps: dict[str, str], *events: tuple[float, Event]) -> BuildRecord:
    """Return the record of a build of these steps, each with its action."""
    plan = Plan(tuple(Step(step, "compile", (), action) for step, action in steps.items()), {})
    recording = Recording(request, NoProgress())
    recording.found = Survey(plan, {action: ActionStatus("new", ()) for action in steps.values()}, tuple(steps.values()))
    recording.events += events
    recording.seconds = events[-1][0]
    return recording.record()


def test_concurrent_actions_get_distinct_worker_numbers(workshop: Workshop) -> None:
    found = record_of_events(
        workshop.request,
        {"a": "a", "b": "b", "c": "c", "d": "d"},
        (1.0, StepStarted("a", "compiling")),
        (2.0, StepStarted("b", "compiling")),
        (3.0, StepFinished("a", "built", 2.0)),
        (4.0, StepStarted("c", "compiling")),
        (5.0, StepFinished("b", "built", 3.0, machine="other")),
        (5.0, StepFinished("d", "restored", 0.0, from_="remote")),
        (6.0, StepFinished("c", "built", 2.0, memory=77)),
    )
    assert [(run.step, run.worker, run.started, run.ended, run.machine, run.origin, run.memory) for run in found.runs] == [
        ("a", 0, 1.0, 3.0, None, None, None),
        ("b", 1, 2.0, 5.0, "other", None, None),
        ("d", None, None, None, None, "remote", None),
        ("c", 0, 4.0, 6.0, None, None, 77),
    ]


def test_model_phase_ends_when_the_next_model_starts_and_share_spans_all(workshop: Workshop) -> None:
    found = record_of_events(
        workshop.request,
        dict.fromkeys(("one", "two", "share"), "share"),
        (1.0, StepStarted("one", "staging")),
        (2.0, StepStarted("one", "compiling")),
        (4.0, StepStarted("two", "compiling")),
        (9.0, StepFinished("one", "built", 2.0)),
        (9.0, StepFinished("two", "built", 4.0)),
        (9.0, StepFinished("share", "built", 8.0)),
    )
    assert [(run.step, run.worker, run.started, run.ended) for run in found.runs] == [
        ("one", 0, 1.0, 4.0),
        ("two", 0, 4.0, 9.0),
        ("share", 0, 1.0, 9.0),
    ]
    assert found.runs[0].phases == (("staging", 1.0), ("compiling", 2.0))


def test_toolchains_fetches_and_uploads_are_timed(workshop: Workshop) -> None:
    found = record_of_events(
        workshop.request,
        {},
        (1.0, Fetching("m", "hf://x", 0, None)),
        (1.5, Fetching("m", "hf://x", 5, 9)),
        (2.0, ToolchainStarted("qnn", "making")),
        (3.0, Fetched("m")),
        (4.0, ToolchainReady("qnn", "1.31.1", 2.0)),
        (4.0, ResultsShared("cache", 0, 2, 0, 9)),
        (4.5, ResultsShared("cache", 2, 2, 9, 9, 0.0)),
        (5.0, ToolchainStarted("other", "making")),
        (6.0, RunStarted("r", 0, 0)),
    )
    assert [(span.kind, span.name, span.started, span.ended, span.failed) for span in found.spans] == [
        ("fetch", "m", 1.0, 3.0, False),
        ("toolchain", "qnn", 2.0, 4.0, False),
        ("upload", "cache", 4.0, 4.5, False),
        ("toolchain", "other", 5.0, 6.0, True),
    ]
