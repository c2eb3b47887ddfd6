"""Servers that never end an answer or send huge numbers: each HTTP client fails with one sentence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epbuild.cache.blobs import BlobStore
from epbuild.fetch.download import fetch
from epbuild.fetch.partial import FetchError
from epbuild.recipe.address import WebAddress
from epbuild.transfer.connection import Body
from epbuild.transfer.http import HttpClient
from epbuild.transfer.objects import Content, Speed, Timeouts, TransferError
from epbuild.transfer.retry import RetryPolicy
from epbuild.transfer.web import WebStore
from tests.support.fake_fetcher import Arrivals
from tests.support.file_server import client_without_tls
from tests.transfer.raw_server import RawServer, raw_server

SAFETY_SECONDS = 60
"""Seconds after which a call counts as hanging. A normal call takes about a second."""

QUICK = Timeouts(1.0, 0.4, 0.4, 0.4, Speed(0.4, 1e3))
ONCE_AGAIN = RetryPolicy((0.0,))
DIGEST = "ab" * 32
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
HUGE = b"9" * 5000

Attack = Callable[[RawServer], Iterator[bytes]]


def _after(start: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield start
    yield from rest


BEFORE_THE_BODY: dict[str, Attack] = {
    "100 Continue again and again": lambda server: repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "100 Continue drips": lambda server: server.drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "the status drips": lambda server: server.drip(b"HTTP/1.1 200 " + b"OK" * 10000),
    "the header drips": lambda server: server.drip(OK + b"X: y\r\n" * 10000),
    "the header never ends": lambda server: _after(OK, repeat(b"X: y\r\n")),
    "a line of the header never ends": lambda server: _after(OK, repeat(b"x" * 1000)),
    "silence": lambda server: _after(b"", server.drip(b"")),
    "a 404's body drips": lambda server: _after(b"HTTP/1.1 404 No\r\n\r\n", server.drip(b"no" * 10000)),
    "a redirect's body drips": lambda server: _after(b"HTTP/1.1 307 There\r\nLocation: /x\r\n\r\n", server.drip(b"no" * 10000)),
    "redirects never end": lambda server: iter((b"HTTP/1.1 307 There\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",)),
    "a status of many digits": lambda server: iter((b"HTTP/1.1 " + HUGE + b" OK\r\n\r\n",)),
}
IN_THE_BODY: dict[str, Attack] = {
    "the body drips": lambda server: _after(OK + b"Content-Length: 100000\r\n\r\n", server.drip(b"x" * 100000)),
    "a body of unknown size drips": lambda server: _after(OK + b"\r\n", server.drip(b"x" * 100000)),
    "chunks drip": lambda server: _after(CHUNKED, server.drip(b"1\r\nx\r\n" * 10000)),
    "the size of a chunk drips": lambda server: _after(CHUNKED, server.drip(b"0" * 100000)),
    "trailers drip": lambda server: _after(CHUNKED + b"0\r\n", server.drip(b"X: y\r\n" * 10000)),
    "trailers never end": lambda server: _after(CHUNKED + b"0\r\n", repeat(b"X: y\r\n" * 100)),
    "the body stalls": lambda server: _after(OK + b"Content-Length: 9\r\n\r\n", server.drip(b"")),
}
NUMBERS: dict[str, Attack] = {
    "a huge Content-Length": lambda server: iter((OK + b"Content-Length: " + HUGE + b"\r\n\r\nx",)),
    "a huge Content-Range": lambda server: iter(
        (b"HTTP/1.1 206 Part\r\nContent-Range: bytes 0-" + HUGE + b"/" + HUGE + b"\r\n\r\nx",)
    ),
    "a huge chunk": lambda server: iter((CHUNKED + HUGE + b"\r\nx",)),
    "a negative chunk": lambda server: iter((CHUNKED + b"-5\r\nx",)),
    "a huge pause": lambda server: iter((b"HTTP/1.1 503 No\r\nRetry-After: " + HUGE + b"\r\nContent-Length: 0\r\n\r\n",)),
    "a huge port": lambda server: iter(
        (b"HTTP/1.1 307 There\r\nLocation: https://a:" + HUGE + b"/\r\nContent-Length: 0\r\n\r\n",)
    ),
}

ENDLESS = BEFORE_THE_BODY | IN_THE_BODY
FOR_DOWNLOADS = ENDLESS | NUMBERS


@pytest.fixture
def server() -> Iterator[RawServer]:
    with raw_server() as running:
        yield running


def in_time(call: Callable[[], Any]) -> BaseException | None:
    """Return what a call raises. A call that hangs fails the test."""
    raised: list[BaseException | None] = []

    def attempt() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the test looks at its type
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(SAFETY_SECONDS)
    assert raised, "the call hangs"
    return raised[0]


def download(server: RawServer, store: Path, timeouts: Timeouts = QUICK) -> BaseException | None:
    """Return what the download of a model raises."""
    address = WebAddress(f"https://127.0.0.1:{server.port}/m.onnx")
    return in_time(lambda: fetch(address, DIGEST, BlobStore(store), client_without_tls(timeouts), Arrivals(), ONCE_AGAIN))


@pytest.mark.parametrize("attack", ENDLESS)
def test_request_for_a_small_document_ends(server: RawServer, attack: str) -> None:
    server.answer = lambda: ENDLESS[attack](server)
    client = HttpClient(local=("127.0.0.1",), timeouts=QUICK)
    assert isinstance(in_time(lambda: client.send("GET", f"{server.url}/a", headers={})), TransferError)


@pytest.mark.parametrize("attack", BEFORE_THE_BODY)
def test_upload_ends(server: RawServer, attack: str) -> None:
    server.answer = lambda: BEFORE_THE_BODY[attack](server)
    client = HttpClient(local=("127.0.0.1",), timeouts=QUICK)
    body = Body(5, "text/plain", lambda write: write(memoryview(b"hello")))
    assert isinstance(in_time(lambda: client.send("PUT", f"{server.url}/a", headers={}, body=body)), TransferError)


def test_upload_to_a_slowly_reading_server_ends(server: RawServer) -> None:
    server.reads_slowly = True
    client = HttpClient(local=("127.0.0.1",), timeouts=msgspec.structs.replace(QUICK, idle=30.0, speed=Speed(0.4, 1e9)))
    piece = memoryview(bytes(1 << 20))
    body = Body(1 << 30, "text/plain", lambda write: [write(piece) for _ in range(1 << 10)])
    error = in_time(lambda: client.send("PUT", f"{server.url}/a", headers={}, body=body))
    assert isinstance(error, TransferError)
    assert error.kind == "timeout"


@pytest.mark.parametrize("attack", FOR_DOWNLOADS)
def test_model_download_ends(server: RawServer, attack: str, tmp_path: Path) -> None:
    server.answer = lambda: FOR_DOWNLOADS[attack](server)
    assert isinstance(download(server, tmp_path), FetchError)


def test_download_broken_after_each_byte_ends(server: RawServer, tmp_path: Path) -> None:
    def answer() -> Iterator[bytes]:
        start = int(server.headers[-1].get("range", "bytes=0-")[6:-1])
        extent = f"Content-Range: bytes {start}-99999/100000\r\nContent-Length: {100000 - start}"
        yield f'HTTP/1.1 206 Part\r\nETag: "v1"\r\n{extent}\r\n\r\nx'.encode()

    server.closes, server.answer = True, answer
    assert isinstance(download(server, tmp_path, msgspec.structs.replace(QUICK, speed=Speed(0.4, 1e6))), FetchError)
    assert [request.get("range") for request in server.headers] == [None, "bytes=1-"]


def store_on(server: RawServer) -> WebStore:
    return WebStore(HttpClient(local=("127.0.0.1",), timeouts=QUICK), server.url)


REMOTE_CALLS: dict[str, Callable[[WebStore], object]] = {
    "get a record": lambda remote: remote.get(f"ac/{DIGEST}"),
    "has a blob": lambda remote: remote.has(f"cas/{DIGEST}", 5),
    "put a record": lambda remote: remote.put(f"ac/{DIGEST}", Content.of(b"hello")),
}


@pytest.mark.parametrize("call", REMOTE_CALLS)
@pytest.mark.parametrize("attack", BEFORE_THE_BODY)
def test_request_to_a_remote_cache_ends(server: RawServer, attack: str, call: str) -> None:
    server.answer = lambda: BEFORE_THE_BODY[attack](server)
    remote = store_on(server)
    error = in_time(lambda: REMOTE_CALLS[call](remote))
    if attack == "a 404's body drips" and call == "has a blob":  # the answer to a HEAD has no body
        assert error is None
    else:
        assert isinstance(error, TransferError)


@pytest.mark.parametrize("call", ["get a record", "has a blob"])
def test_remote_cache_with_a_huge_size_is_reported(server: RawServer, call: str) -> None:
    server.answer = lambda: NUMBERS["a huge Content-Length"](server)
    error = in_time(lambda: REMOTE_CALLS[call](store_on(server)))
    assert isinstance(error, TransferError)
    assert error.reason == "the server's response is invalid (Content-Length)"


def test_connection_is_reusable_after_each_way_of_reading(server: RawServer) -> None:
    """Check that the short timeouts of a read do not stay on the connection."""
    server.answer = lambda: iter((OK + b"Content-Length: 2\r\n\r\nok",))
    client = HttpClient(local=("127.0.0.1",), timeouts=QUICK)
    for _ in range(2):
        assert client.send("GET", f"{server.url}/a", headers={}).data == b"ok"
        response = client.open("GET", f"{server.url}/a", headers={})
        assert response.size == 2
        assert response.read1(100) == b"ok"
        response.release()
    [pool] = client._pools.values()
    assert (pool.num_connections, pool.num_requests) == (1, 4)
