"""Location of the store, and the settings that change it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from epbuild.cache.location import find_cache_directory, tag_cache
from epbuild.core.errors import StoreError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("EPBUILD_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("platform", ["linux", "win32", "darwin"])
def test_environment_variable_sets_the_cache_on_every_platform(
    home: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(home / "elsewhere"))
    assert find_cache_directory() == home / "elsewhere"


def test_relative_variable_is_resolved_against_the_current_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("EPBUILD_CACHE_DIR", "cache")
    assert find_cache_directory() == home / "cache"


@pytest.mark.parametrize(
    ("platform", "below_home"),
    [
        ("linux", ".cache/epbuild"),
        ("win32", "AppData/Local/epbuild/cache"),
        ("darwin", "Library/Caches/epbuild"),
    ],
)
def test_default_cache_follows_the_platform_convention(
    home: Path, monkeypatch: pytest.MonkeyPatch, platform: str, below_home: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert find_cache_directory() == home / below_home


@pytest.mark.parametrize(
    ("platform", "variable", "below"),
    [("linux", "XDG_CACHE_HOME", "epbuild"), ("win32", "LOCALAPPDATA", "epbuild/cache")],
)
def test_cache_variable_of_the_platform_is_respected(
    home: Path, monkeypatch: pytest.MonkeyPatch, platform: str, variable: str, below: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, str(home / "caches"))
    assert find_cache_directory() == home / "caches" / below


def test_relative_xdg_directory_is_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert find_cache_directory() == home / ".cache" / "epbuild"


def test_missing_home_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as if this user had no home directory
    with pytest.raises(StoreError, match="EPBUILD_CACHE_DIR"):
        find_cache_directory()


def test_backup_programs_recognize_a_store_as_a_cache(home: Path) -> None:
    root = home / "cache" / "epbuild"
    tag_cache(root)
    tag = root / "CACHEDIR.TAG"
    # Required by https://bford.info/cachedir/: the file begins with these 43 bytes.
    assert tag.read_bytes()[:43] == b"Signature: 8a477f597d28d172789f06886806bc55"
    assert [path.name for path in root.iterdir()] == ["CACHEDIR.TAG"]
    before = tag.stat()
    tag_cache(root)
    assert (tag.stat().st_ino, tag.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
