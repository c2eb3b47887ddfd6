"""Registry sign-in: access, errors for denied access, and no secret for third parties."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import trustme

from epbuild.transfer.http import HttpClient
from epbuild.transfer.objects import TransferError
from tests.support.registry_pushes import PASSWORD, Pusher, Start, as_nobody, holds_all
from tests.support.registry_server import Registry, TokenServer, Trouble, Tunnel, basic, digest, said


@pytest.fixture(autouse=True)
def anonymous_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_nobody(monkeypatch, tmp_path)


@pytest.fixture
def signed_in(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> str:
    """Set a user and password for the registry, and return the header for them."""
    monkeypatch.setenv("EPBUILD_REGISTRY", f"127.0.0.1:{registry.port}")
    monkeypatch.setenv("EPBUILD_REGISTRY_USER", "ci")
    monkeypatch.setenv("EPBUILD_REGISTRY_PASSWORD", PASSWORD)
    return basic("ci", PASSWORD)


class TestSignIn:
    def test_credentials_of_the_environment_are_accepted(self, registry: Registry, pusher: Pusher, signed_in: str) -> None:
        registry.allowed, registry.challenge = {signed_in}, 'Basic realm="tests"'
        pusher(registry)
        assert holds_all(registry, pusher)

    def test_credentials_of_docker_login_are_accepted(self, registry: Registry, pusher: Pusher, tmp_path: Path) -> None:
        registry.allowed, registry.challenge = {basic("ci", PASSWORD)}, 'basic realm="tests"'
        (tmp_path / "docker").mkdir()
        auth = {"auth": basic("ci", PASSWORD).removeprefix("Basic ")}
        document = {"auths": {f"127.0.0.1:{registry.port}": auth}}
        (tmp_path / "docker/config.json").write_text(json.dumps(document), encoding="utf-8")
        pusher(registry)
        assert holds_all(registry, pusher)

    def test_anonymous_registry_gets_no_credentials(self, registry: Registry, pusher: Pusher, signed_in: str) -> None:
        pusher(registry)
        assert registry.secrets() == {None}

    @pytest.mark.parametrize("key", ["token", "access_token"])
    def test_token_for_the_push_is_fetched(
        self, registry: Registry, start: Start[TokenServer], pusher: Pusher, signed_in: str, key: str
    ) -> None:
        tokens = start(TokenServer)
        tokens.user, tokens.tokens = signed_in, [{key: "t1"}]
        registry.allowed, registry.challenge = {"Bearer t1"}, tokens.challenge
        pusher(registry)
        assert holds_all(registry, pusher)
        (asked,) = tokens.asked("GET")
        assert asked == "/auth?account=ci&service=registry%2C+of+tests&scope=repository%3Ateam%2Fmodels%3Apull%2Cpush"
        assert signed_in not in registry.secrets()

    def test_anonymous_token_is_fetched_without_a_user(
        self, registry: Registry, start: Start[TokenServer], pusher: Pusher
    ) -> None:
        tokens = start(TokenServer)
        tokens.tokens = [{"token": "t1"}]
        registry.allowed, registry.challenge = {"Bearer t1"}, tokens.challenge
        pusher(registry)
        assert holds_all(registry, pusher)
        assert tokens.secrets() == {None}

    def test_token_that_expires_during_a_push_is_renewed_and_the_blob_resent(
        self, registry: Registry, start: Start[TokenServer], pusher: Pusher
    ) -> None:
        tokens = start(TokenServer)
        tokens.tokens = [{"token": "t1"}, {"token": "t2"}]
        registry.allowed, registry.challenge = {"Bearer t1", "Bearer t2"}, tokens.challenge
        registry.troubles = [Trouble("PUT", "/blobs/", (401, {"WWW-Authenticate": tokens.challenge}, b""))]
        pusher(registry)
        assert holds_all(registry, pusher)
        assert len(tokens.asked("GET")) == 2
        assert registry.requests[-1].authorization == "Bearer t2"

    def test_wrong_password_is_reported_after_one_attempt(self, registry: Registry, pusher: Pusher, signed_in: str) -> None:
        registry.allowed, registry.challenge = set(), 'Basic realm="tests"'
        code, text = pusher.fails(registry)
        assert code == "EPB427"
        assert "the user from EPBUILD_REGISTRY_USER" in text
        assert len(registry.requests) == 2

    def test_wrong_password_for_tokens_is_reported(
        self, registry: Registry, start: Start[TokenServer], pusher: Pusher, signed_in: str
    ) -> None:
        tokens = start(TokenServer)
        tokens.user = "Basic other"
        registry.allowed, registry.challenge = set(), tokens.challenge
        code, text = pusher.fails(registry)
        assert code == "EPB427"
        assert "401" in text

    def test_anonymous_user_gets_a_hint_to_sign_in(self, registry: Registry, pusher: Pusher) -> None:
        registry.allowed, registry.challenge = set(), 'Basic realm="tests"'
        code, text = pusher.fails(registry)
        assert code == "EPB427"
        assert "Set EPBUILD_REGISTRY, EPBUILD_REGISTRY_USER and EPBUILD_REGISTRY_PASSWORD" in text

    def test_missing_credential_helper_is_reported(self, registry: Registry, pusher: Pusher, tmp_path: Path) -> None:
        registry.allowed = set()
        (tmp_path / "docker").mkdir()
        (tmp_path / "docker/config.json").write_text('{"credsStore": "not-there"}', encoding="utf-8")
        code, text = pusher.fails(registry)
        assert code == "EPB427"
        assert "Docker's credential helper docker-credential-not-there" in text
        assert "is not installed" in text

    @pytest.fixture
    def identity(self, registry: Registry, tmp_path: Path) -> str:
        (tmp_path / "docker").mkdir()
        entry = {"auth": "", "identitytoken": "the secret & more"}
        document = {"auths": {f"127.0.0.1:{registry.port}": entry}}
        (tmp_path / "docker/config.json").write_text(json.dumps(document), encoding="utf-8")
        return "the secret & more"

    def test_identity_token_is_exchanged_for_a_push_token(
        self, registry: Registry, start: Start[TokenServer], pusher: Pusher, identity: str
    ) -> None:
        tokens = start(TokenServer)
        tokens.tokens = [{"access_token": "t1", "expires_in": 300}]
        registry.allowed, registry.challenge = {"Bearer t1"}, tokens.challenge
        pusher(registry)
        assert holds_all(registry, pusher)
        assert tokens.asked("POST") == ["/auth?account=ci"]
        assert parse_qs(tokens.forms[0].decode()) == {
            "grant_type": ["refresh_token"],
            "client_id": ["epbuild"],
            "service": ["registry, of tests"],
            "scope": ["repository:team/models:pull,push"],
            "refresh_token": [identity],
        }
        assert tokens.secrets() == {None}
        assert registry.secrets() == {None, "Bearer t1"}

    def test_identity_token_is_not_sent_to_a_redirect_target(
        self, registry: Registry, start: Start[TokenServer], pusher: Pusher, identity: str
    ) -> None:
        tokens, elsewhere = start(TokenServer), start(TokenServer)
        tokens.troubles = [Trouble("POST", "/auth", (307, {"Location": f"{elsewhere.root}/auth"}, b""))]
        registry.allowed, registry.challenge = set(), tokens.challenge
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "the server redirects to another host, but the request carries credentials" in text
        assert elsewhere.requests == []
        assert identity not in text

    def test_identity_token_is_not_sent_to_a_registry_without_tokens(
        self, registry: Registry, pusher: Pusher, identity: str
    ) -> None:
        registry.allowed, registry.challenge = set(), 'Basic realm="tests"'
        code, text = pusher.fails(registry)
        assert code == "EPB427"
        assert registry.secrets() == {None}
        assert identity not in text

    def test_broken_docker_config_is_reported_when_needed(self, registry: Registry, pusher: Pusher, tmp_path: Path) -> None:
        (tmp_path / "docker").mkdir()
        (tmp_path / "docker/config.json").write_text("{", encoding="utf-8")
        pusher(registry)
        registry.allowed, registry.challenge = set(), 'Basic realm="tests"'
        code, text = pusher.fails(registry)
        assert code == "EPB427"
        assert "it is not JSON" in text

    def test_denial_by_the_registry_is_quoted(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [
            Trouble("POST", "/uploads/", (403, {}, said("DENIED", "requested access to the resource is denied")))
        ]
        code, text = pusher.fails(registry)
        assert code == "EPB427"
        assert "403 requested access to the resource is denied" in text

    def test_invalid_token_response_is_reported(
        self, registry: Registry, start: Start[TokenServer], pusher: Pusher, signed_in: str
    ) -> None:
        tokens = start(TokenServer)
        registry.allowed, registry.challenge = set(), tokens.challenge
        for answer in ({}, {"token": 5}, {"token": "two\r\nlines: here"}, {"token": ""}):
            tokens.tokens = [answer]
            code, text = pusher.fails(registry)
            assert code == "EPB426"
            assert "issued an invalid token" in text


class TestSecretRecipients:
    """Tests that secrets go only to the registry and to the server of its tokens."""

    def test_secrets_are_not_sent_to_an_upload_location_elsewhere(
        self, registry: Registry, start: Start[Registry], pusher: Pusher, signed_in: str
    ) -> None:
        elsewhere = start(Registry)
        registry.allowed, registry.challenge = {signed_in}, 'Basic realm="tests"'
        registry.location = lambda path: f"{elsewhere.root}{path}"
        elsewhere.blobs = registry.blobs
        pusher(registry)
        assert holds_all(registry, pusher)
        assert len(elsewhere.asked("PUT")) == 3
        assert elsewhere.secrets() == {None}

    def test_secrets_are_not_sent_to_a_redirect_target(
        self, registry: Registry, start: Start[Registry], pusher: Pusher, signed_in: str
    ) -> None:
        elsewhere = start(Registry)
        elsewhere.blobs, elsewhere.manifests = registry.blobs, registry.manifests
        registry.allowed, registry.challenge = {signed_in}, 'Basic realm="tests"'
        last = digest(b"{}")  # the registry has the user and the password before the request for this blob
        registry.troubles = [
            Trouble("HEAD", last, (307, {"Location": f"{elsewhere.root}/v2/team/models/blobs/{last}"}, b"")),
            Trouble("POST", "/uploads/", (308, {"Location": f"{elsewhere.root}/v2/team/models/blobs/uploads/"}, b"")),
            Trouble("PUT", "/manifests/1.0", (307, {"Location": f"{elsewhere.root}/v2/team/models/manifests/1.0"}, b"")),
        ]
        pusher(registry)
        assert holds_all(registry, pusher)
        assert {request.method for request in elsewhere.requests} == {"HEAD", "POST", "PUT"}
        assert elsewhere.secrets() == {None}
        assert signed_in in registry.secrets()

    def test_secrets_are_not_sent_to_a_challenging_redirect_target(
        self, registry: Registry, start: Callable[..., Any], pusher: Pusher, signed_in: str
    ) -> None:
        elsewhere, tokens = start(Registry), start(TokenServer)
        elsewhere.allowed, elsewhere.challenge = set(), tokens.challenge
        registry.location = lambda path: f"{elsewhere.root}{path}"
        code, _ = pusher.fails(registry)
        assert code == "EPB427"
        assert elsewhere.secrets() == {None}
        assert tokens.requests == []

    @pytest.mark.parametrize(
        "where", ["http://registry.example/auth", "ftp://127.0.0.1/auth", "", "http://[", "file:///etc/passwd"]
    )
    def test_secrets_are_not_sent_to_a_token_server_without_tls(
        self, registry: Registry, pusher: Pusher, signed_in: str, where: str
    ) -> None:
        registry.allowed, registry.challenge = set(), f'Bearer realm="{where}"'
        code, _ = pusher.fails(registry)
        assert code in ("EPB426", "EPB427")
        assert registry.secrets() == {None}

    def test_blob_is_not_sent_without_tls(self, registry: Registry, pusher: Pusher) -> None:
        registry.location = lambda path: f"http://registry.example{path}"
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "to registry.example over plain HTTP" in text


class TestTls:
    """Tests with `registry.example` on this machine, with a certificate by an unknown authority."""

    @pytest.fixture
    def authority(self) -> trustme.CA:
        return trustme.CA()

    @pytest.fixture
    def secure(self, authority: trustme.CA, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Registry:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("registry.example").configure_cert(context)
        asked = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: asked("127.0.0.1", *rest, **more))
        found: Registry = start(Registry, context)
        return found

    def trust(self, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))

    def test_remote_registry_needs_tls_and_a_valid_certificate(self, secure: Registry, pusher: Pusher) -> None:
        code, text = pusher.fails(secure, host="registry.example")
        assert code == "EPB426"
        assert "the server's certificate is not valid" in text
        assert "SSL_CERT_FILE" in text
        assert secure.requests == []

    def test_custom_certificate_authority_is_accepted(
        self, secure: Registry, authority: trustme.CA, pusher: Pusher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.trust(authority, tmp_path, monkeypatch)
        pusher(secure, host="registry.example")
        assert holds_all(secure, pusher)

    def test_certificate_of_another_host_is_refused(
        self, secure: Registry, authority: trustme.CA, pusher: Pusher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.trust(authority, tmp_path, monkeypatch)
        code, text = pusher.fails(secure, host="other.example")
        assert code == "EPB426"
        assert "the server's certificate is not valid" in text

    def test_plain_http_location_of_a_tls_registry_is_upgraded(
        self, secure: Registry, authority: trustme.CA, pusher: Pusher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.trust(authority, tmp_path, monkeypatch)
        secure.location = lambda path: f"http://registry.example{path}"
        pusher(secure, host="registry.example")
        assert holds_all(secure, pusher)

    def test_remote_registry_without_tls_is_reported(
        self, registry: Registry, pusher: Pusher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: asked("127.0.0.1", *rest, **more))
        code, text = pusher.fails(registry, host="registry.example")
        assert code == "EPB426"
        assert registry.requests == []
        assert "TLS" in text

    def test_push_through_a_proxy(
        self,
        secure: Registry,
        authority: trustme.CA,
        start: Start[Tunnel],
        pusher: Pusher,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.trust(authority, tmp_path, monkeypatch)
        tunnel = start(Tunnel)
        tunnel.to = secure.port
        monkeypatch.setenv("https_proxy", f"http://me:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{tunnel.port}")
        pusher(secure, host="registry.example")
        assert holds_all(secure, pusher)
        (joined,) = tunnel.requests
        assert joined.path == f"registry.example:{secure.port}"
        assert joined.headers["Proxy-Authorization"] == basic("me", PASSWORD)


@pytest.mark.parametrize("url", ["https://registry.example/v2/", "https://registry.example:8443/v2/"])
def test_address_without_tls_never_replaces_an_address_with_tls(url: str) -> None:
    exchange = HttpClient(upgrades=True)
    for location in (
        "http://localhost/x",
        "http://127.0.0.1/x",
        "http://other.example/x",
        "https://[",
        "https://a b/",
        "gopher://registry.example/x",
    ):
        with pytest.raises(TransferError):
            exchange.resolve(url, location)
    assert exchange.resolve(url, "http://registry.example/x?a=b") == f"{url.removesuffix('/v2/')}/x?a=b"
    assert exchange.resolve(url, "https://other.example/x") == "https://other.example/x"
