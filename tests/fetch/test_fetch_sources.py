"""Buckets and the Hugging Face Hub: real clients against a local server, and messages for missing clients."""

from __future__ import annotations

import hashlib
import io
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from epbuild.cache.blobs import BlobStore
from epbuild.core.digest import Blob
from epbuild.core.errors import EpbuildError
from epbuild.fetch.download import fetch
from epbuild.fetch.partial import FetchError
from epbuild.recipe.address import parse_address
from epbuild.transfer.bucket import BucketStore
from tests.support.fake_fetcher import Arrivals
from tests.support.file_server import AT_ONCE, File, FileServer, client_without_tls

BODY = bytes(range(256)) * 20480  # 5 MiB: more than one range of an object
DIGEST = hashlib.sha256(BODY).hexdigest()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHEN = "Mon, 02 Jun 2025 10:00:00 GMT"


def fetched(text: str, store: BlobStore, sha256: str | None = DIGEST) -> Blob:
    return fetch(parse_address(text), sha256, store, client_without_tls(), Arrivals(), AT_ONCE)


def refusal(text: str, store: BlobStore, sha256: str | None = DIGEST, code: str = "EPB510") -> str:
    with pytest.raises(EpbuildError) as failure:
        fetched(text, store, sha256)
    (problem,) = failure.value.problems
    assert problem.code == code
    return problem.text


@pytest.mark.parametrize(
    ("text", "module", "extra"),
    [
        ("s3://bucket/m.onnx", "obstore", "epbuild[remote]"),
        ("gs://bucket/m.onnx", "obstore", "epbuild[remote]"),
        ("az://container/m.onnx", "obstore", "epbuild[remote]"),
        ("hf://org/repo/m.onnx@main", "huggingface_hub", "epbuild[hf]"),
    ],
)
def test_missing_package_is_reported_with_its_install_command(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch, text: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    message = refusal(text, store, code="EPB512")
    assert module in message
    assert f"pip install '{extra}'" in message


@pytest.mark.parametrize("text", ["s3://bucket/m.onnx", "hf://org/repo/m.onnx@main"])
def test_stored_file_needs_no_client(store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    (tmp_path / "m.onnx").write_bytes(BODY)
    store.put(tmp_path / "m.onnx")
    assert fetched(text, store).digest == DIGEST


class TestBuckets:
    """Tests of S3, Google Cloud Storage and Azure."""

    @pytest.fixture
    def bucket(self, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
        pytest.importorskip("obstore", reason="needs the extra 'remote'")
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        monkeypatch.setenv("AWS_REGION", "eu-central-1")
        return server

    def test_s3_object_is_fetched_in_one_request(self, bucket: FileServer, store: BlobStore) -> None:
        bucket.serve("/models/tiny/m.onnx", File(BODY, last_modified=WHEN))
        assert fetched("s3://models/tiny/m.onnx", store) == Blob(DIGEST, len(BODY))
        assert store.read_bytes(DIGEST) == BODY
        assert [request.method for request in bucket.requests] == ["GET"]

    def test_broken_download_resumes_at_the_same_version(self, bucket: FileServer, store: BlobStore) -> None:
        bucket.serve("/models/m.onnx", File(BODY, last_modified=WHEN, cut_after=[len(BODY) - 500_000]))
        assert fetched("s3://models/m.onnx", store) == Blob(DIGEST, len(BODY))
        assert store.read_bytes(DIGEST) == BODY
        resumed = bucket.requests[-1]
        assert resumed.headers["range"] not in ("bytes=0-", "")
        assert resumed.headers["if-match"] == '"v1"'

    def test_replaced_object_is_read_from_its_beginning(self, bucket: FileServer, store: BlobStore) -> None:
        file = File(BODY[::-1], last_modified=WHEN, cut_after=[len(BODY) - 500_000])
        bucket.serve("/models/m.onnx", file)

        def replace_after_first() -> None:
            if len(bucket.requests) == 1:
                bucket.serve("/models/m.onnx", File(BODY, etag='"v2"', last_modified=WHEN))

        file.before_body = replace_after_first
        assert fetched("s3://models/m.onnx", store) == Blob(DIGEST, len(BODY))
        assert store.read_bytes(DIGEST) == BODY

    def test_server_without_ranges_is_read_from_the_beginning(self, bucket: FileServer, store: BlobStore) -> None:
        bucket.serve("/models/m.onnx", File(BODY, last_modified=WHEN, knows_ranges=False, cut_after=[len(BODY) - 500_000]))
        assert fetched("s3://models/m.onnx", store) == Blob(DIGEST, len(BODY))
        assert store.read_bytes(DIGEST) == BODY
        assert ["range" in request.headers for request in bucket.requests] == [False, True, False]

    @pytest.mark.parametrize(("knows_ranges", "version"), [(True, '"v1"'), (False, '"v1"'), (True, '"v0"'), (True, None)])
    def test_store_reads_from_an_offset_or_from_the_beginning(
        self, bucket: FileServer, knows_ranges: bool, version: str | None
    ) -> None:
        bucket.serve("/models/m.onnx", File(BODY, last_modified=WHEN, knows_ranges=knows_ranges))
        download = BucketStore("s3", "models").get("m.onnx", 1000, version)
        assert download.start == (1000 if knows_ranges and version == '"v1"' else 0)
        assert (download.size, download.version) == (len(BODY), '"v1"')
        assert io.BufferedReader(download).read() == BODY[download.start :]

    def test_missing_object_is_reported_at_once(self, bucket: FileServer, store: BlobStore) -> None:
        assert "the object does not exist" in refusal("s3://models/gone.onnx", store)
        assert len(bucket.requests) == 1

    def test_refused_object_names_the_required_variables(self, bucket: FileServer, store: BlobStore) -> None:
        bucket.serve("/models/m.onnx", File(BODY, answers=[403]))
        assert "AWS_ACCESS_KEY_ID" in refusal("s3://models/m.onnx", store)

    def test_missing_azure_account_is_reported(self, store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("obstore", reason="needs the extra 'remote'")
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
        message = refusal("az://container/m.onnx", store)
        assert "Set AZURE_STORAGE_ACCOUNT_NAME" in message
        assert "Debug source" not in message


class _HubError(OSError):
    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.response = type("Response", (), {"status_code": status})()


class _Offline(ConnectionError):
    pass


@dataclass
class FakeHub:
    """Fake of the parts of huggingface_hub that epbuild uses, backed by the server of these tests."""

    server: FileServer
    etag: str | None = None
    fails_with: list[Exception] = field(default_factory=list)
    scheme: str = "https"

    def hf_hub_url(self, repo_id: str, filename: str, *, revision: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server.port}/{repo_id}/resolve/{revision}/{filename}"

    def get_hf_file_metadata(self, url: str) -> Any:
        if self.fails_with:
            raise self.fails_with.pop(0)
        return type("Metadata", (), {"commit_hash": COMMIT, "etag": self.etag})()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module, errors, utils = (ModuleType(f"huggingface_hub{part}") for part in ("", ".errors", ".utils"))
        errors.__dict__.update(HfHubHTTPError=_HubError, OfflineModeIsEnabled=_Offline)
        utils.__dict__.update(build_hf_headers=lambda: {"authorization": "Bearer s3cret"})
        module.__dict__.update(
            hf_hub_url=self.hf_hub_url, get_hf_file_metadata=self.get_hf_file_metadata, errors=errors, utils=utils
        )
        for part in (module, errors, utils):
            monkeypatch.setitem(sys.modules, part.__name__, part)


class TestHub:
    """Tests of the Hugging Face Hub."""

    @pytest.fixture
    def hub(self, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
        hub = FakeHub(server)
        hub.install(monkeypatch)
        return hub

    def test_branch_is_read_at_one_commit_even_after_a_broken_connection(self, hub: FakeHub, store: BlobStore) -> None:
        hub.server.serve(f"/org/repo/resolve/{COMMIT}/onnx/m.onnx", File(BODY, cut_after=[100_000]))
        assert fetched("hf://org/repo/onnx/m.onnx@main", store) == Blob(DIGEST, len(BODY))
        assert [request.range for request in hub.server.requests] == [None, "bytes=100000-"]

    def test_token_is_sent_to_the_hub_but_not_to_redirect_targets(self, hub: FakeHub, store: BlobStore) -> None:
        target = hub.server.serve("/storage/1", File(BODY)).text.replace("127.0.0.1", "localhost")
        hub.server.serve(f"/org/repo/resolve/{COMMIT}/m.onnx", File(b"", redirect=target))
        fetched("hf://org/repo/m.onnx@main", store)
        sent = [request.headers.get("Authorization") for request in hub.server.requests]
        assert sent == ["Bearer s3cret", None]

    def test_commit_needs_no_sha256_and_is_fetched_once(
        self, hub: FakeHub, store: BlobStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub.server.serve(f"/org/repo/resolve/{COMMIT}/m.onnx", File(BODY))
        first = fetched(f"hf://org/repo/m.onnx@{COMMIT}", store, None)
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        assert fetched(f"hf://org/repo/m.onnx@{COMMIT}", store, None) == first == Blob(DIGEST, len(BODY))
        assert len(hub.server.requests) == 1

    def test_digest_of_the_hub_is_checked_for_unpinned_files(self, hub: FakeHub, store: BlobStore) -> None:
        hub.etag = hashlib.sha256(b"what was uploaded").hexdigest()
        hub.server.serve(f"/org/repo/resolve/{COMMIT}/m.onnx", File(BODY))
        assert hub.etag in refusal(f"hf://org/repo/m.onnx@{COMMIT}", store, None, code="EPB511")

    def test_file_with_another_digest_on_the_hub_is_not_downloaded(self, hub: FakeHub, store: BlobStore) -> None:
        hub.etag = "f" * 64
        hub.server.serve(f"/org/repo/resolve/{COMMIT}/m.onnx", File(BODY))
        assert "f" * 64 in refusal("hf://org/repo/m.onnx@main", store, code="EPB511")
        assert not list(store.partials.iterdir())

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (_HubError("404 Client Error. (Request ID: Root=1)\n\nEntry Not Found for url: x.\nMore.", 404), "Entry Not Found"),
            (_HubError("401 Client Error. (Request ID: Root=1)\n\nRepository Not Found.", 401), "a token in HF_TOKEN"),
            (_HubError("", 403), "the hub responded with status 403"),
            (_Offline("offline"), "Unset HF_HUB_OFFLINE"),
            (ValueError("Repo id must be in the form"), "Repo id must be"),
        ],
    )
    def test_refusal_by_the_hub_is_reported_at_once(self, hub: FakeHub, store: BlobStore, error: Exception, said: str) -> None:
        hub.fails_with = [error]
        message = refusal("hf://org/repo/m.onnx@main", store)
        assert said in message
        assert "Request ID" not in message

    def test_failing_hub_is_retried(self, hub: FakeHub, store: BlobStore) -> None:
        hub.fails_with = [_HubError("busy", 503), TimeoutError("slow"), RuntimeError("a library's own kind")]
        hub.server.serve(f"/org/repo/resolve/{COMMIT}/m.onnx", File(BODY))
        assert fetched("hf://org/repo/m.onnx@main", store).digest == DIGEST

    def test_hub_without_https_is_refused(self, hub: FakeHub, store: BlobStore) -> None:
        hub.scheme = "http"
        assert "HF_ENDPOINT" in refusal("hf://org/repo/m.onnx@main", store)
        assert hub.server.requests == []


def test_installed_huggingface_hub_has_the_required_functions() -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra 'hf'")
    from huggingface_hub import errors, utils

    url = hub.hf_hub_url("org/repo", "onnx/m x.onnx", revision="refs/pr/7")
    assert url.endswith("/org/repo/resolve/refs%2Fpr%2F7/onnx/m%20x.onnx")
    assert callable(hub.get_hf_file_metadata)
    assert "user-agent" in {name.lower() for name in utils.build_hf_headers(token="s3cret")}
    assert issubclass(errors.HfHubHTTPError, Exception)
    assert issubclass(errors.OfflineModeIsEnabled, ConnectionError)
    assert {"commit_hash", "etag"} <= set(hub.HfFileMetadata.__dataclass_fields__)


def test_failed_fetch_has_the_exit_code_of_the_environment() -> None:
    assert FetchError.exit_code == 3
