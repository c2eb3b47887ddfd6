"""What a user may rely on from signing in: what they set comes first, what `docker login` wrote is found, and nothing of it is shown."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from epbuild.registry.credentials import UnusableCredentials, credentials_for, docker_config, kept_elsewhere

HOST = "registry.example:5000"
PASSWORD = "open sesame"
AUTH = {"auth": base64.b64encode(f"ci:{PASSWORD}".encode()).decode()}


@pytest.fixture(autouse=True)
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docker's folder of a user who has set nothing."""
    monkeypatch.delenv("EPBUILD_REGISTRY_USER", raising=False)
    monkeypatch.delenv("EPBUILD_REGISTRY_PASSWORD", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker"


def write(docker: Path, document: Any) -> None:
    (docker / "config.json").write_text(json.dumps(document), encoding="utf-8")


def found(host: str = HOST) -> tuple[str, str] | None:
    credentials = credentials_for(host)
    return None if credentials is None else (credentials.user, credentials.password)


def test_without_anything_a_registry_is_tried_as_nobody() -> None:
    assert found() is None
    assert not kept_elsewhere(HOST)


def test_the_environment_comes_before_what_docker_knows(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(docker, {"auths": {HOST: AUTH}})
    assert found() == ("ci", PASSWORD)
    monkeypatch.setenv("EPBUILD_REGISTRY_USER", "me")
    monkeypatch.setenv("EPBUILD_REGISTRY_PASSWORD", "pässword:with:colons")
    assert found() == ("me", "pässword:with:colons")


def test_a_broken_docker_config_does_not_matter_to_who_set_the_environment(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (docker / "config.json").write_text("{", encoding="utf-8")
    monkeypatch.setenv("EPBUILD_REGISTRY_USER", "me")
    monkeypatch.setenv("EPBUILD_REGISTRY_PASSWORD", PASSWORD)
    assert found() == ("me", PASSWORD)


@pytest.mark.parametrize("only", ["EPBUILD_REGISTRY_USER", "EPBUILD_REGISTRY_PASSWORD"])
def test_half_of_a_sign_in_is_told_and_nothing_else_is_taken(docker: Path, monkeypatch: pytest.MonkeyPatch, only: str) -> None:
    write(docker, {"auths": {HOST: AUTH}})
    monkeypatch.setenv(only, PASSWORD)
    with pytest.raises(UnusableCredentials, match=f"{only} is set, and ") as caught:
        found()
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "key", [HOST, f"https://{HOST}", f"https://{HOST}/v1/", f"http://{HOST}/v2/", "https://Registry.Example:5000"]
)
def test_docker_s_ways_to_name_a_registry_are_all_known(docker: Path, key: str) -> None:
    write(docker, {"auths": {"other.example": {"auth": "b3RoZXI6b3RoZXI="}, key: AUTH}})
    assert found() == ("ci", PASSWORD)


@pytest.mark.parametrize(
    "host", ["registry.example", "registry.example:5001", "xregistry.example:5000", "registry.example:5000.evil.example"]
)
def test_another_registry_does_not_get_them(docker: Path, host: str) -> None:
    write(docker, {"auths": {HOST: AUTH}})
    assert found(host) is None


@pytest.mark.parametrize(
    "entry",
    [
        AUTH,
        {"username": "ci", "password": PASSWORD},
        {"auth": base64.b64encode(f"ci:{PASSWORD}\0\0".encode()).decode()},
    ],
)
def test_docker_s_ways_to_keep_a_password_are_all_read(docker: Path, entry: Mapping[str, str]) -> None:
    write(docker, {"auths": {HOST: entry}})
    assert found() == ("ci", PASSWORD)


@pytest.mark.parametrize("entry", [{}, {"auth": ""}, {"auth": None}, {"username": "ci"}, None, 7, {"email": "ci@example.com"}])
def test_an_entry_without_a_password_is_none(docker: Path, entry: Any) -> None:
    write(docker, {"auths": {HOST: entry}})
    assert found() is None


@pytest.mark.parametrize("text", ["{", "[]", "5", '"auths"', '{"auths": {"registry.example:5000": {"auth": "%%%"}}}', "\xff"])
def test_a_docker_config_that_cannot_be_read_is_told_by_its_path(docker: Path, text: str) -> None:
    (docker / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(UnusableCredentials) as caught:
        found()
    assert str(docker / "config.json") in caught.value.message


def test_a_huge_docker_config_is_not_read_into_memory(docker: Path) -> None:
    (docker / "config.json").write_bytes(b" " * (2 << 20))
    with pytest.raises(UnusableCredentials):
        found()


def test_a_docker_config_that_is_no_file_is_told(docker: Path) -> None:
    (docker / "config.json").mkdir()
    with pytest.raises(UnusableCredentials):
        found()


@pytest.mark.parametrize("document", [{"auths": []}, {"auths": None}, {"credHelpers": 5}, {}])
def test_sections_of_another_type_are_none(docker: Path, document: Any) -> None:
    write(docker, document)
    assert found() is None
    assert not kept_elsewhere(HOST)


@pytest.mark.parametrize(
    "document",
    [
        {"credsStore": "desktop"},
        {"credHelpers": {HOST: "ecr-login"}},
        {"auths": {HOST: {"auth": "", "identitytoken": "secret"}}},
    ],
)
def test_what_is_kept_where_epbuild_does_not_look_is_known(docker: Path, document: Any) -> None:
    write(docker, document)
    assert found() is None
    assert kept_elsewhere(HOST)


def test_docker_s_folder_is_the_users_unless_it_is_said(monkeypatch: pytest.MonkeyPatch, docker: Path) -> None:
    assert docker_config() == docker / "config.json"
    monkeypatch.delenv("DOCKER_CONFIG")
    assert docker_config() == Path.home() / ".docker" / "config.json"


def test_a_user_that_no_header_can_hold_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPBUILD_REGISTRY_USER", "a:b")
    monkeypatch.setenv("EPBUILD_REGISTRY_PASSWORD", PASSWORD)
    with pytest.raises(UnusableCredentials):
        found()


def test_neither_is_shown_when_they_are_printed(docker: Path) -> None:
    write(docker, {"auths": {HOST: AUTH}})
    credentials = credentials_for(HOST)
    assert credentials is not None
    shown = f"{credentials} {credentials!r}"
    assert PASSWORD not in shown
    assert AUTH["auth"] not in shown
    assert credentials.basic == f"Basic {AUTH['auth']}"


def test_neither_is_shown_in_a_traceback(docker: Path) -> None:
    write(docker, {"auths": {HOST: {"auth": f"!{PASSWORD}"}}})
    with pytest.raises(UnusableCredentials) as caught:
        found()
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
