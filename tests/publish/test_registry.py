"""Pushes to a registry: an image arrives complete or with an error, and no blob is sent twice."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from epbuild.archive.artifact import Artifact
from epbuild.core.digest import Write
from epbuild.core.errors import Cancelled
from tests.support.registry_pushes import BYTES, FILES, LARGE, LARGE_UPLOAD, Pusher, Start, as_nobody, holds_all, pour
from tests.support.registry_server import Answer, Registry, Server, Trouble, digest, said, serving


@pytest.fixture(autouse=True)
def anonymous_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_nobody(monkeypatch, tmp_path)


class TestUploads:
    def test_push_uploads_blobs_before_the_manifest_and_the_tag(self, registry: Registry, pusher: Pusher) -> None:
        pushed = pusher(registry)
        assert holds_all(registry, pusher)
        assert (pushed.digest, pushed.sent, pushed.there) == (pusher.image.digest, 3, 0)
        assert pushed.sent_bytes == sum(map(len, FILES.values())) + 2
        puts = [path.partition("?")[0] for path in registry.asked("PUT")]
        assert [path.split("/")[4] for path in puts] == ["blobs"] * 3 + ["manifests"] * 2
        assert puts[-2:] == [f"/v2/team/models/manifests/{name}" for name in (pusher.image.digest, "1.0")]

    def test_existing_blobs_are_not_sent_again(self, registry: Registry, pusher: Pusher) -> None:
        pusher(registry)
        registry.requests.clear()
        pushed = pusher(registry)
        assert (pushed.sent, pushed.sent_bytes, pushed.there) == (0, 0, 3)
        assert {request.method for request in registry.requests} == {"HEAD"}
        assert pusher.told == [(0, 0)]

    def test_new_tag_of_an_existing_image_is_the_only_upload(self, registry: Registry, pusher: Pusher) -> None:
        pusher(registry)
        registry.requests.clear()
        pusher(registry, tag="stable")
        assert registry.asked("PUT") == ["/v2/team/models/manifests/stable"]
        assert holds_all(registry, pusher, "stable")

    def test_tag_of_another_image_is_moved(self, registry: Registry, pusher: Pusher) -> None:
        registry.manifests["1.0"] = b"{}"
        pusher(registry)
        assert holds_all(registry, pusher)

    def test_progress_ends_at_the_total(self, registry: Registry, pusher: Pusher) -> None:
        pusher(registry)
        total = sum(map(len, FILES.values())) + 2
        assert pusher.told[0] == (0, total)
        assert pusher.told[-1] == (total, total)
        assert [done for done, _ in pusher.told] == sorted(done for done, _ in pusher.told)

    def test_progress_counts_only_missing_blobs(self, registry: Registry, pusher: Pusher) -> None:
        pusher(registry)
        missing = registry.blobs.pop(LARGE)
        pushed = pusher(registry)
        assert pusher.told[0] == (0, len(missing))
        assert pusher.told[-1] == (pushed.sent_bytes,) * 2 == (len(missing),) * 2

    @pytest.mark.parametrize("location", ["{path}", "{root}{path}"])
    def test_upload_location_may_be_a_path_or_a_url(self, registry: Registry, pusher: Pusher, location: str) -> None:
        registry.location = lambda path: location.format(root=registry.root, path=path)
        pusher(registry)
        assert holds_all(registry, pusher)


class TestRetries:
    @pytest.mark.parametrize("status", [429, 500, 503])
    @pytest.mark.parametrize(
        ("method", "path"), [("HEAD", LARGE), ("POST", "/uploads/"), ("PUT", LARGE_UPLOAD), ("PUT", "/manifests/")]
    )
    def test_overloaded_registry_is_retried(
        self, registry: Registry, pusher: Pusher, method: str, path: str, status: int
    ) -> None:
        registry.troubles = [Trouble(method, path, (status, {}, b""), times=3)]
        pusher(registry)
        assert holds_all(registry, pusher)

    @pytest.mark.parametrize("reads", [None, 0, 200_000])
    @pytest.mark.parametrize(
        ("method", "path"), [("HEAD", LARGE), ("POST", "/uploads/"), ("PUT", LARGE_UPLOAD), ("PUT", "/manifests/")]
    )
    def test_broken_connection_is_retried(
        self, registry: Registry, pusher: Pusher, method: str, path: str, reads: int | None
    ) -> None:
        registry.troubles = [Trouble(method, path, reads=reads, times=2)]
        pusher(registry)
        assert holds_all(registry, pusher)

    def test_broken_upload_restarts_and_resets_its_progress(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("PUT", LARGE_UPLOAD, reads=400_000, times=2)]
        pusher(registry)
        opened = registry.asked("POST")
        places = [path.partition("?")[0] for path in registry.asked("PUT") if "/uploads/" in path]
        assert len(opened) == len(set(places)) == 5
        done = [done for done, _ in pusher.told]
        assert done != sorted(done)
        assert max(done) == done[-1]

    def test_long_error_page_is_harmless(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("POST", "/uploads/", (503, {}, bytes(3 << 20)), times=3)]
        pusher(registry)
        assert holds_all(registry, pusher)

    def test_broken_connection_is_not_reported_as_a_disk_error(self, registry: Registry, pusher: Pusher) -> None:
        def pour_like_the_store(content: Artifact, write: Write) -> None:
            try:
                pour(content, write)
            except OSError as error:
                raise RuntimeError("the store cannot be read") from error

        registry.troubles = [Trouble("PUT", LARGE_UPLOAD, reads=1000, times=2)]
        pusher(registry, pour=pour_like_the_store)
        assert holds_all(registry, pusher)

    def test_persistent_failure_is_reported_after_a_few_retries(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("PUT", "/manifests/1.0", (503, {}, b""), times=99)]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "503 Service Unavailable" in text
        assert len([path for path in registry.asked("PUT") if path.endswith("/1.0")]) == 4
        assert "1.0" not in registry.manifests

    def test_persistently_broken_connection_is_reported(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("PUT", LARGE_UPLOAD, reads=1000, times=99)]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "the connection was closed unexpectedly" in text
        assert registry.manifests == {}

    def test_pause_requested_by_a_registry_is_respected(self, registry: Registry, pusher: Pusher) -> None:
        pauses: list[float | None] = []

        class InstantWait(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                pauses.append(timeout)
                return self.is_set()

        troubles: list[Answer] = [(429, {"Retry-After": after}, b"") for after in ("7", "86400", "soon")]
        registry.troubles = [Trouble("POST", "/uploads/", answer) for answer in troubles]
        pusher(registry, cancelled=InstantWait())
        assert pauses == [7.0, 30.0, 0.0]


class TestFailures:
    def test_unreachable_server_is_reported(self, pusher: Pusher) -> None:
        with serving(Registry) as gone:
            pass
        code, text = pusher.fails(gone)
        assert code == "EPB426"
        assert text.startswith(
            f"the registry 127.0.0.1:{gone.port} cannot be pushed to: no server listens at this address. Check the reference"
        )

    def test_unknown_host_is_reported(self, registry: Registry, pusher: Pusher, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*_: object, **__: object) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        code, text = pusher.fails(registry, host="registry.example")
        assert code == "EPB426"
        assert "the host name cannot be resolved" in text

    def test_missing_repository_is_reported(self, registry: Registry, pusher: Pusher) -> None:
        unknown: Answer = (404, {}, said("NAME_UNKNOWN", "The repository with name 'team/models' does not exist"))
        registry.troubles = [Trouble("POST", "/uploads/", unknown)]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "404 The repository with name 'team/models' does not exist" in text
        assert "whether team/models must be created there first" in text

    def test_server_that_is_not_a_registry_is_reported(self, start: Start[Server], pusher: Pusher) -> None:
        other = start(Server)
        other.answer = lambda request, data: (404, {}, b"<html>not here</html>")  # type: ignore[method-assign]
        code, text = pusher.fails(other)
        assert code == "EPB426"
        assert "404 Not Found" in text
        assert "is a registry" in text

    def test_server_without_http_is_reported(self, pusher: Pusher) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def babble() -> None:
                for _ in range(4):
                    line, _ = listener.accept()
                    with line:
                        line.recv(65536)
                        line.sendall(b"220 mail.example ESMTP\r\n")

            thread = threading.Thread(target=babble)
            thread.start()
            code, text = pusher.fails(Server(listener.getsockname()[1], "http"))
            thread.join()
        assert code == "EPB426"
        assert "another program may answer there" in text

    def test_refused_blob_is_reported_with_the_reason_of_the_registry(self, registry: Registry, pusher: Pusher) -> None:
        wrong: Answer = (400, {}, said("DIGEST_INVALID", "provided digest\n did not match\x1b[31m uploaded content." + "x" * 500))
        registry.troubles = [Trouble("PUT", "/uploads/", wrong)]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "400 provided digest did not match[31m uploaded content" in text
        assert len(text) < 500

    def test_registry_that_stores_another_manifest_is_reported(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("PUT", "/manifests/", (201, {"Docker-Content-Digest": digest(b"other")}, b""))]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "a manifest other than" in text

    @pytest.mark.parametrize(
        "answer", [(202, {}, b""), (200, {"Location": "/somewhere"}, b""), (302, {"Location": "/other"}, b"")]
    )
    def test_invalid_upload_response_is_reported(self, registry: Registry, pusher: Pusher, answer: Answer) -> None:
        registry.troubles = [Trouble("POST", "/uploads/", answer)]
        assert pusher.fails(registry)[0] == "EPB426"

    def test_redirect_loop_is_reported(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("HEAD", "/blobs/", (307, {"Location": f"/v2/team/models/blobs/{LARGE}"}, b""), times=99)]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "redirects in a loop" in text


class TestAborts:
    def test_cancelling_stops_a_push_in_the_middle_of_a_blob(self, registry: Registry, pusher: Pusher) -> None:
        cancelled = threading.Event()

        taken = []

        def stop(content: Artifact, write: Write) -> None:
            write(memoryview(BYTES[content.sha256])[:1])
            cancelled.set()
            taken.append(write(memoryview(BYTES[content.sha256])[1:]))

        with pytest.raises(Cancelled):
            pusher(registry, pour=stop, cancelled=cancelled)
        assert taken == []
        assert registry.manifests == {}

    def test_cancelling_stops_a_pause_between_retries(self, registry: Registry, pusher: Pusher) -> None:
        cancelled = threading.Event()
        registry.troubles = [Trouble("HEAD", "/blobs/", (503, {}, b""))]
        timer = threading.Timer(0.1, cancelled.set)
        timer.start()
        with pytest.raises(Cancelled):
            pusher(registry, cancelled=cancelled, pauses=(3600.0,))
        timer.join()

    def test_cancelling_stops_waiting_for_a_silent_registry(self, pusher: Pusher) -> None:
        cancelled = threading.Event()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            timer = threading.Timer(0.1, cancelled.set)
            timer.start()
            with pytest.raises(Cancelled):
                pusher(Server(silent.getsockname()[1], "http"), cancelled=cancelled)
            timer.join()

    @pytest.mark.parametrize("error", [RuntimeError("the store has it no longer"), OSError(5, "Input/output error")])
    def test_unreadable_blob_is_reported_as_a_store_error(self, registry: Registry, pusher: Pusher, error: Exception) -> None:
        def broken(content: Artifact, write: Write) -> None:
            write(memoryview(BYTES[content.sha256])[:1])
            raise error

        with pytest.raises(type(error)) as caught:
            pusher(registry, pour=broken)
        assert caught.value is error
        assert registry.manifests == {}

    def test_truncated_blob_is_not_stored_by_the_registry(self, registry: Registry, pusher: Pusher) -> None:
        with pytest.raises(ValueError, match="were sent"):
            pusher(registry, pour=lambda content, write: write(memoryview(BYTES[content.sha256])[1:]))
        assert LARGE not in registry.blobs
