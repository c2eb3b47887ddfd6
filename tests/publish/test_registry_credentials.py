"""Registry credentials: the user's settings come first, then those of `docker login`. None of them are shown."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from epbuild.publish.registry.credentials import CredentialsError, find_credentials, find_docker_config

HOST = "registry.example:5000"
PASSWORD = "open sesame"
AUTH = {"auth": base64.b64encode(f"ci:{PASSWORD}".encode()).decode()}


@pytest.fixture(autouse=True)
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return Docker's folder of a user without any settings."""
    monkeypatch.delenv("EPBUILD_REGISTRY", raising=False)
    monkeypatch.delenv("EPBUILD_REGISTRY_USER", raising=False)
    monkeypatch.delenv("EPBUILD_REGISTRY_PASSWORD", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker"


def write(docker: Path, document: Any) -> None:
    (docker / "config.json").write_text(json.dumps(document), encoding="utf-8")


def found(host: str = HOST) -> tuple[str, str] | None:
    credentials = find_credentials(host)
    return None if credentials is None else (credentials.user, credentials.password)


def test_registry_is_anonymous_without_credentials() -> None:
    assert found() is None


def test_environment_overrides_the_docker_configuration(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(docker, {"auths": {HOST: AUTH}})
    assert found() == ("ci", PASSWORD)
    monkeypatch.setenv("EPBUILD_REGISTRY", HOST)
    monkeypatch.setenv("EPBUILD_REGISTRY_USER", "me")
    monkeypatch.setenv("EPBUILD_REGISTRY_PASSWORD", "pässword:with:colons")
    assert found() == ("me", "pässword:with:colons")


def test_environment_works_despite_a_broken_docker_config(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (docker / "config.json").write_text("{", encoding="utf-8")
    monkeypatch.setenv("EPBUILD_REGISTRY", HOST)
    monkeypatch.setenv("EPBUILD_REGISTRY_USER", "me")
    monkeypatch.setenv("EPBUILD_REGISTRY_PASSWORD", PASSWORD)
    assert found() == ("me", PASSWORD)


def test_registry_named_only_by_a_recipe_gets_no_environment_credentials(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPBUILD_REGISTRY_USER", "me")
    monkeypatch.setenv("EPBUILD_REGISTRY_PASSWORD", PASSWORD)
    with pytest.raises(CredentialsError, match="EPBUILD_REGISTRY_USER is set, but EPBUILD_REGISTRY is not") as caught:
        found("evil.example")
    assert "HOST:PORT" in caught.value.hint
    monkeypatch.setenv("EPBUILD_REGISTRY", HOST)
    assert found("evil.example") is None
    assert found(HOST) == ("me", PASSWORD)


@pytest.mark.parametrize("only", ["EPBUILD_REGISTRY_USER", "EPBUILD_REGISTRY_PASSWORD"])
def test_incomplete_credentials_are_refused_without_a_fallback(docker: Path, monkeypatch: pytest.MonkeyPatch, only: str) -> None:
    write(docker, {"auths": {HOST: AUTH}})
    monkeypatch.setenv(only, PASSWORD)
    with pytest.raises(CredentialsError, match=f"{only} is set, but ") as caught:
        found()
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "key", [HOST, f"https://{HOST}", f"https://{HOST}/v1/", f"http://{HOST}/v2/", "https://Registry.Example:5000"]
)
def test_every_docker_spelling_of_a_registry_is_found(docker: Path, key: str) -> None:
    write(docker, {"auths": {"other.example": {"auth": "b3RoZXI6b3RoZXI="}, key: AUTH}})
    assert found() == ("ci", PASSWORD)


@pytest.mark.parametrize(
    "host", ["registry.example", "registry.example:5001", "xregistry.example:5000", "registry.example:5000.evil.example"]
)
def test_other_registries_get_no_credentials(docker: Path, host: str) -> None:
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
def test_every_docker_form_of_a_password_is_read(docker: Path, entry: Mapping[str, str]) -> None:
    write(docker, {"auths": {HOST: entry}})
    assert found() == ("ci", PASSWORD)


@pytest.mark.parametrize("entry", [{}, {"auth": ""}, {"auth": None}, {"username": "ci"}, None, 7, {"email": "ci@example.com"}])
def test_entry_without_a_password_has_no_credentials(docker: Path, entry: Any) -> None:
    write(docker, {"auths": {HOST: entry}})
    assert found() is None


@pytest.mark.parametrize("text", ["{", "[]", "5", '"auths"', '{"auths": {"registry.example:5000": {"auth": "%%%"}}}', "\xff"])
def test_unreadable_docker_config_is_reported_with_its_path(docker: Path, text: str) -> None:
    (docker / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CredentialsError) as caught:
        found()
    assert str(docker / "config.json") in caught.value.message


def test_huge_docker_config_is_not_read_into_memory(docker: Path) -> None:
    (docker / "config.json").write_bytes(b" " * (2 << 20))
    with pytest.raises(CredentialsError):
        found()


def test_docker_config_that_is_a_folder_is_reported(docker: Path) -> None:
    (docker / "config.json").mkdir()
    with pytest.raises(CredentialsError):
        found()


@pytest.mark.parametrize("document", [{"auths": []}, {"auths": None}, {"credHelpers": 5}, {}])
def test_config_sections_of_a_wrong_type_are_ignored(docker: Path, document: Any) -> None:
    write(docker, document)
    assert found() is None


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that installs a credential helper in PATH. It prints a given text and records its input."""

    def install(name: str, said: str, status: int = 0) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        asked = folder / f"{name}.asked"
        script = folder / f"{name}.py"
        script.write_text(
            "import pathlib, sys\n"
            f"pathlib.Path({str(asked)!r}).write_text(sys.argv[1] + ' ' + sys.stdin.read(), encoding='utf-8')\n"
            f"sys.stderr.write({PASSWORD!r})\n"
            f"sys.stdout.write({said!r})\n"
            f"sys.exit({status})\n",
            encoding="utf-8",
        )
        program = folder / f"docker-credential-{name}{'.cmd' if os.name == 'nt' else ''}"
        line = (
            f'@"{sys.executable}" "{script}" %*\n' if os.name == "nt" else f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n'
        )
        program.write_text(line, encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
        return asked

    return install


KEPT = json.dumps({"ServerURL": HOST, "Username": "ci", "Secret": PASSWORD})
NOT_FOUND = "credentials not found in native keychain\n"
Install = Callable[..., Path]


@pytest.mark.parametrize(
    "document",
    [
        {"credsStore": "desktop"},
        {"credHelpers": {HOST: "desktop"}, "credsStore": "other"},
        {"credHelpers": {f"https://{HOST}": "desktop"}},
        {"credHelpers": {"other.example": "other"}, "credsStore": "desktop", "auths": {HOST: {}}},
    ],
)
def test_credential_helper_of_docker_is_queried(docker: Path, helper: Install, document: Any) -> None:
    asked = helper("desktop", KEPT)
    write(docker, document)
    assert found() == ("ci", PASSWORD)
    assert asked.read_text(encoding="utf-8") == f"get {HOST}"
    credentials = find_credentials(HOST)
    assert credentials is not None
    assert (credentials.source, credentials.is_identity) == ("docker-credential-desktop", False)


@pytest.mark.parametrize(("said", "status"), [(NOT_FOUND, 1), ('{"Username": "", "Secret": ""}', 0)])
def test_helper_without_an_entry_falls_back_to_the_configuration(docker: Path, helper: Install, said: str, status: int) -> None:
    helper("desktop", said, status)
    write(docker, {"credsStore": "desktop"})
    assert found() is None
    write(docker, {"credsStore": "desktop", "auths": {HOST: AUTH}})
    assert found() == ("ci", PASSWORD)


def test_missing_helper_is_reported_unless_a_password_is_configured(docker: Path) -> None:
    write(docker, {"credsStore": "not-there"})
    with pytest.raises(CredentialsError, match=r"docker-credential-not-there.*is not installed, or not in PATH") as caught:
        found()
    assert caught.value.hint == "Install it, or set EPBUILD_REGISTRY, EPBUILD_REGISTRY_USER and EPBUILD_REGISTRY_PASSWORD."
    write(docker, {"credsStore": "not-there", "auths": {HOST: AUTH}})
    assert found() == ("ci", PASSWORD)


@pytest.mark.parametrize(
    ("said", "status", "told"),
    [
        ("no credentials username", 1, "has an entry without a user"),
        ("no credentials server URL\n", 1, "has an entry without a registry"),
        (f"cannot unlock {PASSWORD}", 3, "exited with status 3"),
        (PASSWORD, 0, "returned invalid credentials"),
        (json.dumps([PASSWORD]), 0, "returned invalid credentials"),
        (json.dumps({"Username": ["ci"], "Secret": PASSWORD}), 0, "returned invalid credentials"),
        ("[" * 100_000, 0, "returned invalid credentials"),
        ("", 0, "returned invalid credentials"),
    ],
)
def test_failing_helper_is_reported_without_its_output(docker: Path, helper: Install, said: str, status: int, told: str) -> None:
    helper("desktop", said, status)
    write(docker, {"credsStore": "desktop", "auths": {HOST: AUTH}})
    with pytest.raises(CredentialsError) as caught:
        found()
    assert told in caught.value.message
    assert f"`echo {HOST} | docker-credential-desktop get`" in caught.value.hint
    assert PASSWORD not in caught.value.hint + "".join(traceback.format_exception(caught.value))


def test_hanging_helper_times_out(docker: Path, helper: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = helper("desktop", KEPT)
    script = asked.with_name("desktop.py")
    script.write_text(f"import sys, time\nprint({PASSWORD!r}, flush=True)\ntime.sleep(600)\n", encoding="utf-8")
    communicate = subprocess.Popen.communicate
    monkeypatch.setattr(subprocess.Popen, "communicate", lambda self, given, timeout: communicate(self, given, timeout / 120))
    write(docker, {"credsStore": "desktop"})
    with pytest.raises(CredentialsError, match="did not answer within") as caught:
        found()
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["../evil", "/bin/sh", "a b", "-x", "x\n", 5, ["a"]])
def test_invalid_helper_name_is_not_run(docker: Path, name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *arguments, **settings: pytest.fail("it was run"))
    write(docker, {"credsStore": name})
    with pytest.raises(CredentialsError, match="is not installed"):
        found()


def test_environment_overrides_a_helper(docker: Path, helper: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = helper("desktop", KEPT)
    write(docker, {"credsStore": "desktop"})
    monkeypatch.setenv("EPBUILD_REGISTRY", HOST)
    monkeypatch.setenv("EPBUILD_REGISTRY_USER", "me")
    monkeypatch.setenv("EPBUILD_REGISTRY_PASSWORD", "mine")
    assert found() == ("me", "mine")
    assert not asked.exists()


def test_identity_token_is_recognized(docker: Path, helper: Install) -> None:
    write(docker, {"auths": {HOST: {"auth": "", "identitytoken": PASSWORD}}})
    written = find_credentials(HOST)
    helper("desktop", json.dumps({"Username": "<token>", "Secret": PASSWORD}))
    write(docker, {"credsStore": "desktop"})
    kept = find_credentials(HOST)
    for credentials in (written, kept):
        assert credentials is not None
        assert credentials.is_identity
        assert credentials.password == PASSWORD
        assert PASSWORD not in repr(credentials)


def test_docker_folder_defaults_to_the_home_of_the_user(monkeypatch: pytest.MonkeyPatch, docker: Path) -> None:
    assert find_docker_config() == docker / "config.json"
    monkeypatch.delenv("DOCKER_CONFIG")
    assert find_docker_config() == Path.home() / ".docker" / "config.json"


def test_user_name_with_a_colon_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPBUILD_REGISTRY_USER", "a:b")
    monkeypatch.setenv("EPBUILD_REGISTRY_PASSWORD", PASSWORD)
    with pytest.raises(CredentialsError):
        found()


def test_secrets_are_hidden_in_repr(docker: Path) -> None:
    write(docker, {"auths": {HOST: AUTH}})
    credentials = find_credentials(HOST)
    assert credentials is not None
    shown = f"{credentials} {credentials!r}"
    assert PASSWORD not in shown
    assert AUTH["auth"] not in shown
    assert credentials.basic == f"Basic {AUTH['auth']}"


def test_secrets_are_hidden_in_a_traceback(docker: Path) -> None:
    write(docker, {"auths": {HOST: {"auth": f"!{PASSWORD}"}}})
    with pytest.raises(CredentialsError) as caught:
        found()
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
