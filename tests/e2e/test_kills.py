"""`kill -9` at any moment: visible outputs are complete, no file stays behind, and the next build is right."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.support import warm_start
from tests.support.decoder_builds import DECODER, STAGES, find_keys, forget
from tests.support.gate import mark_rest_exhaustive
from tests.support.projects import Project
from tests.support.quick_builds import (
    PATIENCE,
    QUICK,
    STANDIN,
    Contents,
    Process,
    Subject,
    check_blobs,
    check_no_leftovers,
    check_no_workers,
    delete_store,
    start,
    wait_until,
    workers,
)
from tests.support.windows import IS_WINE

pytestmark = pytest.mark.gate

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="kills epbuild by a signal")

KILLS, SAMPLE = 5 if IS_WINE else 200, 5
"""Numbers of kills with `-m exhaustive`, and without. Under wine, a compile with QNN takes 30 times as long."""
STANDIN_KILLS = 50
SEED = 994011744
"""Seed of the gate. With 0.28 s for a build on two cores, it once left a draft that no later build removed."""
STEP_KILLS, STEP_SAMPLE = 8, 1
"""Numbers of kills during each kind of step with `-m exhaustive`, and without."""
STEP_CHANGES = 12
"""Number of kills before file operations of a kind of step that takes seconds. Other kinds are killed before each operation."""
SHORT_STEPS = ("copy", "emit")
KILLS_BETWEEN_BUILDS = 8
WORKER_SECONDS = 0.3
"""Approximate lifetime of a worker in seconds."""
LOOK_EVERY_SECONDS = 0.01
FEWEST_CHANGES = 20
"""Minimum number of file operations. A build with fewer was not killed as intended."""
EXIT_CODES_AFTER_A_KILLED_WORKER = {0, 1, 3} if sys.platform == "win32" else {0, 3}
"""Exit codes: success if the worker had just ended by itself, else a failure of the machine, not of the model. Windows does not tell
whether a process was killed."""

Reference = Mapping[str, Mapping[str, Contents]]
"""Expected content of each output directory, by the value of the subject's variable."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, quick_store: Path) -> Reference:
    return build_reference(QUICK, quick_store, tmp_path_factory)


@pytest.fixture(scope="module")
def standin_reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return build_reference(STANDIN, None, tmp_path_factory)


@pytest.fixture(scope="module")
def decoder_reference(tmp_path_factory: pytest.TempPathFactory, decoder_store: Path) -> Reference:
    return build_reference(DECODER, decoder_store, tmp_path_factory)


def build_reference(subject: Subject, store: Path | None, folders: pytest.TempPathFactory) -> Reference:
    """Return the outputs of undisturbed builds with each value, built in folders of their own."""
    made = {}
    for value in subject.values:
        folder = folders.mktemp("reference")
        if store is not None:
            shutil.copytree(store, folder / "cache")
        project = subject.write(Project(folder / "project", folder / "cache"))
        project.build("--set", f"{subject.variable}={value}")
        made[value] = {name: found or {} for name, found in subject.read(project).items()}
    assert len({str(made[value][subject.outputs[0]]) for value in subject.values}) == len(subject.values)
    return made


class Watched:
    """A project whose builds are killed, and checks of its visible outputs meanwhile."""

    def __init__(self, project: Project, subject: Subject, reference: Reference) -> None:
        self.project = subject.write(project)
        self.subject = subject
        self.reference = reference

    def outputs(self) -> dict[str, dict[str, bytes] | None]:
        return self.subject.read(self.project)

    def setting(self, value: str) -> tuple[str, str]:
        """Return the arguments of a build with a value."""
        return "--set", f"{self.subject.variable}={value}"

    def other_value(self) -> str:
        """Return a value whose outputs differ from the emitted ones."""
        name = self.subject.outputs[0]
        return next(value for value in self.subject.values if self.outputs()[name] != self.reference[value][name])

    def check_single_build(self) -> None:
        """Assert that an output directory has files of one build, each complete. Some may be missing during a replacement."""
        for name, found in self.outputs().items():
            if found is not None:
                assert any(found.items() <= made[name].items() for made in self.reference.values()), sorted(found)

    def check_complete(self) -> None:
        """Assert that each output directory is absent or completely of one build. No build may be running."""
        check_no_workers(self.project)
        for name, found in self.outputs().items():
            assert found is None or any(found == made[name] for made in self.reference.values()), sorted(found)
        check_blobs(self.project.cache)

    def check_build(self, value: str) -> None:
        done = self.project.epbuild("run", *self.setting(value))
        assert done.returncode == 0, done.stdout + done.stderr
        assert self.outputs() == self.reference[value]
        check_no_leftovers(self.project, self.subject.outputs)
        check_blobs(self.project.cache)

    def delete_store(self) -> None:
        delete_store(self.project.cache)

    @contextmanager
    def reading_outputs(self) -> Iterator[None]:
        """Read the outputs continuously while the block runs. On Windows, open files would delay their replacement."""
        if sys.platform == "win32":
            yield
            return
        over, broken = threading.Event(), []

        def read() -> None:
            try:
                while not over.wait(LOOK_EVERY_SECONDS):
                    self.check_single_build()
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


@pytest.fixture
def watched(project: Project, reference: Reference) -> Watched:
    return Watched(project, QUICK, reference)


@pytest.fixture
def watched_standin(project: Project, standin_reference: Reference) -> Watched:
    return Watched(project, STANDIN, standin_reference)


def kill(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()


def start_working_build(watched: Watched, value: str, step: str | None = None) -> Process:
    """Start a build, and return once it has started its work or this step."""
    build = start(watched.project, "run", "--json", "-j", "2", *watched.setting(value))
    assert build.stdout is not None
    # The first build warns of a workspace that outlived its store, which has the user's key.
    for line in iter(build.stdout.readline, ""):
        event = json.loads(line)
        if event["event"] == ("run_started" if step is None else "step_started") and event.get("step") == step:
            return build
    raise AssertionError(build.communicate())


def wait_for_a_worker(project: Project, build: Process) -> None:
    wait_until(lambda: bool(workers(project)) or build.poll() is not None)


def measure_build(watched: Watched, value: str, step: str | None = None) -> float:
    """Return the seconds from the moment when a build starts its work or this step to its end."""
    build = start_working_build(watched, value, step)
    begin = time.monotonic()
    build.communicate(timeout=PATIENCE)
    return time.monotonic() - begin


def seed_and_length(asked: str | None) -> tuple[int, float | None]:
    """Parse `--kills-seed`: a seed, and the duration of a build in seconds unless the test measures it."""
    if asked == "random":
        return random.SystemRandom().randrange(1 << 32), None
    seed, _, length = (asked or str(SEED)).partition(",")
    return int(seed), float(length) if length else None


@contextmanager
def noting_replay(test: str, seed: int, length: float, hits: Mapping[str, int]) -> Iterator[None]:
    """Add to failures in the block how to repeat the test, and the number of kills so far."""
    try:
        yield
    except Exception as error:
        error.add_note(f"after kills of {dict(hits)}; again: pytest {test} --kills-seed {seed},{length:.2f}")
        raise


@pytest.mark.parametrize("kind", mark_rest_exhaustive(["watched", "watched_standin"], sample=["watched"]))
def test_kills_at_random_moments_leave_no_partial_output(kind: str, request: pytest.FixtureRequest, exhaustive: bool) -> None:
    watched: Watched = request.getfixturevalue(kind)
    kills = (KILLS if kind == "watched" else STANDIN_KILLS) if exhaustive else SAMPLE
    first, second, *_ = watched.subject.values
    watched.check_build(first)
    seed, length = seed_and_length(request.config.getoption("--kills-seed", default=None))
    length = measure_build(watched, second) if length is None else length
    hits: Counter[str] = Counter()
    with noting_replay(request.node.nodeid, seed, length, hits):
        kill_at_random(watched, random.Random(seed), length, hits, kills)


def kill_at_random(watched: Watched, draw: random.Random, length: float, hits: Counter[str], kills: int) -> None:
    """Kill builds of this length until enough kills have hit, and check the leftover state each time."""
    project, values = watched.project, watched.subject.values
    while hits.total() < kills:
        victim = draw.choice(("epbuild", "epbuild", "worker", "both"))
        value = draw.choice(values)
        if victim != "epbuild" or draw.random() < 0.5:
            watched.delete_store()
        with watched.reading_outputs():
            build = start_working_build(watched, value)
            if victim == "epbuild":
                time.sleep(draw.uniform(0, length))
            else:
                wait_for_a_worker(project, build)
                time.sleep(draw.uniform(0, WORKER_SECONDS))
            kill_victim(project, build, victim, hits)
        watched.check_complete()
        if draw.random() < 1 / KILLS_BETWEEN_BUILDS:
            watched.check_build(draw.choice(values))
    watched.check_build(draw.choice(values))


def kill_victim(project: Project, build: Process, victim: str, hits: Counter[str]) -> None:
    """Kill a build, its workers or both unless they have ended, and wait for the end of the build."""
    victims = [] if victim == "worker" else [build.pid]
    if victim != "epbuild":
        victims += workers(project)
    if victims and build.poll() is None:
        hits[victim] += 1
        for pid in victims:
            kill(pid)
    _, told = build.communicate(timeout=PATIENCE)
    if victim == "worker":
        assert build.returncode in EXIT_CODES_AFTER_A_KILLED_WORKER, told
        assert "Traceback" not in told


# Kills epbuild just before the file operation with the given number.
KILLED_BEFORE_A_CHANGE = """
import os, signal, sys
CHANGES = {{"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "subprocess.Popen"}}
fatal, number, writing = {}, 0, os.O_WRONLY | os.O_RDWR
def before(event, arguments):
    global number
    if event in CHANGES or event == "open" and arguments[2] & writing:
        number += 1
        if number == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(before)
leave = os._exit
def told(code):
    os.write(2, b"changes: %d\\n" % number)
    leave(code)
os._exit = told
"""


@linux_only
@pytest.mark.parametrize("lost", ["the store", "nothing"])
def test_a_kill_before_any_file_operation_leaves_no_partial_output(watched: Watched, lost: str, exhaustive: bool) -> None:
    """Kill once before each file operation, of a build that compiles and of one that only emits."""
    for value in watched.subject.values:
        watched.check_build(value)
    lose = watched.delete_store if lost == "the store" else lambda: None
    kill_before_changes(watched, lose, ("epbuild.yaml", "*left*"), None if exhaustive else SAMPLE)


def kill_before_changes(watched: Watched, lose: Callable[[], None], names: Sequence[str], sample: int | None) -> None:
    """Build `names` and kill once before each file operation, or before some of them. Call `lose` before each build."""

    def build(killed_before: int) -> subprocess.CompletedProcess[str]:
        lose()
        arguments = ("run", *names, *watched.setting(watched.other_value()))
        before = KILLED_BEFORE_A_CHANGE.format(killed_before)
        environment = watched.project.command()[1]
        return warm_start.run(arguments, watched.project.folder, environment, timeout=PATIENCE, before=before)

    whole = build(killed_before=0)
    assert whole.returncode == 0, whole.stderr
    changes = int(whole.stderr.rpartition("changes: ")[2])
    assert changes > FEWEST_CHANGES
    every = range(1, changes + 1)
    for number in every if sample is None else sorted(random.Random(SEED).sample(every, min(sample, changes))):
        done = build(number)
        watched.check_complete()
        # The state that builds find varies a little, so the last operations may not happen.
        assert done.returncode == -signal.SIGKILL or (done.returncode == 0 and number > FEWEST_CHANGES), done.stderr
    watched.check_build(watched.other_value())


@pytest.fixture
def watched_decoder(project: Project, decoder_store: Path, decoder_reference: Reference, tmp_path: Path) -> Watched:
    shutil.copytree(decoder_store, project.cache)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    project.environment["TMPDIR"] = str(temporary)
    found = Watched(project, DECODER, decoder_reference)
    found.check_build(DECODER.values[0])
    return found


@pytest.fixture
def forget_stage(watched_decoder: Watched, kind: str) -> Callable[[], None]:
    """Return a function after which the next build repeats the action of a stage. It restores the results of all other actions."""
    key = find_keys(watched_decoder.project)[STAGES[kind].action]
    return lambda: forget(watched_decoder.project, key)


@linux_only
@pytest.mark.parametrize("kind", mark_rest_exhaustive(STAGES, sample=["copy"]))
def test_kills_during_each_kind_of_step_leave_no_partial_output(
    watched_decoder: Watched,
    kind: str,
    forget_stage: Callable[[], None],
    request: pytest.FixtureRequest,
    exhaustive: bool,
) -> None:
    """Kill builds of a decoder at random moments from the start of a step."""
    watched, step = watched_decoder, STAGES[kind].step
    seed, length = seed_and_length(request.config.getoption("--kills-seed", default=None))
    if length is None:
        forget_stage()
        length = measure_build(watched, watched.other_value(), step)
    draw, hits = random.Random(seed), Counter[str]()
    with noting_replay(request.node.nodeid, seed, length, hits):
        while hits.total() < (STEP_KILLS if exhaustive else STEP_SAMPLE):
            forget_stage()
            with watched.reading_outputs():
                build = start_working_build(watched, watched.other_value(), step)
                time.sleep(draw.uniform(0, length))
                kill_victim(watched.project, build, draw.choice(("epbuild", "worker", "both")), hits)
            watched.check_complete()
            watched.check_build(watched.other_value())


@linux_only
@pytest.mark.parametrize("kind", mark_rest_exhaustive(STAGES, sample=[]))
def test_a_kill_before_any_file_operation_of_a_step_leaves_no_partial_output(
    watched_decoder: Watched, kind: str, forget_stage: Callable[[], None]
) -> None:
    kill_before_changes(watched_decoder, forget_stage, (), None if kind in SHORT_STEPS else STEP_CHANGES)
