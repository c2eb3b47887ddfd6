"""Compiling one member of a sharing group alone, outside a build, as `epbuild verify` does."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from epbuild.cache.blobs import BlobStore
from epbuild.compile.alone import compile_alone
from epbuild.core.errors import BuildError
from epbuild.engine.events import EventList, StepOutput
from epbuild.plan.planner import make_plan
from epbuild.plan.result import CompileResult
from epbuild.plan.steps import SessionGroup
from epbuild.recipe.load import load
from epbuild.toolchain.execution import Execution
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import SHARE, Workshop, source_model

DOING = "compiling decode to see it alone"


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def plan_decoder(workshop: Workshop) -> SessionGroup:
    return make_plan(load(workshop.request.recipe)).session_groups[SHARE]


def compile_decode(workshop: Workshop, folder: Path) -> tuple[CompileResult, list[str]]:
    """Compile the member `decode` alone in a new folder. Return its result and the output of the step."""
    group, events = plan_decoder(workshop), EventList()
    folder.mkdir()
    environment = workshop.prepare(group.target.toolchain, None)
    store = BlobStore(workshop.cache)
    execution = Execution(environment, folder, folder.with_suffix(".log"), "log", store, events, threading.Event())
    result = compile_alone(group, group.member("decode"), execution, "verify:some", DOING)
    return result, [event.text for event in events if isinstance(event, StepOutput) and event.step == "verify:some"]


def test_a_member_is_compiled_alone_once(workshop: Workshop, tmp_path: Path) -> None:
    first, output = compile_decode(workshop, tmp_path / "first")
    assert (output, [model.member for model in first.models]) == ([DOING], ["decode"])
    second, output = compile_decode(workshop, tmp_path / "second")
    assert output == ["restored decode, which was compiled alone before"]
    assert (second, workshop.compiled) == (first, ["decode"])


def test_a_lost_result_is_compiled_again(workshop: Workshop, tmp_path: Path) -> None:
    first, _ = compile_decode(workshop, tmp_path / "first")
    workshop.lose_blobs()
    second, output = compile_decode(workshop, tmp_path / "second")
    assert (second.digests, output) == (first.digests, [DOING])


def test_a_model_that_changes_during_the_compile_is_not_stored(workshop: Workshop, tmp_path: Path) -> None:
    model = workshop.folder / "decode.onnx"

    def change(command: Any, folder: Path, log: Path, **options: Any) -> Ending:
        model.unlink()
        model.write_bytes(source_model(7.0))
        return workshop.worker(command, folder, log, **options)

    before = model.read_bytes()
    workshop.run_worker = change
    with pytest.raises(BuildError) as failure:
        compile_decode(workshop, tmp_path / "first")
    [problem] = failure.value.problems
    assert (problem.code, str(problem.where)) == ("EPB415", "verify:some")
    message = "the model 'decode' could not be compiled alone: an input changed meanwhile: model decode changed: "
    assert problem.message.startswith(message)
    workshop.run_worker = workshop.worker
    model.write_bytes(before)
    assert compile_decode(workshop, tmp_path / "second")[1] == [DOING]
