"""Addresses of models: valid forms, and messages for invalid ones."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.core.errors import Position
from epbuild.recipe.address import (
    Address,
    BadAddress,
    HubAddress,
    ObjectAddress,
    PackageAddress,
    WebAddress,
    is_immutable,
    parse_address,
    resolve_beside,
)
from epbuild.recipe.model import ModelSpec
from epbuild.recipe.paths import is_remote

COMMIT = "0123456789abcdef0123456789abcdef01234567"

GOOD: list[tuple[str, Address]] = [
    ("https://example.com/a/model.onnx", WebAddress("https://example.com/a/model.onnx")),
    ("https://example.com:8443/m.onnx?sig=s3cret", WebAddress("https://example.com:8443/m.onnx?sig=s3cret")),
    ("https://[::1]/m%20x.onnx", WebAddress("https://[::1]/m%20x.onnx")),
    ("https://example.com/m@2.onnx", WebAddress("https://example.com/m@2.onnx")),
    ("s3://models/tiny/v1/decode.onnx", ObjectAddress("s3", "models", "tiny/v1/decode.onnx")),
    ("gs://models/decode:2.onnx", ObjectAddress("gs", "models", "decode:2.onnx")),
    ("az://$root/decode.onnx", ObjectAddress("az", "$root", "decode.onnx")),
    ("hf://org/repo/m.onnx@main", HubAddress("org/repo", "m.onnx", "main")),
    ("hf://org/repo/onnx/m@2.onnx@refs/pr/7", HubAddress("org/repo", "onnx/m@2.onnx", "refs/pr/7")),
    ("package:my-models==1.2.0rc1/onnx/m.onnx", PackageAddress("my-models", "1.2.0rc1", "onnx/m.onnx")),
    ("package:m==1/a b==c:/d.onnx", PackageAddress("m", "1", "a b==c:/d.onnx")),
]


@pytest.mark.parametrize(("text", "address"), GOOD, ids=[text for text, _ in GOOD])
def test_every_kind_of_address_is_parsed(text: str, address: Address) -> None:
    assert is_remote(text)
    assert parse_address(text) == address
    assert address.text == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://example.com/m.onnx", "http:// is not allowed: downloads can be altered in transit. Use https://"),
        ("ftp://example.com/m.onnx", "cannot be fetched from 'ftp://'. Supported schemes: https, s3, gs, az, hf"),
        ("file:///etc/passwd", "cannot be fetched from 'file://'"),
        ("HTTPS://example.com/m.onnx", "cannot be fetched from 'HTTPS://'"),
        ("htps://models/m.onnx", "Did you mean 'https'?"),
        ("models/m.onnx", "cannot be fetched from 'models/m.onnx'"),
        ("https:///m.onnx", "has no valid host. Write https://<host>/<file>."),
        ("https://example.com:http/m.onnx", "has no valid host"),
        ("https://[::1/m.onnx", "has no valid host"),
        ("https://me:hunter2@example.com/m.onnx", "must not contain a user name or a password"),
        ("https://me:hunter2@[/m.onnx", "must not contain a user name or a password"),
        ("https://me:hunter2@example.com/my model.onnx", "must not contain a user name or a password"),
        ("s3://me:hunter2@bucket/m.onnx", "must not contain a user name or a password"),
        ("hf://me:hunter2@org/repo/m.onnx@main", "must not contain a user name or a password"),
        ("https://example.com", "does not name a file"),
        ("https://example.com/models/", "does not name a file"),
        ("https://example.com/a//m.onnx", "part of the path is empty, '.' or '..'"),
        ("https://example.com/a/%2E%2E/m.onnx", "part of the path is empty, '.' or '..'"),
        ("https://example.com/m.onnx#v2", "has a fragment ('#')"),
        ("https://example.com/m.onnx?sig=hunter2#v2", "'https://example.com/m.onnx' has a fragment"),
        ("https://example.com/modèle.onnx", "which must be percent-encoded"),
        ("https://example.com/my model.onnx?sig=hunter2", "'https://example.com/my model.onnx' contains a space"),
        ("https://example.com/m.onnx\r\nHost: evil", "a space or a control character"),
        ("s3://models", "does not name a file. Write s3://<bucket>/<file>."),
        ("s3:///m.onnx", "does not name a bucket"),
        ("s3://models/../other/m.onnx", "does not name a file"),
        ("gs://models/folder/", "does not name a file"),
        ("az:// /m.onnx", "contains a space or a control character. Write az://<container>/<file>."),
        ("hf://org/repo/m.onnx", "has no revision. Write hf://<owner>/<repository>/<file>@<revision>."),
        ("hf://org/repo/m.onnx@", "has no revision"),
        ("hf://@main", "has no revision"),
        ("hf://repo@main", "does not name a file in a repository"),
        ("hf://repo/m.onnx@main", "does not name a file in a repository"),
        ("hf://../repo/m.onnx@main", "has an invalid repository name '../repo'"),
        ("hf://org/repo/../m.onnx@main", "does not name a file"),
        (
            "package:my-models>=1.2/m.onnx",
            "'my-models>=1.2' does not name exactly one version of a package. Write package:<name>==<version>/",
        ),
        ("package:my-models==1.*/m.onnx", "does not name exactly one version"),
        ("package:my-models[gpu]==1.2/m.onnx", "does not name exactly one version"),
        ("package:my-models==/m.onnx", "does not name exactly one version"),
        ("package:==1.2/m.onnx", "does not name exactly one version"),
        ("package:my-models==1.2", "does not name a file. Write package:<name>==<version>/<file>."),
        ("package:my-models==1.2/", "does not name a file"),
        ("package:my-models==1.2/../m.onnx", "part of the path is empty, '.' or '..'"),
        ("package:my-models==1.2//m.onnx", "part of the path is empty, '.' or '..'"),
        ("package:my-models==1.2/m\n.onnx", "contains a control character"),
    ],
)
def test_a_malformed_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert is_remote(text) == ("://" in text or text.startswith("package:"))
    with pytest.raises(BadAddress) as refusal:
        parse_address(text)
    assert reason in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    "path", ["models/m.onnx", "C:/models/m.onnx", "C://m.onnx", "./a://m.onnx", "package:onnx/a://m.onnx", "../m.onnx", ""]
)
def test_a_path_is_never_parsed_as_an_address(path: str) -> None:
    assert not is_remote(path)


def test_a_model_knows_its_kind_of_location() -> None:
    where = Position("epbuild.yaml", 1, 1)
    model = ModelSpec("m", where, "models/m.onnx", where)
    there = replace(model, path="https://example.com/m.onnx")
    packed = replace(model, path="package:my_models/onnx/m.onnx")
    in_wheel = replace(model, path="package:my-models==1.0/onnx/m.onnx")
    assert [one.is_remote for one in (model, there, packed, in_wheel)] == [False, True, False, True]
    assert [one.package_file for one in (model, there, packed, in_wheel)] == [None, None, ("my_models", "onnx/m.onnx"), None]


@given(st.one_of(st.text(), st.from_regex(r"((https|s3|gs|az|hf)://|package:m==)[ -~]*", fullmatch=True)))
@example("https://[/m.onnx")
@example("https://a]b/m.onnx")
@example("hf://a/b/c@d@e")
def test_any_text_is_an_address_or_is_refused_with_a_message(text: str) -> None:
    message, address = "", None
    try:
        address = parse_address(text)
    except BadAddress as refusal:
        message = refusal.message
    assert message or address is not None
    assert not message.endswith(".")
    if address is not None:
        assert parse_address(address.text) == address
        assert address.file.rpartition("/")[2] not in ("", ".", "..")


@pytest.mark.parametrize(
    ("text", "location", "expected"),
    [
        ("https://h/a/m.onnx", "w.bin", "https://h/a/w.bin"),
        ("https://h/m.onnx?token=t", "./data/w 1#.bin", "https://h/data/w%201%23.bin?token=t"),
        ("s3://b/a/m.onnx", "data/w.bin", "s3://b/a/data/w.bin"),
        ("gs://b/m.onnx", "./w.bin", "gs://b/w.bin"),
        ("hf://o/r/onnx/m.onnx@main", "m.onnx_data", "hf://o/r/onnx/m.onnx_data@main"),
        ("package:m==1.0/onnx/m.onnx", "data/w.bin", "package:m==1.0/onnx/data/w.bin"),
    ],
)
def test_external_data_is_resolved_beside_its_graph(text: str, location: str, expected: str) -> None:
    assert resolve_beside(parse_address(text), location).text == expected


def test_a_secret_in_a_query_is_never_shown() -> None:
    address = parse_address("https://example.com/m.onnx?X-Amz-Signature=s3cret")
    assert str(address) == "https://example.com/m.onnx"


@pytest.mark.parametrize(
    ("text", "immutable"),
    [
        (f"hf://o/r/m.onnx@{COMMIT}", True),
        (f"hf://o/r/m.onnx@{COMMIT[:12]}", False),
        ("hf://o/r/m.onnx@main", False),
        (f"https://h/{COMMIT}/m.onnx", False),
        (f"s3://b/{COMMIT}", False),
    ],
)
def test_only_a_full_commit_hash_of_the_hub_is_immutable(text: str, immutable: bool) -> None:
    assert is_immutable(parse_address(text)) is immutable
