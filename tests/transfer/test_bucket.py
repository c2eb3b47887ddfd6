"""Failing buckets: obstore's errors mean the same as those of a web server, and a hanging bucket is not retried."""

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
from epbuild.remote.opening import open_bucket_stores
from epbuild.transfer.objects import Content, Timeouts, TransferError

NAME = "ab" * 32
QUICK, SLOWER = Timeouts(1.0, 0.5, 0.6), Timeouts(2.0, 2.0, 2.0)
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
    "503": (_status("503 Service Unavailable"), "transient", "503"),
    "429": (_status("429 Too Many Requests"), "transient", "429"),
    "500": (_status("500 Internal Server Error"), "transient", "500"),
    "400": (_status("400 Bad Request"), "object", "400"),
    "401": (_status("401 Unauthorized"), "denied", "denies access"),
    "403": (_status("403 Forbidden"), "denied", "denies access"),
    "no bucket": (_status("404 Not Found", NO_BUCKET), "denied", "bucket does not exist"),
    "reset": (b"", "transient", ""),
    "hang": (None, "timeout", "sent no data"),
}


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """Run a server that answers every request alike, or never, and yield its address."""
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
def test_response_of_a_bucket_is_classified_like_other_servers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, kind_of_failure, words = ANSWERS[kind]
    with answering(answer) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT", endpoint)
        stores = open_bucket_stores(parse_remote("s3://bucket/prefix"), (QUICK, QUICK))
        begin = time.monotonic()
        with pytest.raises(TransferError) as failure:
            stores.records.get(f"ac/{NAME}")
        assert (failure.value.kind, words in failure.value.reason) == (kind_of_failure, True), failure.value
        assert "Debug" not in failure.value.reason
        assert "127.0.0.1" not in failure.value.reason
        if kind != "no bucket":
            with pytest.raises(TransferError) as failure:
                stores.blobs.put(f"cas/{NAME}", Content.of(b"x"))
            assert failure.value.kind == kind_of_failure
        assert time.monotonic() - begin < 5


def test_unreachable_bucket_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TransferError) as failure:
        open_bucket_stores(parse_remote("s3://bucket")).records.get(f"ac/{NAME}")
    assert failure.value.kind == "transient"


def test_truncated_body_is_not_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    head = 'HTTP/1.1 200 OK\r\nContent-Length: 100\r\nETag: "a"\r\nLast-Modified: Mon, 02 Jun 2025 10:00:00 GMT\r\n\r\n'
    with answering(head.encode() + b"abc") as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT", endpoint)
        download = open_bucket_stores(parse_remote("s3://bucket")).blobs.get(f"cas/{NAME}")
        with pytest.raises(TransferError) as failure:
            io.BufferedReader(download).read()
        assert failure.value.kind == "transient"


def test_missing_obstore_is_reported_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreError, match=r"pip install 'epbuild\[remote\]'"):
        open_bucket_stores(parse_remote("s3://bucket"))


def test_unusable_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match="AZURE_STORAGE_ACCOUNT_NAME") as failure:
        open_bucket_stores(parse_remote("az://container"))
    assert failure.value.problems[0].code == "EPB520"


@pytest.mark.parametrize("anonymous", [True, False])
@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_bucket_named_only_by_a_recipe_gets_no_credentials(scheme: str, anonymous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
        stores = open_bucket_stores(parse_remote(f"{scheme}://bucket/prefix"), (SLOWER, SLOWER), is_anonymous=anonymous)
        with pytest.raises(TransferError) as refused:
            stores.records.get(f"ac/{NAME}")
    assert seen
    request = b"".join(seen).lower()
    assert (b"authorization:" in request or SECRET.encode() in request) is not anonymous
    assert ("EPBUILD_REMOTE_CACHE" in str(refused.value.hint)) is anonymous
