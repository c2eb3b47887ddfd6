"""The user's settings: defaults below options, variables and the recipe, in a file that no project can choose."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from epbuild.cache.location import find_cache_directory
from epbuild.core.defaults import find_cache_root
from epbuild.core.errors import Position, RecipeError, StoreError
from epbuild.core.user_folders import find_settings_file, is_missing
from epbuild.core.user_settings import get_jobs, read_user_settings
from epbuild.recipe.remote_address import CacheChoice, parse_remote
from epbuild.remote.keys import SigningKey
from epbuild.remote.settings import read_user_cache, resolve_remote_settings
from epbuild.report.terminal.screen import has_colors
from epbuild.session.request import Request
from tests.support.commands import epbuild

OURS, THEIRS = SigningKey.generate().public, SigningKey.generate().public
FOLDER_VARIABLE = "APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the settings, in a folder of their own and without variables that override them."""
    for name in ("EPBUILD_CACHE_DIR", "EPBUILD_REMOTE_CACHE", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "config"))
    path = tmp_path / "config" / "epbuild" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def refused(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(StoreError) as caught:
        read_user_settings()
    assert find_cache_root() is None
    with pytest.raises(StoreError):
        find_cache_directory()
    return str(caught.value).removeprefix(str(file))


def test_settings_are_in_the_usual_place_of_the_system(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_settings_file() == str(file)
    monkeypatch.setenv(FOLDER_VARIABLE, "relative")
    assert find_settings_file() == str(Path.home().joinpath(*_below_home(), "epbuild", "config.toml"))


def _below_home() -> tuple[str, ...]:
    return ("AppData", "Roaming") if sys.platform == "win32" else (".config",)


def test_without_a_file_nothing_is_set(file: Path) -> None:
    assert read_user_settings() == {}
    assert read_user_cache() is None
    assert get_jobs() == (os.cpu_count() or 1)


def test_settings_are_defaults_that_variables_override(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    file.write_text(f"jobs = 3\ncolor = 'always'\ncache_dir = {json.dumps(str(store))}\n", encoding="utf-8")
    assert (Request().jobs, Request(jobs=5).jobs) == (3, 5)
    assert find_cache_directory() == store
    assert has_colors(io.StringIO())
    file.write_text("color = 'never'\n", encoding="utf-8")
    assert not has_colors(io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert has_colors(io.StringIO())
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(tmp_path / "other"))
    assert find_cache_directory() == tmp_path / "other"


def test_the_users_remote_cache_is_below_the_recipe_and_the_variable(file: Path, tmp_path: Path) -> None:
    file.write_text(f"remote_cache = 'https://mine.example/x'\nremote_trust = ['{OURS}']\n", encoding="utf-8")
    user = read_user_cache()
    where = Position("epbuild.yaml", 1, 1)
    theirs = CacheChoice(where, parse_remote("https://theirs.example/x"), (THEIRS,))
    trusting = CacheChoice(where, None, (THEIRS,))

    def resolve(cache: CacheChoice | None, **environment: str) -> tuple[str, set[str], bool] | None:
        variables = {"EPBUILD_REMOTE_AUTHORIZATION": "Bearer x", **environment}
        found = resolve_remote_settings(cache, tmp_path, variables, user=user)
        return (found.address.text, set(found.trust or ()), found.authorization is not None) if found is not None else None

    assert resolve(None) == ("https://mine.example/x", {OURS}, True)
    assert resolve(trusting) == ("https://mine.example/x", {OURS, THEIRS}, True)
    assert resolve(theirs) == ("https://theirs.example/x", {THEIRS}, False)
    assert resolve(trusting, EPBUILD_REMOTE_CACHE="https://env.example/x") == ("https://env.example/x", {THEIRS}, True)
    assert resolve(None, EPBUILD_REMOTE_CACHE="off") is None
    file.write_text("remote_cache = 'https://mine.example/x'\nremote_trust = ['secret']\n", encoding="utf-8")
    with pytest.raises(RecipeError, match="invalid public key in `remote_trust`"):
        read_user_cache()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# mine\ncolour = 'never'\n", ":2:1: unknown key 'colour'. Did you mean 'color'? [EPB519]"),
        ("[build]\njobs = 2\n", ":1:1: unknown key 'build'. Known keys: cache_dir, color, jobs,"),
        ("jobs = 2\njobs = 0x\n", ":2:"),
        ("jobs = 0\n", ":1:1: invalid value of 'jobs': expected a whole number of at least 1. [EPB519]"),
        ("jobs = true\n", ":1:1: invalid value of 'jobs'"),
        ("color = 'blue'\n", ":1:1: invalid value of 'color': expected one of auto, always, never"),
        ("cache_dir = 'here'\n", ":1:1: invalid value of 'cache_dir': expected an absolute path"),
        ("remote_cache = 'here'\n", ":1:1: invalid value of 'remote_cache': expected an absolute path, or an address"),
    ],
)
def test_an_invalid_setting_is_named_with_its_line(file: Path, text: str, message: str) -> None:
    assert refused(file, text).startswith(message)


@pytest.mark.skipif("sys.platform == 'win32'", reason="has no mode bits for other users")
def test_a_file_that_others_can_change_is_refused(file: Path) -> None:
    file.touch()
    file.chmod(0o666)
    assert ": other users can change the file. Remove their access: `chmod 600 " in refused(file, "jobs = 2\n")
    file.chmod(0o664)
    assert get_jobs() == 2


@pytest.mark.skipif("not hasattr(os, 'getuid') or os.getuid() != 0", reason="only root can change the owner of a file")
def test_a_file_of_another_user_is_refused(file: Path) -> None:
    file.touch()
    os.chown(file, 1000, -1)
    message = f": the file belongs to another user. Run epbuild as this user, or own the file: `chown 0 {file}`. [EPB519]"
    assert refused(file, "jobs = 2\n") == message


@pytest.mark.skipif("sys.platform == 'win32'", reason="only some users may create links")
def test_a_file_that_cannot_be_reached_is_refused(file: Path) -> None:
    file.parent.rmdir()
    file.parent.symlink_to(file.parent)
    with pytest.raises(StoreError, match="the file cannot be read: Too many levels of symbolic links"):
        read_user_settings()
    assert find_cache_root() is None
    assert not is_missing(str(file))


def test_a_file_in_the_place_of_the_folder_sets_nothing(file: Path) -> None:
    file.parent.rmdir()
    file.parent.touch()
    assert read_user_settings() == {}


@pytest.mark.slow
def test_commands_name_the_file_and_fail_if_it_is_invalid(file: Path, tmp_path: Path) -> None:
    file.write_text("jobs = 2\n", encoding="utf-8")
    variables = {FOLDER_VARIABLE: str(tmp_path / "config"), "EPBUILD_CACHE_DIR": ""}
    assert json.loads(epbuild(tmp_path, "version", "--json", **variables).stdout)["settings"] == str(file)
    file.write_text("job = 2\n", encoding="utf-8")
    done = epbuild(tmp_path, "cache", **variables)
    assert done.returncode == 3
    assert "unknown key 'job'. Did you mean 'jobs'? [EPB519]" in done.stderr
