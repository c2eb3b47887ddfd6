"""`cache` section: valid remote caches, and messages for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from epbuild.core.errors import RecipeError
from epbuild.recipe.address import BadAddress
from epbuild.recipe.load import load
from epbuild.recipe.remote_address import RemoteAddress, parse_remote
from tests.recipe.texts import MINIMAL, load_text

KEY = f"ed25519:{'A' * 43}="


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("../shared cache", "directory"),
        ("/mnt/builds", "directory"),
        ("C:\\builds", "directory"),
        ("https://cache.example/epbuild", "https"),
        ("http://localhost:8080", "http"),
        ("s3://our-builds/epbuild", "s3"),
        ("gs://our-builds", "gs"),
        ("az://container/a/b", "az"),
    ],
)
def test_a_remote_cache_is_a_directory_a_web_server_or_a_bucket(text: str, scheme: str) -> None:
    assert parse_remote(text) == RemoteAddress(scheme, text)  # type: ignore[arg-type]


def test_a_trailing_slash_does_not_change_the_cache() -> None:
    assert parse_remote("s3://bucket/prefix/") == parse_remote("s3://bucket/prefix")
    assert parse_remote("s3://bucket/a/b").bucket == ("bucket", "a/b")
    assert parse_remote("gs://bucket").bucket == ("bucket", "")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not a valid path"),
        (" ", "not a valid path"),
        ("ftp://host/x", "remote caches do not support 'ftp://'"),
        ("htps://host/x", "Did you mean 'https'?"),
        ("https://me:secret@host/x", "EPBUILD_REMOTE_AUTHORIZATION"),
        ("https://host/x?token=secret", "contains a query"),
        ("https://host/a b", "a space"),
        ("https://host/x#part", "another character"),
        ("https://host/a/../b", "'..'"),
        ("https://host/a//b", "empty"),
        ("https://:8080/x", "no valid host"),
        ("https://host:99999/x", "no valid host"),
        ("https://host:0/x", "no valid host"),
        ("s3:///key", "does not name a bucket"),
        ("s3://evil.example:443/x", "does not name a bucket"),
        ("https://höst/x", "another character"),
    ],
)
def test_an_invalid_cache_address_is_refused_without_showing_secrets(text: str, part: str) -> None:
    with pytest.raises(BadAddress) as refused:
        parse_remote(text)
    assert part in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("[::1]", True),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_only_loopback_addresses_are_local(host: str, local: bool) -> None:
    assert parse_remote(f"http://{host}:80/x").is_local is local


def test_a_recipe_names_its_cache_and_trusted_keys(tmp_path: Path) -> None:
    text = MINIMAL.replace(
        "vars:\n", f"cache:\n  remote: s3://${{vars.bucket}}/x\n  trust: ['{KEY}', '{KEY}']\nvars:\n  bucket: ours\n"
    )
    cache = load_text(tmp_path, text).cache
    assert cache is not None
    assert cache.remote == RemoteAddress("s3", "s3://ours/x")
    assert cache.trust == (KEY,)


@pytest.mark.parametrize(
    "remote", ["https://evil.example/${env.TOKEN}", "${vars.there}", "s3://${env.BUCKET:-ours}/x", "${env.SHARED}/builds"]
)
def test_a_cache_address_cannot_contain_an_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: str
) -> None:
    monkeypatch.setenv("TOKEN", "tulip-bulb-42")
    monkeypatch.setenv("SHARED", "tulip-bulb-42")
    text = MINIMAL.replace(
        "vars:\n", f"cache: {{remote: '{remote}', trust: ['{KEY}']}}\nvars:\n  there: https://evil/${{env.TOKEN}}\n"
    )
    with pytest.raises(RecipeError) as refused:
        load_text(tmp_path, text)
    [problem] = refused.value.problems
    assert (problem.code, "EPBUILD_REMOTE_CACHE" in str(problem.hint)) == ("EPB109", True)
    assert "tulip" not in str(problem)


def test_a_directory_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "cache.yaml").write_text("cache: {remote: ../builds}\n", encoding="utf-8")
    folder = tmp_path / "project"
    folder.mkdir()
    recipe = folder / "epbuild.yaml"
    recipe.write_text(MINIMAL.replace("vars:\n", "include: [../shared/cache.yaml]\nvars:\n"), encoding="utf-8")
    cache = load(recipe).cache
    assert cache is not None
    assert cache.remote == RemoteAddress("directory", "../builds")


def test_a_secret_key_among_the_trusted_keys_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as refused:
        load_text(tmp_path, MINIMAL.replace("vars:\n", "cache: {trust: ['ed25519-secret:c2VjcmV0']}\nvars:\n"))
    assert "invalid public key" in str(refused.value)
    assert "c2Vj" not in str(refused.value)
