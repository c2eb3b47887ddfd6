"""Concurrent builds: each action runs once, no build waits needlessly or reads incomplete files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.projects import Project, compiled
from tests.support.quick_builds import (
    COMPILES,
    GROUPS,
    PATIENCE,
    QUALITIES,
    STANDIN,
    Process,
    check_blobs,
    check_no_leftovers,
    delete_store,
    read_folder,
    start,
    wait_until,
    workers,
    write_model,
    write_project,
)

pytestmark = pytest.mark.gate

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="finds worker processes in /proc")

ROUNDS, SAMPLE = 5, 2
"""Repetitions of a race with `-m exhaustive`, and without."""
MANY_BUILDS = 20
Events = list[dict[str, Any]]


@pytest.fixture
def checkouts(tmp_path: Path, quick_store: Path) -> tuple[Project, Project]:
    """Return two checkouts of one project that share an empty store. The toolchain is provisioned."""
    first = write_project(Project(tmp_path / "first", tmp_path / "cache"))
    shutil.copytree(first.folder, tmp_path / "second")
    return first, Project(tmp_path / "second", first.cache)


def ended(*builds: Process, within: float = PATIENCE) -> list[Events]:
    """Wait for builds that have to succeed, and return their events."""
    told: dict[int, tuple[str, str]] = {}

    def wait(number: int, build: Process) -> None:
        told[number] = build.communicate(timeout=within)

    readers = [threading.Thread(target=wait, args=numbered) for numbered in enumerate(builds)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [build.returncode for build in builds] == [0] * len(builds), told
    return [[json.loads(line) for line in told[number][0].splitlines()] for number in range(len(builds))]


def outputs(project: Project) -> dict[str, dict[str, bytes] | None]:
    return {group: read_folder(project.folder / "dist" / group) for group in GROUPS}


@contextmanager
def checking_blobs(cache: Path) -> Iterator[None]:
    """Check the blobs of the store continuously while the block runs."""
    over, broken = threading.Event(), []

    def read() -> None:
        try:
            while not over.wait(0.05):
                check_blobs(cache)
        except BaseException as error:  # noqa: BLE001 - it is raised again where pytest sees it
            broken.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()
    if broken:
        raise broken[0]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_two_builds_in_one_workspace_run_each_action_once(
    checkouts: tuple[Project, Project], jobs: str, exhaustive: bool
) -> None:
    project, _ = checkouts
    for number in range(ROUNDS if exhaustive else SAMPLE):
        quality = ("--set", f"vars.quality={QUALITIES[number % len(QUALITIES)]}")
        delete_store(project.cache)
        with checking_blobs(project.cache):
            events = ended(*(start(project, "run", "--json", "-j", jobs, *quality) for _ in range(2)))
        assert sorted(step for one in events for step in compiled(one)) == sorted(COMPILES)
        assert project.epbuild("run", "--check", *quality).returncode == 0
        check_no_leftovers(project)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_two_checkouts_on_one_store_compile_each_action_once(
    checkouts: tuple[Project, Project], jobs: str, exhaustive: bool
) -> None:
    first, second = checkouts
    for number in range(ROUNDS if exhaustive else SAMPLE):
        quality = ("--set", f"vars.quality={QUALITIES[number % len(QUALITIES)]}")
        delete_store(first.cache)
        with checking_blobs(first.cache):
            events = ended(*(start(project, "run", "--json", "-j", jobs, *quality) for project in checkouts))
        assert sorted(step for one in events for step in compiled(one)) == sorted(COMPILES)
        assert outputs(first) == outputs(second)
        for project in checkouts:
            assert project.epbuild("run", "--check", *quality).returncode == 0
            check_no_leftovers(project)


@pytest.mark.exhaustive
def test_twenty_builds_at_once_lose_nothing_and_mix_no_results(tmp_path: Path) -> None:
    """Build three values at once in two checkouts that share an empty store."""
    first = STANDIN.write(Project(tmp_path / "first", tmp_path / "cache"))
    checkouts = (first, Project(tmp_path / "second", first.cache))
    alone = Project(tmp_path / "alone", tmp_path / "own cache")
    for project in (checkouts[1], alone):
        shutil.copytree(first.folder, project.folder)
    settings = [("--set", f"vars.quality={value}") for value in QUALITIES]
    expected = []
    for setting in settings:
        alone.build(*setting)
        expected.append(outputs(alone))

    with checking_blobs(first.cache):
        numbers = range(MANY_BUILDS)
        builds = [start(checkouts[n % 2], "run", "--json", "-j", "2", *settings[n % len(settings)]) for n in numbers]
        events = ended(*builds, within=10 * PATIENCE)
    compiles = Counter(step for one in events for step in compiled(one))
    assert compiles == dict.fromkeys(COMPILES, len(QUALITIES)), "each result is built once, by one build"
    for project in checkouts:
        check_no_leftovers(project)
        for group, files in outputs(project).items():
            assert files in [one[group] for one in expected]
        for setting, both in zip(settings, expected, strict=True):
            assert compiled(project.build(*setting)) == set()
            assert outputs(project) == both
        check_no_leftovers(project)


@contextmanager
def another_compiling_build(project: Project, steps: str) -> Iterator[Process]:
    """Run a build of these steps, and stop its worker in the first compile for as long as the block lasts."""
    build = start(project, "run", "--json", "-j", "1", "epbuild.yaml", steps)
    wait_until(lambda: bool(workers(project)))
    [worker] = workers(project)
    os.kill(worker, signal.SIGSTOP)
    try:
        yield build
    finally:
        os.kill(worker, signal.SIGCONT)


@linux_only
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_waiting_build_continues_with_its_other_actions(checkouts: tuple[Project, Project], jobs: str) -> None:
    first, second = checkouts
    write_model(second.folder / "right.onnx", 8)
    with another_compiling_build(first, "*left*") as other_build:
        build = start(second, "run", "--json", "-j", jobs)
        wait_until((second.folder / "dist/right/manifest.json").is_file)
        assert build.poll() is None
    [own, common] = ended(build, other_build)
    assert compiled(common) == {"compile:left/npu/left"}
    assert compiled(own) == {"compile:right/npu/right"}
    assert outputs(first)["left"] == outputs(second)["left"]


@linux_only
def test_a_waiting_build_reports_the_wait_and_restores_the_result(checkouts: tuple[Project, Project]) -> None:
    first, second = checkouts
    with another_compiling_build(first, "*left*") as other_build:
        build = start(second, "run", "--json", "epbuild.yaml", "*left*")
        assert build.stdout is not None
        told = [json.loads(build.stdout.readline()) for _ in range(3)]
        assert told[-1]["text"] == "waiting for another build that runs this action"
    [waited, _] = ended(build, other_build)
    assert [event["outcome"] for event in waited if event["event"] == "step_finished"] == ["restored", "emitted"]


@linux_only
def test_a_waiting_build_runs_the_action_of_a_killed_build(checkouts: tuple[Project, Project]) -> None:
    first, second = checkouts
    with another_compiling_build(first, "*left*") as other_build:
        build = start(second, "run", "--json", "epbuild.yaml", "*left*")
        assert build.stdout is not None
        assert any("waiting" in line for line in build.stdout)
        other_build.kill()
        other_build.communicate()
        [took_over] = ended(build)
        assert compiled(took_over) == {"compile:left/npu/left"}
    first.build()
    assert outputs(first)["left"] == outputs(second)["left"]
