"""Pushes to a registry: an image arrives complete or with an error, and no blob is sent twice."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from epbuild.archive.artifact import Artifact
from epbuild.core.digest import Write
from epbuild.core.errors import Cancelled
from tests.support.registry_pushes import BYTES, FILES, LARGE, LARGE_UPLOAD, Pusher, Start, as_nobody, holds_all, pour
from tests.support.registry_server import Answer, Registry, Server, Trouble, digest, said, serving


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_nobody(monkeypatch, tmp_path)


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Yield a function that starts servers. They stop at the end of the test."""
    with ExitStack() as stack:
        yield lambda kind, *arguments: stack.enter_context(serving(kind, *arguments))


@pytest.fixture
def registry(start: Start[Registry]) -> Registry:
    return start(Registry)


@pytest.fixture
def pusher() -> Pusher:
    return Pusher()


class TestWhatArrives:
    def test_every_blob_and_then_the_manifest_by_digest_and_by_tag(self, registry: Registry, pusher: Pusher) -> None:
        pushed = pusher(registry)
        assert holds_all(registry, pusher)
        assert (pushed.digest, pushed.sent, pushed.there) == (pusher.image.digest, 3, 0)
        assert pushed.sent_bytes == sum(map(len, FILES.values())) + 2
        puts = [path.partition("?")[0] for path in registry.asked("PUT")]
        assert [path.split("/")[4] for path in puts] == ["blobs"] * 3 + ["manifests"] * 2
        assert puts[-2:] == [f"/v2/team/models/manifests/{name}" for name in (pusher.image.digest, "1.0")]

    def test_what_is_there_is_not_sent_again(self, registry: Registry, pusher: Pusher) -> None:
        pusher(registry)
        registry.requests.clear()
        pushed = pusher(registry)
        assert (pushed.sent, pushed.sent_bytes, pushed.there) == (0, 0, 3)
        assert {request.method for request in registry.requests} == {"HEAD"}
        assert pusher.told[-1] == (pushed.sent_bytes + sum(map(len, FILES.values())) + 2,) * 2

    def test_a_new_tag_of_an_image_that_is_there_is_all_that_is_sent(self, registry: Registry, pusher: Pusher) -> None:
        pusher(registry)
        registry.requests.clear()
        pusher(registry, tag="stable")
        assert registry.asked("PUT") == ["/v2/team/models/manifests/stable"]
        assert holds_all(registry, pusher, "stable")

    def test_a_tag_that_names_another_image_is_moved(self, registry: Registry, pusher: Pusher) -> None:
        registry.manifests["1.0"] = b"{}"
        pusher(registry)
        assert holds_all(registry, pusher)

    def test_progress_ends_with_all_of_it(self, registry: Registry, pusher: Pusher) -> None:
        pusher(registry)
        total = sum(map(len, FILES.values())) + 2
        assert pusher.told[0] == (0, total)
        assert pusher.told[-1] == (total, total)
        assert [done for done, _ in pusher.told] == sorted(done for done, _ in pusher.told)

    @pytest.mark.parametrize("location", ["{path}", "{root}{path}"])
    def test_an_upload_may_be_at_a_path_or_an_address(self, registry: Registry, pusher: Pusher, location: str) -> None:
        registry.location = lambda path: location.format(root=registry.root, path=path)
        pusher(registry)
        assert holds_all(registry, pusher)


class TestWhatMayPass:
    @pytest.mark.parametrize("status", [429, 500, 503])
    @pytest.mark.parametrize(
        ("method", "path"), [("HEAD", LARGE), ("POST", "/uploads/"), ("PUT", LARGE_UPLOAD), ("PUT", "/manifests/")]
    )
    def test_an_overloaded_registry_is_tried_again(
        self, registry: Registry, pusher: Pusher, method: str, path: str, status: int
    ) -> None:
        registry.troubles = [Trouble(method, path, (status, {}, b""), times=3)]
        pusher(registry)
        assert holds_all(registry, pusher)

    @pytest.mark.parametrize("reads", [None, 0, 200_000])
    @pytest.mark.parametrize(
        ("method", "path"), [("HEAD", LARGE), ("POST", "/uploads/"), ("PUT", LARGE_UPLOAD), ("PUT", "/manifests/")]
    )
    def test_a_line_that_is_cut_is_tried_again(
        self, registry: Registry, pusher: Pusher, method: str, path: str, reads: int | None
    ) -> None:
        registry.troubles = [Trouble(method, path, reads=reads, times=2)]
        pusher(registry)
        assert holds_all(registry, pusher)

    def test_a_cut_upload_begins_anew_and_progress_is_taken_back(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("PUT", LARGE_UPLOAD, reads=400_000, times=2)]
        pusher(registry)
        opened = registry.asked("POST")
        places = [path.partition("?")[0] for path in registry.asked("PUT") if "/uploads/" in path]
        assert len(opened) == len(set(places)) == 5
        done = [done for done, _ in pusher.told]
        assert done != sorted(done)
        assert max(done) == done[-1]

    def test_a_long_page_about_an_error_does_no_harm(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("POST", "/uploads/", (503, {}, bytes(3 << 20)), times=3)]
        pusher(registry)
        assert holds_all(registry, pusher)

    def test_a_line_that_is_cut_is_not_taken_for_a_broken_disk(self, registry: Registry, pusher: Pusher) -> None:
        def as_the_store_does(content: Artifact, write: Write) -> None:
            try:
                pour(content, write)
            except OSError as error:
                raise RuntimeError("the store cannot be read") from error

        registry.troubles = [Trouble("PUT", LARGE_UPLOAD, reads=1000, times=2)]
        pusher(registry, pour=as_the_store_does)
        assert holds_all(registry, pusher)

    def test_what_does_not_pass_is_told_after_a_few_tries(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("PUT", "/manifests/1.0", (503, {}, b""), times=99)]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "503 Service Unavailable" in text
        assert len([path for path in registry.asked("PUT") if path.endswith("/1.0")]) == 4
        assert "1.0" not in registry.manifests

    def test_a_line_that_is_always_cut_is_told(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("PUT", LARGE_UPLOAD, reads=1000, times=99)]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "the connection was closed unexpectedly" in text
        assert registry.manifests == {}

    def test_a_registry_says_how_long_to_wait(self, registry: Registry, pusher: Pusher) -> None:
        pauses: list[float | None] = []

        class Hurry(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                pauses.append(timeout)
                return self.is_set()

        troubles: list[Answer] = [(429, {"Retry-After": after}, b"") for after in ("7", "86400", "soon")]
        registry.troubles = [Trouble("POST", "/uploads/", answer) for answer in troubles]
        pusher(registry, cancelled=Hurry())
        assert pauses == [7.0, 30.0, 0.0]


class TestWhatIsTold:
    def test_nothing_listens(self, pusher: Pusher) -> None:
        with serving(Registry) as gone:
            pass
        code, text = pusher.fails(gone)
        assert code == "EPB426"
        assert text.startswith(
            f"the registry 127.0.0.1:{gone.port} cannot be pushed to: no server is listening there. Check the reference"
        )

    def test_no_such_host(self, registry: Registry, pusher: Pusher, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*_: object, **__: object) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        code, text = pusher.fails(registry, host="registry.example")
        assert code == "EPB426"
        assert "its host name cannot be resolved" in text

    def test_a_repository_that_has_to_be_made_first(self, registry: Registry, pusher: Pusher) -> None:
        unknown: Answer = (404, {}, said("NAME_UNKNOWN", "The repository with name 'team/models' does not exist"))
        registry.troubles = [Trouble("POST", "/uploads/", unknown)]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "404 The repository with name 'team/models' does not exist" in text
        assert "whether team/models must be created there first" in text

    def test_what_is_no_registry(self, start: Start[Server], pusher: Pusher) -> None:
        other = start(Server)
        other.answer = lambda request, data: (404, {}, b"<html>not here</html>")  # type: ignore[method-assign]
        code, text = pusher.fails(other)
        assert code == "EPB426"
        assert "404 Not Found" in text
        assert "is a registry" in text

    def test_what_speaks_no_http(self, pusher: Pusher) -> None:
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

    def test_why_a_blob_is_refused(self, registry: Registry, pusher: Pusher) -> None:
        wrong: Answer = (400, {}, said("DIGEST_INVALID", "provided digest\n did not match\x1b[31m uploaded content." + "x" * 500))
        registry.troubles = [Trouble("PUT", "/uploads/", wrong)]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "400 provided digest did not match[31m uploaded content" in text
        assert len(text) < 500

    def test_a_registry_that_keeps_something_else(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("PUT", "/manifests/", (201, {"Docker-Content-Digest": digest(b"other")}, b""))]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "a manifest other than" in text

    @pytest.mark.parametrize(
        "answer", [(202, {}, b""), (200, {"Location": "/somewhere"}, b""), (302, {"Location": "/other"}, b"")]
    )
    def test_an_upload_that_is_not_opened_as_the_specification_says(
        self, registry: Registry, pusher: Pusher, answer: Answer
    ) -> None:
        registry.troubles = [Trouble("POST", "/uploads/", answer)]
        assert pusher.fails(registry)[0] == "EPB426"

    def test_a_circle(self, registry: Registry, pusher: Pusher) -> None:
        registry.troubles = [Trouble("HEAD", "/blobs/", (307, {"Location": f"/v2/team/models/blobs/{LARGE}"}, b""), times=99)]
        code, text = pusher.fails(registry)
        assert code == "EPB426"
        assert "redirects in a loop" in text


class TestWhatEndsAPush:
    def test_a_cancellation_in_the_middle_of_a_blob(self, registry: Registry, pusher: Pusher) -> None:
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

    def test_a_cancellation_while_it_waits_to_try_again(self, registry: Registry, pusher: Pusher) -> None:
        cancelled = threading.Event()
        registry.troubles = [Trouble("HEAD", "/blobs/", (503, {}, b""))]
        timer = threading.Timer(0.1, cancelled.set)
        timer.start()
        with pytest.raises(Cancelled):
            pusher(registry, cancelled=cancelled, pauses=(3600.0,))
        timer.join()

    def test_a_cancellation_while_the_registry_keeps_silent(self, pusher: Pusher) -> None:
        cancelled = threading.Event()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            timer = threading.Timer(0.1, cancelled.set)
            timer.start()
            with pytest.raises(Cancelled):
                pusher(Server(silent.getsockname()[1], "http"), cancelled=cancelled)
            timer.join()

    @pytest.mark.parametrize("error", [RuntimeError("the store has it no longer"), OSError(5, "Input/output error")])
    def test_a_blob_that_cannot_be_read_is_the_stores_matter(self, registry: Registry, pusher: Pusher, error: Exception) -> None:
        def broken(content: Artifact, write: Write) -> None:
            write(memoryview(BYTES[content.sha256])[:1])
            raise error

        with pytest.raises(type(error)) as caught:
            pusher(registry, pour=broken)
        assert caught.value is error
        assert registry.manifests == {}

    def test_a_blob_that_comes_short_is_not_kept(self, registry: Registry, pusher: Pusher) -> None:
        with pytest.raises(ValueError, match="were sent"):
            pusher(registry, pour=lambda content, write: write(memoryview(BYTES[content.sha256])[1:]))
        assert LARGE not in registry.blobs
