"""Memory limit of a build, based on the recipe, on measurements, or on the models' sizes."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.cache.leases import lease
from epbuild.cache.workspace import Workspace
from epbuild.commands.run import run
from epbuild.engine.capacity import estimate_memory
from epbuild.engine.events import EventList, StepFinished
from epbuild.survey.orphans import get_lease_name
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import CLASSIFIER, EMIT_CLASSIFIER, SHARE, Workshop

PATIENCE = 5
"""Seconds that a worker waits for the other to run at the same time."""


class Together:
    """Wrapper of a workshop's worker that records whether two workers ever run at once."""

    def __init__(self, workshop: Workshop, patience: float) -> None:
        self.seen = False
        self._barrier = threading.Barrier(2)
        self._patience = patience
        self._worker = workshop.worker
        workshop.run_worker = self._supervise

    def _supervise(self, *arguments: Any, **options: Any) -> Ending:
        try:
            self._barrier.wait(self._patience)
            self.seen = True
        except threading.BrokenBarrierError:
            self._barrier.reset()
        ending = self._worker(*arguments, **options)
        *most, last = ending.reports
        return replace(ending, reports=(*most, {**last, "peak_memory": 7_000_000}))


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def build(workshop: Workshop, memory: int | None) -> None:
    events = EventList()
    run(replace(workshop.request, jobs=2, memory=memory), events)


@pytest.mark.slow
def test_waiting_for_another_build_is_not_measured_as_work(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    status = workshop.survey()
    keys = [str(status.actions[group].key) for group in (SHARE, CLASSIFIER)]
    place = status.plan.emissions[EMIT_CLASSIFIER].path.relative_to(workshop.folder).as_posix()
    held, free = threading.Event(), threading.Event()

    def another_build() -> None:
        folder = workshop.folder / ".epbuild"
        with ExitStack() as stack:
            for root, key in [*((workshop.cache, key) for key in keys), (folder, get_lease_name(place))]:
                stack.enter_context(lease(root, key))
            held.set()
            free.wait(PATIENCE)

    other = threading.Thread(target=another_build)
    other.start()
    assert held.wait(PATIENCE)
    threading.Timer(1.5, free.set).start()
    workshop.build()
    other.join()
    ended = {event.step: event.seconds for event in workshop.events if isinstance(event, StepFinished)}
    assert max(ended.values()) < 1
    with Workspace.open(workshop.folder / ".epbuild") as workspace:
        for group in (SHARE, CLASSIFIER):
            measured = workspace.measurement(group)
            assert measured is not None
            assert measured.seconds < 1


def test_session_groups_run_concurrently_if_memory_suffices(workshop: Workshop) -> None:
    together = Together(workshop, PATIENCE)
    build(workshop, 3 * estimate_memory(10_000))
    assert together.seen


def test_session_groups_run_in_turn_if_memory_does_not_suffice(workshop: Workshop) -> None:
    together = Together(workshop, 0.3)
    build(workshop, estimate_memory(10_000))
    assert not together.seen


def test_measured_memory_overrides_the_estimate_from_sizes(workshop: Workshop) -> None:
    Together(workshop, 0.3)
    build(workshop, 1)
    with Workspace.open(workshop.folder / ".epbuild") as workspace:
        for group in (SHARE, CLASSIFIER):
            measured = workspace.measurement(group)
            assert measured is not None
            assert measured.peak_rss_bytes == 7_000_000
    workshop.packages["onnxruntime"] = "1.32.0"
    together = Together(workshop, PATIENCE)
    build(workshop, 15_000_000)
    assert together.seen


def test_memory_in_the_recipe_overrides_measurements(workshop: Workshop) -> None:
    workshop.write_recipe(("    share_weights: true\n", "    share_weights: true\n    memory: 8 GB\n"))
    together = Together(workshop, 0.3)
    build(workshop, 8_000_000_000)
    assert not together.seen
