"""Machines that share a remote cache with the real compiler: concurrent, interrupted, and with any content."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epbuild.remote.keys import SigningKey
from tests.support.cache_server import CacheServer, Fault, serving_cache
from tests.support.gate import mark_rest_exhaustive
from tests.support.projects import Project
from tests.support.quick_builds import COMPILES, PATIENCE, check_no_leftovers, start, wait_until, write_model, write_project
from tests.support.remote_caches import DirectoryPlace, Place, ServerPlace

pytestmark = pytest.mark.gate

OURS = SigningKey.generate()
GROUPS, MANY_GROUPS = 8, 30
"""Number of groups of concurrent machines, without and with `-m exhaustive`."""
EXAMPLES = 4 if settings().max_examples < 100 else 200
Machine = Callable[[str], Project]


@pytest.fixture
def server() -> Iterator[CacheServer]:
    with serving_cache() as server:
        yield server


@pytest.fixture(params=mark_rest_exhaustive(["directory", "server"], sample=["directory"]))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "directory":
        return DirectoryPlace(tmp_path / "remote")
    return ServerPlace(request.getfixturevalue("server"))


def machine(folder: Path, place: Place) -> Project:
    """Return a machine without store and outputs that may read and write the remote cache."""
    folder.mkdir()
    project = write_project(Project(folder / "project", folder / "cache"))
    address = (
        str(place.root) if isinstance(place, DirectoryPlace) else place.server.address if isinstance(place, ServerPlace) else ""
    )
    project.edit("epbuild: 1\n", f"epbuild: 1\ncache: {{remote: '{address}', trust: ['{OURS.public}']}}\n")
    project.environment["EPBUILD_SIGNING_KEY"] = OURS.text
    return project


def with_groups(project: Project, count: int) -> Project:
    names = [f"model{number}" for number in range(count)]
    for number, name in enumerate(names):
        write_model(project.folder / f"{name}.onnx", number, width=16)
    text = project.recipe.read_text(encoding="utf-8")
    begin, middle, end = text.index("models:"), text.index("groups:"), text.index("outputs:")
    models = f"models: {{{', '.join(f'{name}: {name}.onnx' for name in names)}}}\n"
    groups = "groups:\n" + "".join(f"  {name}: {{models: [{name}], targets: [npu]}}\n" for name in names)
    project.recipe.write_text(
        text[:begin] + models + text[text.index("targets:\n", begin) : middle] + groups + text[end:], encoding="utf-8"
    )
    return project


def built(text: str) -> set[str]:
    events = [json.loads(line) for line in text.splitlines()]
    assert not [event for event in events if event["event"] == "warned"], text
    return {event["step"] for event in events if event["event"] == "step_finished" and event["outcome"] == "built"}


def test_two_concurrent_machines_run_each_action_once_or_simultaneously(place: Place, tmp_path: Path, exhaustive: bool) -> None:
    many = MANY_GROUPS if exhaustive else GROUPS
    one, other = (with_groups(machine(tmp_path / name, place), many) for name in ("one", "other"))
    running = [start(project, "run", "--remote-cache", "write", "--json", "-j", "2") for project in (one, other)]
    ended = [process.communicate(timeout=600) for process in running]
    for process, (text, errors) in zip(running, ended, strict=True):
        unfinished = [line for line in text.splitlines() if '"outcome": "failed"' in line or '"code"' in line]
        assert (process.returncode, errors) == (0, ""), "\n".join(unfinished)
    counts = Counter(step for text, _ in ended for step in built(text))
    assert (len(counts), len(place.names("ac"))) == (many, many)
    assert one.files() == other.files() != {}
    last = with_groups(machine(tmp_path / "last", place), many)
    done = last.epbuild("run", "--json", "-j", "2")
    assert (done.returncode, built(done.stdout)) == (0, set())
    assert last.files() == one.files()


@pytest.mark.parametrize("kind", mark_rest_exhaustive(["directory", "server"], sample=["server"]))
def test_any_content_of_a_remote_cache_leads_to_identical_outputs(
    kind: str, tmp_path_factory: pytest.TempPathFactory, server: CacheServer
) -> None:
    top = tmp_path_factory.mktemp("property")
    place: Place = DirectoryPlace(top / "remote") if kind == "directory" else ServerPlace(server)
    first = machine(top / "first", place)
    first.build("--remote-cache", "write")
    made = first.files()
    spaces = ("ac", "cas")
    objects = [(space, name, place.read(space, name) or b"") for space in spaces for name in place.names(space)]
    contents = [data for _, _, data in objects]

    def changed(data: bytes) -> st.SearchStrategy[bytes | None]:
        return st.one_of(
            st.just(data),
            st.none(),
            st.binary(max_size=200),
            st.sampled_from(contents),
            st.integers(0, max(0, len(data) - 1)).map(lambda at: data[:at]),
            st.integers(0, max(0, 8 * len(data) - 1)).map(
                lambda bit: data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
            ),
        )

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
    @given(held=st.tuples(*(changed(data) for data in contents)))
    def check(held: tuple[bytes | None, ...]) -> None:
        for (space, name, _), data in zip(objects, held, strict=True):
            place.write(space, name, data)
        folder = top / "next"
        project = machine(folder, place)
        done = project.epbuild("run")
        assert done.returncode == 0, done.stderr
        assert project.files() == made
        assert "Traceback" not in done.stderr
        shutil.rmtree(folder)

    check()


@pytest.mark.skipif(os.name == "nt", reason="sends signals as a terminal does")
@pytest.mark.parametrize("command", [("run", "--remote-cache", "write"), ("cache", "push")])
def test_an_interrupt_during_upload_leaves_no_partial_result(
    command: tuple[str, ...], server: CacheServer, tmp_path: Path
) -> None:
    place = ServerPlace(server)
    project = machine(tmp_path / "machine", place)
    if command[0] == "cache":
        project.build("--remote-cache", "off")
    server.faults.append(Fault("hang", "PUT", "cas"))
    process = start(project, *command)
    wait_until(lambda: server.count("PUT", "cas") > 0 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=PATIENCE / 4)  # a short time, on a machine that runs other work too
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
    assert errors.strip().endswith("epbuild: interrupted; finished work is kept")
    assert place.names("ac") == []
    server.faults.clear()
    assert project.epbuild(*command).returncode == 0
    assert len(place.names("ac")) == len(COMPILES)
    if command[0] == "run":
        check_no_leftovers(project)
