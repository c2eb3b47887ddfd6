"""Buckets that fail: obstore's errors mean what those of a web server mean, and a hanging one is not asked twice."""

from __future__ import annotations

import io
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from epbuild.core.errors import StoreError
from epbuild.recipe.remote_address import parse_remote
from epbuild.remote.objects import ObjectTransport
from epbuild.remote.transport import Content, Patience, RemoteError

NAME = "ab" * 32
NO_BUCKET = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"


SECRET = "tulip-bulb-42"
CREDENTIALS = {
    "s3": {
        "AWS_ACCESS_KEY_ID": SECRET,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": SECRET,
        "AWS_REGION": "eu-west-1",
        "AWS_ALLOW_HTTP": "true",
    },
    "az": {
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "dHVsaXAtYnVsYi00Mg==",
        "AZURE_ALLOW_HTTP": "true",
    },
}
ENDPOINTS = {"s3": "AWS_ENDPOINT", "az": "AZURE_STORAGE_ENDPOINT"}


def _status(line: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {line}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


ANSWERS = {
    "503": (_status("503 Service Unavailable"), "passing", "503"),
    "429": (_status("429 Too Many Requests"), "passing", "429"),
    "500": (_status("500 Internal Server Error"), "passing", "500"),
    "400": (_status("400 Bad Request"), "object", "400"),
    "401": (_status("401 Unauthorized"), "refused", "refuses access"),
    "403": (_status("403 Forbidden"), "refused", "refuses access"),
    "no bucket": (_status("404 Not Found", NO_BUCKET), "refused", "no such bucket"),
    "reset": (b"", "passing", ""),
    "hang": (None, "hung", "sent nothing"),
}


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A server that answers everything alike, or nothing; yields its address."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=reply, args=(line,), daemon=True).start()

        def reply(line: socket.socket) -> None:
            with line, suppress(OSError):
                line.recv(1 << 20)
                if answer is None:
                    ended.wait(30)
                else:
                    line.sendall(answer)
                    line.shutdown(socket.SHUT_WR)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "reader",
        "AWS_SECRET_ACCESS_KEY": "of-these-tests",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_a_bucket_answers_means_what_it_means_elsewhere(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, trouble, words = ANSWERS[kind]
    with answering(answer) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT", endpoint)
        transport = ObjectTransport(parse_remote("s3://bucket/prefix"), Patience(1.0, 0.5, 0.6))
        begin = time.monotonic()
        with pytest.raises(RemoteError) as failure:
            transport.get("ac", NAME)
        assert (failure.value.trouble, words in failure.value.reason) == (trouble, True), failure.value
        assert "Debug" not in failure.value.reason
        assert "127.0.0.1" not in failure.value.reason
        if kind != "no bucket":
            with pytest.raises(RemoteError) as failure:
                transport.put("cas", NAME, Content.of(b"x"))
            assert failure.value.trouble == trouble
        assert time.monotonic() - begin < 5


def test_nothing_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RemoteError) as failure:
        ObjectTransport(parse_remote("s3://bucket")).get("ac", NAME)
    assert failure.value.trouble == "passing"


def test_a_body_that_ends_too_early_is_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    head = 'HTTP/1.1 200 OK\r\nContent-Length: 100\r\nETag: "a"\r\nLast-Modified: Mon, 02 Jun 2025 10:00:00 GMT\r\n\r\n'
    with answering(head.encode() + b"abc") as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT", endpoint)
        download = ObjectTransport(parse_remote("s3://bucket")).get("cas", NAME)
        assert download is not None
        with pytest.raises(RemoteError) as failure:
            io.BufferedReader(download).read()
        assert failure.value.trouble == "passing"


def test_without_obstore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreError, match=r"pip install 'epbuild\[remote\]'"):
        ObjectTransport(parse_remote("s3://bucket"))


def test_variables_that_do_not_serve_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match="AZURE_STORAGE_ACCOUNT_NAME") as failure:
        ObjectTransport(parse_remote("az://container"))
    assert failure.value.problems[0].code == "EPB520"


@pytest.mark.parametrize("anonymous", [True, False])
@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_bucket_that_only_a_recipe_names_sees_no_credentials(
    scheme: str, anonymous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS[scheme].items():
        monkeypatch.setenv(name, value)
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv(ENDPOINTS[scheme], f"http://127.0.0.1:{listener.getsockname()[1]}")

        def serve() -> None:
            with suppress(OSError):
                while True:
                    line, _ = listener.accept()
                    with line:
                        seen.append(line.recv(1 << 20))
                        line.sendall(_status("403 Forbidden"))

        threading.Thread(target=serve, daemon=True).start()
        transport = ObjectTransport(parse_remote(f"{scheme}://bucket/prefix"), Patience(2.0, 2.0, 2.0), anonymous=anonymous)
        with pytest.raises(RemoteError) as refused:
            transport.get("ac", NAME)
    assert seen
    request = b"".join(seen).lower()
    assert (b"authorization:" in request or SECRET.encode() in request) is not anonymous
    assert ("EPBUILD_REMOTE_CACHE" in str(refused.value.hint)) is anonymous
