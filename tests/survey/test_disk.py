"""Disk space of a build: `plan` and `run` report a large share of the free space, and warn if there is too little."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from epbuild import api
from epbuild.engine.events import DiskNeeded, EventList, Warned
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action
from epbuild.report.terminal.plan import print_plan
from epbuild.survey.disk import Folders, estimate_disk, find_disk_problems
from epbuild.survey.status import Survey
from tests.support.fake_builds import Workshop, source_model


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def estimate(workshop: Workshop, free: int, previous: Any = lambda action: None) -> tuple[Survey, tuple[DiskNeeded, ...]]:
    found = api.plan(workshop.request)
    folders = Folders(workshop.cache, workshop.folder, lambda folder: free)
    return found, estimate_disk(found.plan, found.actions, found.todo, folders, previous)


def test_a_first_build_is_estimated_from_its_sources(workshop: Workshop) -> None:
    sources = sum(path.stat().st_size for path in workshop.folder.glob("*.onnx"))
    _, [needed] = estimate(workshop, free=sources)
    assert needed == DiskNeeded(str(workshop.cache), 2 * sources, sources), "the store and the outputs have a copy each"


def test_a_rebuild_is_estimated_from_the_last_results(workshop: Workshop) -> None:
    api.run(workshop.request)
    before = {ident: status.made for ident, status in api.plan(workshop.request).actions.items() if status.made is not None}
    (workshop.folder / "classifier.onnx").write_bytes((workshop.folder / "decode.onnx").read_bytes())

    def previous(action: Action) -> ActionResult | None:
        return before[action.id].result

    found, [needed] = estimate(workshop, 1000, previous)
    [ident] = [ident for ident in found.todo if ident in before]
    assert needed.size == 2 * sum(blob.size for blob in before[ident].result.artifacts.values())


def test_a_small_share_of_the_free_space_is_not_mentioned(workshop: Workshop) -> None:
    def previous(action: Action) -> ActionResult | None:
        raise AssertionError("no result is read")

    assert estimate(workshop, 10**9, previous)[1] == ()


def test_a_current_build_needs_no_space(workshop: Workshop) -> None:
    api.run(workshop.request)
    assert estimate(workshop, 1)[1] == ()


def test_a_plan_ends_with_the_estimate(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    set_free_bytes(monkeypatch, 2000)
    found = api.plan(workshop.request)
    print_plan(found)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("The build writes about ")
    assert last.endswith(f" to the file system of {workshop.cache}, where 2.0 kB are free.")
    assert [problem for problem in found.plan.warnings if problem.code == "EPB517"] == []


def test_too_little_space_is_a_warning_with_advice(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free_bytes(monkeypatch, 100)
    [problem] = [problem for problem in api.plan(workshop.request).plan.warnings if problem.code == "EPB517"]
    assert problem.message.endswith(f" to the file system of {workshop.cache}, but only 100 bytes are free")
    assert "epbuild gc" in str(problem.hint)
    events = EventList()
    api.run(workshop.request, events)
    assert [event.problem for event in events if isinstance(event, Warned)] == [problem]
    assert [event.free for event in events if isinstance(event, DiskNeeded)] == [100]
    assert list(find_disk_problems([DiskNeeded("x", 5, 5)], Path("x"))) == []


def test_cleaning_the_store_is_no_advice_for_another_disk() -> None:
    [problem] = find_disk_problems([DiskNeeded("out", 5, 4)], Path("cache"))
    assert problem.hint == "Free some space there, or build fewer steps at once."


def set_free_bytes(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = type(shutil.disk_usage("."))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**12, 0, free))


def test_the_parts_of_a_split_model_share_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(tmp_path / "cache"))
    model, recipe = tmp_path / "m.onnx", tmp_path / "epbuild.yaml"
    model.write_bytes(source_model(1.0))
    text = "epbuild: 1\nname: x\nmodels: {m: {path: m.onnx, split: {parts: 2}}}\ntargets: {npu: {ep: qnn, soc: SM8750}}\n"
    recipe.write_text(text, encoding="utf-8")
    found, folders = api.plan(recipe), Folders(tmp_path / "cache", tmp_path, lambda folder: 1)
    [needed] = estimate_disk(found.plan, found.actions, found.todo, folders, lambda action: None)
    copies = needed.size / model.stat().st_size
    assert round(copies, 1) == 4, "one is staged, and the parts, the compiled parts and the output have one each"
