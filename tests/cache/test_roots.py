"""Workspaces that the store knows as its users."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epbuild.cache.roots import Roots
from epbuild.core.errors import StoreError


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(tmp_path / "cache")


def workspace(tmp_path: Path, name: str) -> Path:
    directory = tmp_path / name / ".epbuild"
    directory.mkdir(parents=True)
    return directory


def test_registered_workspaces_are_listed_once_in_every_process(roots: Roots, tmp_path: Path) -> None:
    first, second = workspace(tmp_path, "größe"), workspace(tmp_path, "second")
    for directory in (first, second, first):
        roots.register(directory)
    assert Roots(tmp_path / "cache").list_workspaces() == (sorted([first, second]), [])


def test_missing_workspace_is_listed_separately_and_can_be_forgotten(roots: Roots, tmp_path: Path) -> None:
    gone = workspace(tmp_path, "gone")
    roots.register(gone)
    gone.rmdir()
    assert roots.list_workspaces() == ([], [gone])
    roots.forget(gone)
    assert roots.list_workspaces() == ([], [])


def test_recreated_workspace_is_not_forgotten(roots: Roots, tmp_path: Path) -> None:
    back = workspace(tmp_path, "back")
    roots.register(back)
    roots.forget(back)
    assert roots.list_workspaces() == ([back], [])


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000])
def test_damaged_entry_is_repaired_by_the_next_build(roots: Roots, tmp_path: Path, content: bytes) -> None:
    directory = workspace(tmp_path, "mine")
    roots.register(directory)
    [entry] = (tmp_path / "cache" / "roots").glob("*.json")
    entry.write_bytes(content)
    assert roots.list_workspaces() == ([], [])
    roots.register(directory)
    assert roots.list_workspaces() == ([directory], [])


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes among its files")
def test_pipe_in_place_of_an_entry_is_an_immediate_error(roots: Roots, tmp_path: Path) -> None:
    directory = workspace(tmp_path, "mine")
    roots.register(directory)
    [entry] = (tmp_path / "cache" / "roots").glob("*.json")
    entry.unlink()
    os.mkfifo(entry)
    with pytest.raises(StoreError, match="Not a regular file"):
        roots.register(directory)
    with pytest.raises(StoreError, match="Not a regular file"):
        roots.list_workspaces()


def test_listing_workspaces_creates_nothing(roots: Roots, tmp_path: Path) -> None:
    assert roots.list_workspaces() == ([], [])
    assert list(tmp_path.iterdir()) == []
