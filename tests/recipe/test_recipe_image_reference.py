"""Image references: valid ones are read as by other tools, and invalid ones are reported before a build."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.recipe.image_reference import BadImageReference, ImageReference, parse_image_reference


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("registry.example/models", ("registry.example", "models", "latest")),
        ("registry.example/team/zoo/models:1.0", ("registry.example", "team/zoo/models", "1.0")),
        ("registry.example:5000/a_b__c-d---e.f/0:_A.b-C", ("registry.example:5000", "a_b__c-d---e.f/0", "_A.b-C")),
        ("localhost/models:x", ("localhost", "models", "x")),
        ("LocalHost:5000/models:x", ("localhost:5000", "models", "x")),
        ("build-7:5000/models", ("build-7:5000", "models", "latest")),
        ("127.0.0.1:5000/models", ("127.0.0.1:5000", "models", "latest")),
        ("[::1]:5000/models:1", ("[::1]:5000", "models", "1")),
        ("[2001:DB8::7]/models:1", ("[2001:db8::7]", "models", "1")),
        (f"registry.example/models:{'t' * 128}", ("registry.example", "models", "t" * 128)),
    ],
)
def test_a_reference_has_a_host_a_repository_and_a_tag(text: str, parts: tuple[str, str, str]) -> None:
    reference = parse_image_reference(text)
    assert (reference.host, reference.repository, reference.tag) == parts
    assert parse_image_reference(str(reference)) == reference


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "does not name a registry"),
        ("models", "does not name a registry"),
        ("models:1.0", "does not name a registry"),
        ("team/models:1.0", "A host without a dot needs its port: team:443."),
        ("/models:1.0", "does not name a registry"),
        ("registry.example", "does not name a registry"),
        ("registry.example/", "invalid repository"),
        ("registry.example/models:", "invalid tag"),
        ("registry.example/models:-1", "invalid tag"),
        ("registry.example/models:.1", "invalid tag"),
        ("registry.example/models:1:2", "invalid tag"),
        ("registry.example/models:größe", "invalid tag"),
        (f"registry.example/models:{'t' * 129}", "invalid tag"),
        ("registry.example/Models:1", "lower-case"),
        ("registry.example/snapdragon-SC8380XP:1", "into the tag"),
        ("registry.example/a//b", "invalid repository"),
        ("registry.example/../b", "invalid repository"),
        ("registry.example/a/", "invalid repository"),
        ("registry.example/a..b", "invalid repository"),
        ("registry.example/a___b", "invalid repository"),
        ("registry.example/-a", "invalid repository"),
        ("registry.example/a b", "invalid repository"),
        ("registry.example/a\n", "invalid repository"),
        ("registry.example/a?x=1", "invalid repository"),
        ("registry.example/a%2e", "invalid repository"),
        (f"registry.example/{'a' * 240}", "too long"),
        (f"registry.example/{'a' * 9000}", "too long"),
        ("registry.example:0/a", "invalid host"),
        ("registry.example:65536/a", "invalid host"),
        ("registry.example:/a", "invalid host"),
        ("registry.example:x/a", "invalid host"),
        ("-registry.example/a", "invalid host"),
        ("registry..example/a", "invalid host"),
        ("registry_1.example/a", "invalid host"),
        ("[::1/a", "invalid host"),
        ("[::g]:5000/a", "invalid host"),
        ("[1.2.3.4]:5000/a", "invalid host"),
        ("2001:db8::7/a", "invalid host"),
        ("https://registry.example/models:1", "must not contain '://'"),
        ("oci://registry.example/models:1", "must not contain '://'"),
        (f"registry.example/models@sha256:{'0' * 64}", "must not contain a digest"),
        (f"registry.example/models:1@sha256:{'0' * 64}", "must not contain a digest"),
    ],
)
def test_an_invalid_reference_is_refused_with_a_hint(text: str, told: str) -> None:
    with pytest.raises(BadImageReference) as caught:
        parse_image_reference(text)
    assert told in str(caught.value)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["ci:hunter2@registry.example/models", "https://ci:hunter2@registry.example/models", "ci:hunter2@"]
)
def test_a_password_in_a_reference_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(BadImageReference) as caught:
        parse_image_reference(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1", True),
        ("127.0.0.1:5000", True),
        ("[::1]", True),
        ("[::1]:5000", True),
        ("localhost.example", False),
        ("127.0.0.1.example:5000", False),
        ("127.0.0.2", False),
        ("[::2]:5000", False),
    ],
)
def test_only_a_local_registry_is_used_without_tls(host: str, local: bool) -> None:
    assert parse_image_reference(f"{host}/models").is_local is local


@given(st.text(max_size=400))
def test_any_text_is_a_reference_that_round_trips_or_is_refused(text: str) -> None:
    try:
        reference = parse_image_reference(text)
    except BadImageReference:
        return
    assert parse_image_reference(str(reference)) == reference


@pytest.mark.parametrize(
    "text", ["a." * 4000 + "/x", "a-" * 4000 + ":1/x", "r.example/" + "a-" * 4000, "r.example/" + "a/" * 4000]
)
def test_a_very_long_text_is_refused_quickly(text: str) -> None:
    began = time.process_time()
    with pytest.raises(BadImageReference):
        parse_image_reference(text)
    assert time.process_time() - began < 1


def test_references_compare_by_value() -> None:
    assert parse_image_reference("registry.example/models") == ImageReference("registry.example", "models", "latest")
