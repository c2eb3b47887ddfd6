"""The quickstart compiled on one machine and restored on another through a server."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from epbuild.remote.keys import SigningKey
from tests.support.cache_server import serving_cache
from tests.support.projects import Project, compiled, copy_of_quickstart


def machine_with(root: Path, remote: str, trust: str, name: str, **variables: str) -> Project:
    """Return the quickstart on a machine of that name below `root`, with an empty store and this remote cache."""
    project = copy_of_quickstart(root / name / "quickstart", root / name / "cache")
    project.edit("epbuild: 1\n", f"epbuild: 1\ncache: {{remote: '{remote}', trust: ['{trust}']}}\n")
    project.environment |= variables
    return project


def test_a_second_machine_compiles_nothing_and_emits_identical_bytes(tmp_path: Path) -> None:
    ours = SigningKey.generate()
    with serving_cache() as server:
        machine = partial(machine_with, tmp_path, server.address, ours.public)

        first = machine("first", EPBUILD_SIGNING_KEY=ours.text)
        assert len(compiled(first.build("--remote-cache", "write"))) > 0
        second = machine("second")
        server.requests.clear()
        planned = second.epbuild("plan", "--json")
        assert planned.returncode == 0, planned.stderr
        steps = json.loads(planned.stdout)["steps"]
        restorable = {step["id"] for step in steps if (step["state"], step["remote"]) == ("restorable", True)}
        assert restorable == {step["id"] for step in steps if step["kind"] != "emit"}
        assert server.count("GET", "cas") == 0
        text = second.epbuild("plan").stdout
        assert f"{len(restorable)} restorable (remote)" in text
        server.requests.clear()
        done = second.epbuild("run")
        assert (done.returncode, done.stderr) == (0, "")
        assert "from the remote cache" in done.stdout
        assert "remote cache: " in done.stdout
        assert len(server.requests) <= 40
        assert second.files() == first.files() != {}
        done = second.epbuild("cache", "verify", "--remote")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{server.address}: 4 results, 4 sound (1.9 MB read in ")
        done = first.epbuild("cache", "push", "--json")
        document = json.loads(done.stdout)
        assert (done.returncode, {result["outcome"] for result in document["results"]}) == (0, {"there"})
        assert "restorable (remote)" in machine("explained").epbuild("explain", "share:*").stdout
        fresh = machine("fresh")
        server.requests.clear()
        done = fresh.epbuild("run", "--no-emit")
        assert (done.returncode, done.stderr, server.count("GET", "cas"), fresh.files()) == (0, "", 0, {})
        done = fresh.epbuild("run", "--no-compile")
        assert (done.returncode, done.stderr, fresh.files()) == (0, "", first.files())
        third = machine("third")
        events = third.build()
        assert compiled(events) == set()
        assert {event["from"] for event in events if event["event"] == "step_finished" and event["outcome"] == "restored"} == {
            "remote"
        }
        assert third.files() == first.files()
        assert "Nothing to do" in third.epbuild("run").stdout


@pytest.mark.gate
def test_with_a_lock_a_machine_without_store_or_toolchain_installs_nothing(tmp_path: Path) -> None:
    ours = SigningKey.generate()
    with serving_cache() as server:
        machine = partial(machine_with, tmp_path, server.address, ours.public)

        def bare(name: str) -> Project:
            """Return a machine of another user that has no toolchain and cannot start uv."""
            project = machine(
                name, HOME=str(tmp_path / name), USER=name, EPBUILD_TOOLCHAIN_DIR=str(tmp_path / name / "toolchains")
            )
            project.environment |= {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / name / "uv")}
            shutil.copy(first.folder / "epbuild.lock", project.folder)
            return project

        first = machine("first", EPBUILD_SIGNING_KEY=ours.text)
        assert first.epbuild("lock").returncode == 0
        assert len(compiled(first.build("--remote-cache", "write"))) > 0
        second = bare("second")
        server.requests.clear()
        planned = second.epbuild("plan", "--json")
        assert planned.returncode == 0, planned.stderr
        steps = json.loads(planned.stdout)["steps"]
        states = {step["id"]: (step["state"], step["remote"]) for step in steps if step["kind"] != "emit"}
        assert states == dict.fromkeys(states, ("restorable", True))
        assert not (tmp_path / "second" / "cache").exists()
        server.requests.clear()
        events = second.build("--locked")
        assert len(server.requests) <= 40
        assert compiled(events) == set()
        assert not [event for event in events if event["event"].startswith("toolchain")]
        assert not (tmp_path / "second" / "toolchains").exists()
        assert second.files() == first.files() != {}
        assert "Nothing to do" in second.epbuild("run").stdout
