"""Settings of the remote cache: their precedence, and refusals before any work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from epbuild.core.errors import Position, Problem, RecipeError
from epbuild.recipe.remote_address import CacheChoice, RemoteAddress, parse_remote
from epbuild.remote.cache import Miss
from epbuild.remote.keys import SigningKey
from epbuild.remote.opening import open_remote
from epbuild.remote.settings import Mode, RemoteSettings, resolve_remote_settings

OURS, THEIRS = SigningKey.generate(), SigningKey.generate()
WHERE = Position("epbuild.yaml", 3, 3)
FOLDER = Path("/project")
SPEAKING = {"epbuild.remote.attempts", "epbuild.remote.cache", "epbuild.survey.remote_results", "urllib3"}
HTTPS = "https://cache.example/x"


def choice(remote: str | None = HTTPS, *trust: str) -> CacheChoice:
    return CacheChoice(WHERE, parse_remote(remote) if remote else None, trust)


def decided(
    cache: CacheChoice | None, environment: dict[str, str] | None = None, mode: Mode = "read", *, insecure: bool = False
) -> RemoteSettings | None:
    return resolve_remote_settings(cache, FOLDER, environment or {}, mode, insecure=insecure)


def refused(cache: CacheChoice | None, environment: dict[str, str] | None = None, mode: Mode = "read") -> Problem:
    with pytest.raises(RecipeError) as failure:
        decided(cache, environment, mode)
    assert failure.value.exit_code == 2
    [problem] = failure.value.problems
    assert problem.hint
    return problem


def test_remote_cache_is_optional() -> None:
    assert decided(None) is None
    assert decided(choice(None, OURS.public)) is None


def test_recipe_can_name_a_remote_cache_for_reading() -> None:
    wanted = RemoteSettings(RemoteAddress("https", HTTPS), frozenset((OURS.public,)), anonymous=True)
    assert decided(choice(HTTPS, OURS.public)) == wanted


@pytest.mark.parametrize("environment", [{}, {"EPBUILD_REMOTE_CACHE": HTTPS}])
def test_off_disables_any_remote_cache(environment: dict[str, str]) -> None:
    assert decided(choice(), environment, "off") is None


def test_environment_overrides_the_recipe() -> None:
    found = decided(choice(HTTPS, OURS.public), {"EPBUILD_REMOTE_CACHE": "s3://ours/x"})
    assert found == RemoteSettings(RemoteAddress("s3", "s3://ours/x"), frozenset((OURS.public,)))
    assert decided(choice(HTTPS, OURS.public), {"EPBUILD_REMOTE_CACHE": "off"}) is None
    assert decided(choice(HTTPS, OURS.public), {"EPBUILD_REMOTE_CACHE": ""}) == decided(choice(HTTPS, OURS.public))


def test_directory_is_relative_to_its_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = decided(choice("../builds"))
    assert found is not None
    assert Path(found.address.text) == FOLDER.absolute() / "../builds"
    monkeypatch.chdir(tmp_path)
    named = decided(None, {"EPBUILD_REMOTE_CACHE": "builds"})
    assert named is not None
    assert Path(named.address.text) == tmp_path / "builds"


@pytest.mark.parametrize("address", [HTTPS, "http://localhost/x", "s3://b/x", "gs://b", "az://c/x"])
def test_server_needs_a_trusted_key(address: str) -> None:
    assert refused(choice(address)).code == "EPB276"
    assert refused(None, {"EPBUILD_REMOTE_CACHE": address}).code == "EPB276"


def test_directory_needs_no_trusted_keys() -> None:
    found = decided(choice("builds"))
    assert found is not None
    assert found.trust is None
    with_trust = decided(choice("builds", OURS.public))
    assert with_trust is not None
    assert with_trust.trust == frozenset((OURS.public,))


@pytest.mark.parametrize("host", ["cache.example", "10.0.0.1"])
def test_http_needs_a_local_host_or_explicit_consent(host: str) -> None:
    cache = choice(f"http://{host}/x", OURS.public)
    problem = refused(cache)
    assert (problem.code, problem.where) == ("EPB275", WHERE)
    assert "--insecure" in str(problem)
    assert decided(cache, insecure=True) is not None
    assert decided(choice("http://127.0.0.1:8080/x", OURS.public)) is not None


@pytest.mark.parametrize("address", ["https://me:secret@cache.example/x", "ftp://x/y", "https://x/?token=secret"])
def test_wrong_address_in_the_environment_is_named_without_secrets(address: str) -> None:
    problem = refused(None, {"EPBUILD_REMOTE_CACHE": address})
    assert problem.code == "EPB275"
    assert problem.message.startswith("EPBUILD_REMOTE_CACHE: ")
    assert "secret" not in str(problem)


def test_writing_needs_a_signing_key() -> None:
    for cache in (choice(HTTPS, OURS.public), choice("builds")):
        problem = refused(cache, {}, "write")
        assert problem.code == "EPB277"
        assert "epbuild cache key" in str(problem)


def test_writing_needs_a_remote_cache() -> None:
    assert refused(None, {"EPBUILD_SIGNING_KEY": OURS.text}, "write").code == "EPB275"


@pytest.mark.parametrize("text", ["nonsense", OURS.public], ids=["nonsense", "public"])
def test_wrong_key_is_not_shown(text: str) -> None:
    problem = refused(choice(HTTPS, OURS.public), {"EPBUILD_SIGNING_KEY": text}, "write")
    assert problem.code == "EPB277"
    assert text not in str(problem)


def test_untrusted_signing_key_is_refused() -> None:
    problem = refused(choice(HTTPS, OURS.public), {"EPBUILD_SIGNING_KEY": THEIRS.text}, "write")
    assert THEIRS.public in problem.message
    assert THEIRS.text not in str(problem)


def test_trusted_signing_key_enables_writing() -> None:
    found = decided(choice(HTTPS, OURS.public), {"EPBUILD_SIGNING_KEY": f"{OURS.text}\n"}, "write")
    assert found is not None
    assert found.signer == OURS
    assert OURS.text not in repr(found)


def test_signing_key_is_ignored_when_only_reading() -> None:
    found = decided(choice(HTTPS, OURS.public), {"EPBUILD_SIGNING_KEY": "nonsense"})
    assert found is not None
    assert found.signer is None


@pytest.mark.parametrize(
    ("variable", "authorization", "anonymous"),
    [(None, None, True), (HTTPS, "Bearer abc", False), ("https://other.example/x", "Bearer abc", False), ("s3://b", None, False)],
)
def test_credentials_apply_only_to_the_address_of_the_variable(
    variable: str | None, authorization: str | None, anonymous: bool
) -> None:
    named = {"EPBUILD_REMOTE_CACHE": variable} if variable else {}
    found = decided(choice(HTTPS, OURS.public), {"EPBUILD_REMOTE_AUTHORIZATION": "Bearer abc", **named})
    assert found is not None
    assert (str(found.address), found.authorization, found.anonymous) == (variable or HTTPS, authorization, anonymous)
    assert "abc" not in repr(found)


@pytest.mark.parametrize("address", ["builds", "http://127.0.0.1:9/x", "s3://b/x", "az://c/x"])
def test_remote_cache_is_opened_without_a_request(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AZURE_STORAGE_ACCOUNT_NAME": "a",
        "AZURE_STORAGE_ACCOUNT_KEY": "eA==",
    }.items():
        monkeypatch.setenv(name, value)
    found = resolve_remote_settings(choice(address, OURS.public), tmp_path, {}, "read")
    assert found is not None
    warnings: list[Problem] = []
    remote = open_remote(found, warnings.append)
    assert not remote.writes
    assert remote.statistics.asked == 0
    remote.close()
    assert warnings == []


def test_directory_for_writing_need_not_exist(tmp_path: Path) -> None:
    found = resolve_remote_settings(choice("builds"), tmp_path, {"EPBUILD_SIGNING_KEY": OURS.text}, "write")
    assert found is not None
    remote = open_remote(found, lambda problem: pytest.fail(str(problem)))
    from tests.support.remote_caches import COMPILE

    assert remote.look_up(COMPILE, "0" * 64) == Miss()


@pytest.mark.parametrize("module", ["validate", "steps", "run"])
def test_remote_cache_clients_are_imported_only_when_used(module: str) -> None:
    code = f"import sys, epbuild.cli.{module}; print([name for name in sys.modules if name in {SPEAKING!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
