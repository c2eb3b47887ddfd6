"""Downloads of models: bad connections, bad servers, and files with the wrong digest."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from epbuild.cache.blobs import BlobStore
from epbuild.core.digest import Blob
from epbuild.core.errors import Cancelled, EpbuildError, StoreError
from epbuild.fetch.download import Attempts, FetchProgress, download, fetch
from epbuild.fetch.partial import FetchError
from epbuild.recipe.address import Address, WebAddress, parse_address
from epbuild.transfer.objects import Download
from epbuild.transfer.retry import RetryPolicy
from tests.support.fake_fetcher import Arrivals
from tests.support.file_server import File, FileServer, client_without_tls, serving

BODY = bytes(range(256)) * 8192  # 2 MiB: more than sockets buffer
DIGEST = hashlib.sha256(BODY).hexdigest()
KIB = 1024


def fetched(
    address: Address,
    store: BlobStore,
    sha256: str | None = DIGEST,
    progress: FetchProgress | None = None,
    cancelled: threading.Event | None = None,
    pauses: tuple[float, ...] = (0.0, 0.0, 0.0),
) -> Blob:
    return fetch(
        address,
        sha256,
        store,
        client_without_tls(cancelled=cancelled),
        progress if progress is not None else Arrivals(),
        RetryPolicy(pauses),
    )


def partials(store: BlobStore) -> list[Path]:
    return list(store.partials.iterdir()) if store.partials.exists() else []


def refused(code: str, error: type[EpbuildError], action: Callable[[], object]) -> str:
    with pytest.raises(error) as failure:
        action()
    (problem,) = failure.value.problems
    assert problem.code == code
    return problem.text


def test_fetched_file_is_stored_without_leftovers(server: FileServer, store: BlobStore) -> None:
    blob = fetched(server.serve("/m.onnx", File(BODY)), store)
    assert blob == Blob(DIGEST, len(BODY))
    assert store.read_bytes(DIGEST) == BODY
    assert partials(store) == []


def test_empty_file_is_fetched(server: FileServer, store: BlobStore) -> None:
    empty = hashlib.sha256(b"").hexdigest()
    assert fetched(server.serve("/empty", File(b"")), store, empty) == Blob(empty, 0)


def test_stored_file_needs_no_network(server: FileServer, store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(BODY)
    store.put(tmp_path / "m.onnx")
    assert fetched(server.address("/gone.onnx"), store, DIGEST.upper()) == Blob(DIGEST, len(BODY))
    assert server.requests == []


def test_broken_download_fetches_only_the_missing_part(server: FileServer, store: BlobStore) -> None:
    file = File(BODY, cut_after=[300 * KIB, 500 * KIB])
    fetched(server.serve("/m.onnx", file), store)
    assert [request.range for request in server.requests] == [None, f"bytes={300 * KIB}-", f"bytes={800 * KIB}-"]
    assert store.read_bytes(DIGEST) == BODY


def test_repeatedly_broken_download_still_completes(server: FileServer, store: BlobStore) -> None:
    fetched(server.serve("/m.onnx", File(BODY, cut_after=[200 * KIB] * 9)), store)
    assert len(server.requests) == 10
    assert store.read_bytes(DIGEST) == BODY


def test_later_run_resumes_an_abandoned_download(server: FileServer, store: BlobStore) -> None:
    file = File(BODY, cut_after=[KIB, 0, 0, 0, 0])
    address = server.serve("/m.onnx", file)
    message = refused("EPB510", FetchError, lambda: fetched(address, store))
    assert "The 1024 bytes received so far are kept" in message
    file.cut_after.clear()
    arrivals = Arrivals()
    fetched(address, store, progress=arrivals)
    assert server.requests[-1].range == "bytes=1024-"
    assert arrivals[0][1:] == (KIB, len(BODY))
    assert arrivals[-1][1:] == (len(BODY), len(BODY))
    assert store.read_bytes(DIGEST) == BODY


def test_server_without_ranges_sends_the_file_again(server: FileServer, store: BlobStore) -> None:
    fetched(server.serve("/m.onnx", File(BODY, knows_ranges=False, cut_after=[700 * KIB])), store)
    assert [request.range for request in server.requests] == [None, f"bytes={700 * KIB}-"]
    assert store.read_bytes(DIGEST) == BODY


def test_server_without_etags_is_not_asked_for_a_range(server: FileServer, store: BlobStore) -> None:
    fetched(server.serve("/m.onnx", File(BODY, etag=None, cut_after=[700 * KIB])), store)
    assert [request.range for request in server.requests] == [None, None]
    assert store.read_bytes(DIGEST) == BODY


@pytest.mark.parametrize("etag", ['"v2"', None])
def test_two_versions_of_a_file_are_never_mixed(server: FileServer, store: BlobStore, etag: str | None) -> None:
    address = server.serve("/m.onnx", File(b"old" + BODY[3:], cut_after=[700 * KIB, 0, 0, 0, 0]))
    refused("EPB510", FetchError, lambda: fetched(address, store))
    server.serve("/m.onnx", File(BODY, etag=etag))
    fetched(address, store)
    assert server.requests[-1].range == f"bytes={700 * KIB}-"
    assert store.read_bytes(DIGEST) == BODY


def test_file_that_became_smaller_is_fetched_again(server: FileServer, store: BlobStore) -> None:
    address = server.serve("/m.onnx", File(BODY + b"longer", cut_after=[len(BODY), 0, 0, 0, 0]))
    other = hashlib.sha256(BODY + b"longer").hexdigest()
    refused("EPB510", FetchError, lambda: fetched(address, store, other))
    small = b"small"
    server.serve("/m.onnx", File(small))
    assert fetched(address, store, hashlib.sha256(small).hexdigest()).size == len(small)


def test_complete_but_unstored_download_is_not_repeated(server: FileServer, store: BlobStore) -> None:
    address = server.serve("/m.onnx", File(BODY))
    store.partials.mkdir(parents=True)
    (store.partials / hashlib.sha256(address.text.encode()).hexdigest()).write_bytes(BODY)
    assert fetched(address, store) == Blob(DIGEST, len(BODY))
    assert server.requests == []


@pytest.mark.parametrize("note", ["", "{", "[]", '{"validator": 7}', '{"version": "v1"}', "\0"])
def test_damaged_note_of_a_partial_file_causes_a_fresh_start(server: FileServer, store: BlobStore, note: str) -> None:
    address = server.serve("/m.onnx", File(BODY))
    name = hashlib.sha256(address.text.encode()).hexdigest()
    store.partials.mkdir(parents=True)
    (store.partials / name).write_bytes(b"what is this")
    (store.partials / f"{name}.json").write_text(note, encoding="utf-8")
    fetched(address, store)
    assert [request.range for request in server.requests] == [None]


def test_file_that_differs_from_its_pin_is_refused_and_not_kept(server: FileServer, store: BlobStore) -> None:
    address = server.serve("/m.onnx", File(b"something else"))
    message = refused("EPB511", FetchError, lambda: fetched(address, store))
    assert DIGEST in message
    assert hashlib.sha256(b"something else").hexdigest() in message
    assert partials(store) == []
    assert store.find(hashlib.sha256(b"something else").hexdigest()) is None


@pytest.mark.parametrize(
    ("status", "advice"),
    [(404, "Check the address."), (410, "Check the address."), (403, "may read the file"), (401, "may read the file")],
)
def test_refusal_by_the_server_is_reported_at_once(server: FileServer, store: BlobStore, status: int, advice: str) -> None:
    address = server.serve("/m.onnx", File(BODY, answers=[status]))
    message = refused("EPB510", FetchError, lambda: fetched(address, store))
    assert f"the server responded with {status}" in message
    assert message.endswith(advice) or advice in message
    assert len(server.requests) == 1
    assert partials(store) == []


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_failing_server_is_retried(server: FileServer, store: BlobStore, status: int) -> None:
    fetched(server.serve("/m.onnx", File(BODY, answers=[status] * 3)), store)
    assert store.read_bytes(DIGEST) == BODY


def test_permanently_failing_server_is_not_retried_forever(server: FileServer, store: BlobStore) -> None:
    address = server.serve("/m.onnx", File(BODY, answers=[500] * 100))
    message = refused("EPB510", FetchError, lambda: fetched(address, store))
    assert "the server responded with 500" in message
    assert "Check the network, then run again." in message
    assert len(server.requests) == 4


def test_unreachable_host_is_named(store: BlobStore) -> None:
    with serving() as server:
        address = server.address("/m.onnx")
    assert str(address) in refused("EPB510", FetchError, lambda: fetched(address, store))


def test_redirect_is_followed_and_resumes(server: FileServer, store: BlobStore) -> None:
    target = server.serve("/storage/1", File(BODY, cut_after=[700 * KIB]))
    fetched(server.serve("/m.onnx", File(b"", redirect=target.text)), store)
    assert [request.range for request in server.requests] == [None, None, *[f"bytes={700 * KIB}-"] * 2]
    assert store.read_bytes(DIGEST) == BODY


@pytest.mark.parametrize("scheme", ["http", "ftp", "file"])
def test_redirect_away_from_https_is_refused(server: FileServer, store: BlobStore, scheme: str) -> None:
    target = server.serve("/storage/1", File(BODY)).text.replace("https", scheme)
    address = server.serve("/m.onnx", File(b"", redirect=target))
    refused("EPB510", FetchError, lambda: fetched(address, store))
    assert [request.path for request in server.requests] == ["/m.onnx"]


@pytest.mark.parametrize("target", ["https://[::1", "https://[/", "https://h:port/", "//["])
def test_redirect_to_an_invalid_address_is_reported(server: FileServer, store: BlobStore, target: str) -> None:
    address = server.serve("/m.onnx", File(b"", redirect=target))
    assert str(address) in refused("EPB510", FetchError, lambda: fetched(address, store))


@pytest.mark.parametrize("validator", ['"a"\r\nX: y', '"a\x00"', '"ä"', ""])
def test_invalid_etag_is_not_sent(server: FileServer, store: BlobStore, validator: str) -> None:
    file = File(BODY, cut_after=[KIB, 0, 0, 0, 0])
    address = server.serve("/m.onnx", file)
    refused("EPB510", FetchError, lambda: fetched(address, store))
    file.cut_after.clear()
    (note,) = store.partials.glob("*.json")
    note.write_text(json.dumps({"validator": validator}), encoding="utf-8")
    fetched(address, store)
    assert store.read_bytes(DIGEST) == BODY


def test_redirect_loop_ends(server: FileServer, store: BlobStore) -> None:
    address = server.serve("/m.onnx", File(b"", redirect="/m.onnx"))
    refused("EPB510", FetchError, lambda: fetched(address, store))


def test_secret_in_the_address_is_hidden_in_messages(server: FileServer, store: BlobStore) -> None:
    address = server.address("/gone.onnx?token=s3cret")
    message = refused("EPB510", FetchError, lambda: fetched(address, store))
    assert "gone.onnx" in message
    assert "s3cret" not in message


@dataclass
class CancelledOnArrival:
    cancelled: threading.Event

    def arrived(self, address: str, done: int, total: int | None) -> None:
        if done:
            self.cancelled.set()


def test_cancelled_download_stops_and_resumes_next_time(server: FileServer, store: BlobStore) -> None:
    cancelled = threading.Event()
    address = server.serve("/m.onnx", File(BODY, cut_after=[800 * KIB]))
    with pytest.raises(Cancelled):
        fetched(address, store, progress=CancelledOnArrival(cancelled), cancelled=cancelled)
    assert any(path.stat().st_size for path in partials(store))
    fetched(address, store)
    assert server.requests[-1].range is not None
    assert store.read_bytes(DIGEST) == BODY
    assert partials(store) == []


def test_cancelled_build_skips_the_pause_between_attempts(server: FileServer, store: BlobStore) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        fetched(server.serve("/m.onnx", File(BODY, answers=[500])), store, cancelled=cancelled, pauses=(3600.0,))


def test_two_builds_fetch_a_common_file_once(server: FileServer, store: BlobStore) -> None:
    asked, waiting = threading.Event(), threading.Event()

    def hold() -> None:
        asked.set()
        waiting.wait(10)

    address = server.serve("/m.onnx", File(BODY, before_body=hold))
    blobs: list[Blob] = []
    threads = [threading.Thread(target=lambda: blobs.append(fetched(address, store))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert asked.wait(10)
    waiting.set()
    for thread in threads:
        thread.join(30)
    assert blobs == [Blob(DIGEST, len(BODY))] * 2
    assert len(server.requests) == 1


def test_addresses_with_equal_file_names_use_separate_partial_files(server: FileServer, store: BlobStore) -> None:
    first = server.serve("/a/m.onnx", File(b"A" * 5000, cut_after=[4000, 0, 0, 0, 0]))
    second = server.serve("/b/m.onnx", File(b"B" * 5000))
    refused("EPB510", FetchError, lambda: fetched(first, store, hashlib.sha256(b"A" * 5000).hexdigest()))
    fetched(second, store, hashlib.sha256(b"B" * 5000).hexdigest())
    assert server.requests[-1].range is None


@pytest.mark.parametrize("text", ["https://example.com/m.onnx", "s3://bucket/m.onnx", "hf://org/repo/m.onnx@main"])
def test_changeable_address_is_not_fetched_without_a_sha256(store: BlobStore, text: str) -> None:
    with pytest.raises(ValueError, match="is not pinned; add its sha256"):
        fetched(parse_address(text), store, None)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_full_disk_is_reported_and_keeps_the_partial_file(server: FileServer, store: BlobStore) -> None:
    import resource

    address = server.serve("/m.onnx", File(BODY))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512 * KIB, limits[1]))
    try:
        message = refused("EPB503", StoreError, lambda: fetched(address, store))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "EPBUILD_CACHE_DIR" in message
    fetched(address, store)
    assert server.requests[-1].range is not None
    assert store.read_bytes(DIGEST) == BODY


class _Zeros(Download):
    """Long stream of zeros that is never in memory as a whole."""

    size = 200 * 1024 * 1024

    def __init__(self) -> None:
        self._left = self.size

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        count = min(len(buffer), self._left)
        buffer[:count] = bytes(count)
        self._left -= count
        return count


def test_model_of_any_size_is_fetched_with_little_memory(store: BlobStore) -> None:
    address = WebAddress("https://example.com/large.onnx")
    tracemalloc.start()
    try:
        attempts = Attempts(address, lambda start, version: _Zeros(), client_without_tls(), Arrivals())
        blob = download(attempts, None, store)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert blob.size == _Zeros.size
    assert peak < 10 * 1024 * 1024
