"""Pushed images without local files: each blob goes from its source to the registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.commands.run import run
from epbuild.core.errors import PlanError
from epbuild.engine.events import EventList, RunFinished
from epbuild.session.request import RemoteChoice
from tests.session.shared_machines import ALL_COMPILES, Machines, origins, warnings
from tests.support.fake_builds import CLASSIFIER, SHARE, Workshop
from tests.support.registry_pushes import as_nobody
from tests.support.registry_server import Registry, serving
from tests.support.remote_caches import DirectoryPlace, Place

IMAGES = ("emit:decoder/npu/oci", "emit:classifier/plain/oci")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_nobody(monkeypatch, tmp_path)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving(Registry) as registry:
        yield registry


@pytest.fixture
def machines(machines: Machines, registry: Registry) -> Machines:
    def machine(name: str) -> Workshop:
        workshop = machines(name)
        recipe = workshop.folder / "epbuild.yaml"
        push = f"registry: '127.0.0.1:{registry.port}/small/${{group}}:1', provenance: true"
        image = f'  - {{layout: directory, path: "images/${{group}}", archive: oci, {push}}}\n'
        recipe.write_text(recipe.read_text(encoding="utf-8") + image, encoding="utf-8")
        return workshop

    return machine


def push(workshop: Workshop, *selection: str, compiles: bool = True) -> RunFinished:
    workshop.compiled.clear()
    workshop.events = EventList()
    run(replace(workshop.request, selection=selection, push_only=True, compiles=compiles), workshop.events)
    [finished] = [event for event in workshop.events if isinstance(event, RunFinished)]
    return finished


def images(registry: Registry) -> set[str]:
    """Return the manifests of a registry by digest. Both images have one tag, and the fake has no repositories."""
    return {name for name in registry.manifests if name.startswith("sha256:")}


def shared(machines: Machines, registry: Registry) -> set[str]:
    """Build everything on a machine that writes. Return the registry's manifests, and empty the registry."""
    writer = machines("writer")
    writer.remote = RemoteChoice("write")
    assert writer.build().exit_code == 0
    assert sorted(writer.compiled) == sorted(ALL_COMPILES)
    made = images(registry)
    registry.manifests.clear()
    registry.blobs.clear()
    registry.requests.clear()
    return made


def test_an_image_is_pushed_from_the_remote_cache(place: Place, machines: Machines, registry: Registry) -> None:
    made = shared(machines, registry)
    reader = machines("reader")
    assert push(reader).exit_code == 0
    assert images(registry) == made != set()
    assert (reader.compiled, warnings(reader)) == ([], [])
    # Models are read here to rewrite their references. Context binaries pass through.
    assert not [blob for blob in reader.blobs() if blob.read_bytes().startswith(b"by ")]
    assert not (reader.folder / "images").exists()
    assert not (reader.folder / "dist").exists()
    assert set(origins(reader)) >= {*IMAGES, SHARE, CLASSIFIER}
    assert {origins(reader)[step] for step in IMAGES} == {("emitted", None)}
    assert origins(reader)[SHARE] == ("restored", "remote")
    assert reader.states()[IMAGES[0]] == "new"  # no part of it is here


def test_blobs_in_the_registry_are_not_read_again(
    machines: Machines, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", str(tmp_path / "remote"))
    place = DirectoryPlace(tmp_path / "remote")
    shared(machines, registry)
    reader = machines("reader")
    push(reader)
    for name in place.names("cas"):
        place.write("cas", name, b"" if (place.read("cas", name) or b"").startswith(b"by ") else place.read("cas", name))
    registry.requests.clear()
    assert push(reader).exit_code == 0
    sent = [path for path in registry.asked("PUT") if "/blobs/" in path]
    assert (reader.compiled, sent, warnings(reader)) == ([], [], [])


def test_only_selected_images_are_pushed(place: Place, machines: Machines, registry: Registry) -> None:
    shared(machines, registry)
    reader = machines("reader")
    assert push(reader, "emit:classifier/*").exit_code == 0
    assert set(origins(reader)) == {IMAGES[1], CLASSIFIER}
    assert "1" in registry.manifests


def test_an_image_is_pushed_from_the_store(machines: Machines, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", "off")
    first = machines("first")
    assert push(first).exit_code == 0
    assert sorted(first.compiled) == sorted(ALL_COMPILES)
    made = images(registry)
    registry.manifests.clear()
    registry.blobs.clear()
    assert push(first).exit_code == 0
    assert (first.compiled, images(registry)) == ([], made)
    assert first.build().exit_code == 0  # with its folders
    assert (first.compiled, images(registry)) == ([], made)


@pytest.mark.parametrize("harm", ["damaged", "gone", "longer", "shorter"])
def test_unusable_remote_results_are_rebuilt_before_a_push(
    harm: str, place: Place, machines: Machines, registry: Registry
) -> None:
    made = shared(machines, registry)
    for name in place.names("cas"):
        data = place.read("cas", name) or b""
        changed = {"damaged": data[:-1] + bytes([data[-1] ^ 1]), "gone": None, "longer": data + b"x", "shorter": data[:-1]}[harm]
        place.write("cas", name, changed)
    reader = machines("reader")
    assert push(reader).exit_code == 0
    assert (sorted(reader.compiled), images(registry)) == (sorted(ALL_COMPILES), made)


def test_without_compiling_missing_results_prevent_a_push(place: Place, machines: Machines, registry: Registry) -> None:
    reader = machines("reader")
    assert push(reader, compiles=False).exit_code == 1
    assert (set(reader.failures), registry.requests) == ({"EPB406"}, [])


def test_a_recipe_that_pushes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    with pytest.raises(PlanError, match="no requested output is pushed to a registry"):
        push(workshop)


def test_pushing_does_not_change_local_outputs(place: Place, machines: Machines, registry: Registry) -> None:
    first = machines("first")
    assert first.build().exit_code == 0
    before = first.contents()
    registry.requests.clear()
    assert push(first).exit_code == 0
    assert (registry.requests, first.contents()) == ([], before)  # outputs that are current here were pushed
    assert {outcome for outcome, _ in origins(first).values()} == {"current"}
