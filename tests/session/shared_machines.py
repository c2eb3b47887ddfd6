"""Machines that build the same checkout and share a remote cache, each with a store of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epbuild.engine.events import StepFinished, Warned
from epbuild.plan.remote_record import COMPILE
from epbuild.remote.envelope import seal, unseal
from epbuild.remote.keys import SigningKey
from epbuild.session.events import RemoteCacheUsed
from epbuild.session.request import RemoteChoice
from tests.support.cache_server import serving_cache
from tests.support.fake_builds import Workshop
from tests.support.remote_caches import DirectoryPlace, Place, ServerPlace

OURS, THEIRS = SigningKey.generate(), SigningKey.generate()
ALL_COMPILES = ["prefill+decode", "classifier"]

Machines = Callable[[str], Workshop]


@contextmanager
def remote_place(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yield a remote cache in a directory or on a strict server. The environment names it."""
    if kind == "directory":
        monkeypatch.setenv("EPBUILD_REMOTE_CACHE", str(tmp_path / "remote"))
        yield DirectoryPlace(tmp_path / "remote")
        return
    with serving_cache() as server:
        monkeypatch.setenv("EPBUILD_REMOTE_CACHE", server.address)
        yield ServerPlace(server)


def machines_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """Return a function that creates a checkout and a store on a machine that reads the remote cache."""
    monkeypatch.setenv("EPBUILD_SIGNING_KEY", OURS.text)

    def machine(name: str) -> Workshop:
        workshop = Workshop(tmp_path / name, tmp_path / f"cache-{name}", monkeypatch)
        workshop.write_recipe(("outputs:\n", f"cache: {{trust: ['{OURS.public}']}}\noutputs:\n"))
        workshop.remote = RemoteChoice()
        return workshop

    return machine


def shared_by(machines: Machines) -> dict[str, dict[str, bytes]]:
    """Build on a first machine that writes to the remote cache, and return its outputs."""
    writer = machines("writer")
    writer.remote = RemoteChoice("write")
    assert writer.build().exit_code == 0
    assert writer.compiled == ALL_COMPILES
    assert warnings(writer) == []
    return outputs(writer)


def outputs(workshop: Workshop) -> dict[str, dict[str, bytes]]:
    return {group: workshop.contents(group) for group in ("decoder", "classifier")}


def warnings(workshop: Workshop) -> list[str]:
    return [event.problem.code for event in workshop.events if isinstance(event, Warned)]


def origins(workshop: Workshop) -> dict[str, tuple[str, str | None]]:
    return {event.step: (event.outcome, event.from_) for event in workshop.events if isinstance(event, StepFinished)}


def used(workshop: Workshop) -> RemoteCacheUsed:
    [event] = [event for event in workshop.events if isinstance(event, RemoteCacheUsed)]
    return event


def cut(place: Place) -> None:
    """Truncate every record."""
    for name in place.names("ac"):
        place.write("ac", name, (place.read("ac", name) or b"")[:-9])


def signed_by_another(place: Place) -> None:
    """Sign every record with a key that no recipe trusts."""
    for name in place.names("ac"):
        found = unseal(place.read("ac", name) or b"", COMPILE, name, None)
        place.write("ac", name, seal(COMPILE, name, found.record, THEIRS))  # type: ignore[union-attr]
