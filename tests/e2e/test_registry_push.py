"""Pushes into Debian's docker-registry on this machine: complete images that other clients can fetch."""

from __future__ import annotations

import hashlib
import http.client
import importlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from epbuild.archive.artifact import Artifact, Role
from epbuild.archive.oci import Image, build_image
from epbuild.core.digest import Write, ignore_count
from epbuild.core.errors import Cancelled, EnvironmentFailure, StepId
from epbuild.publish.registry.client import Pushed, push
from epbuild.recipe.image_reference import parse_image_reference
from epbuild.remote.keys import SigningKey
from tests.support.projects import Project, copy_of_quickstart, emitted

pytestmark = pytest.mark.skipif(
    not (Path("/etc/debian_version").exists() and shutil.which("apt-get") and shutil.which("dpkg")),
    reason="the registry is Debian's docker-registry, which apt-get fetches and dpkg unpacks: only Debian and its kin have both",
)

PACKAGE = "docker-registry"
MIB = 1024 * 1024
PASSWORD = "open sesame"
# The registry reads only bcrypt, which no tool here can create.
HTPASSWD = "ci:$2b$05$UWvB7AmFXCC1YM1r2AxnNu.JZh7Z9FIVvL2Xs2tfrkKd7nng8Ashq\n"

FILES: Mapping[str, tuple[Role, bytes]] = {
    "manifest.json": ("manifest", b'{"format": 1}\n'),
    "decode_ctx.onnx": ("model", b"decode"),
    "prefill_ctx.onnx": ("model", b"prefill"),
    "npu/llm_qnn.bin": ("context-binary", bytes(range(256)) * 8192),
    "config.json": ("asset", b"{}"),
    "empty": ("asset", b""),
}
BYTES = {hashlib.sha256(data).hexdigest(): data for _, data in FILES.values()}


@dataclass
class DebianRegistry:
    """A running registry and its log of requests."""

    port: int
    log: Path

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def get(self, path: str, accept: str = "*/*") -> tuple[int, str, int]:
        """Return the status, digest and size of a response, without the use of epbuild."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path, headers={"Accept": accept})
            response = connection.getresponse()
            found, size = hashlib.sha256(), 0
            while data := response.read(MIB):
                found.update(data)
                size += len(data)
            return response.status, found.hexdigest(), size
        finally:
            connection.close()

    def manifest(self, repository: str, name: str) -> tuple[int, str, int]:
        """Return the status, digest and size of a manifest. The registry requires this Accept header."""
        return self.get(f"/v2/{repository}/manifests/{name}", "application/vnd.oci.image.manifest.v1+json")

    def asked(self, method: str) -> int:
        """Return the number of answered requests with a method."""
        return self.log.read_text(encoding="utf-8").count(f'"{method} /v2/')


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """Fetch and unpack Debian's package in a temporary folder, without installing it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not _fetched(folder, []):
            # A machine without package lists does not know the package, so download separate lists.
            (folder / "lists/partial").mkdir(parents=True)
            options = ["-o", f"Dir::State::Lists={folder / 'lists'}", "-o", f"Dir::Cache={folder}"]
            subprocess.run(["apt-get", *options, "update"], cwd=folder, capture_output=True, check=True, timeout=240)
            assert _fetched(folder, options)
        (package,) = folder.glob(f"{PACKAGE}_*.deb")
        subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True, timeout=60)
        yield folder / "root/usr/bin/docker-registry"


def _fetched(folder: Path, options: list[str]) -> bool:
    done = subprocess.run(["apt-get", *options, "download", PACKAGE], cwd=folder, capture_output=True, check=False, timeout=240)
    return done.returncode == 0


@contextmanager
def running(program: Path, htpasswd: str | None = None) -> Iterator[DebianRegistry]:
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        folder = Path(name)
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        free.close()
        config: dict[str, Any] = {
            "version": 0.1,
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
            "http": {"addr": f"127.0.0.1:{port}"},
        }
        if htpasswd is not None:
            (folder / "users").write_text(htpasswd, encoding="utf-8")
            config["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "users")}}
        (folder / "config.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        registry = DebianRegistry(port, folder / "log")
        with registry.log.open("wb") as log:
            process = subprocess.Popen(
                [str(program), "serve", str(folder / "config.yml")], stdout=log, stderr=subprocess.STDOUT, cwd=folder
            )
        try:
            _wait_for(registry, process)
            yield registry
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(registry: DebianRegistry, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            registry.get("/v2/")
            return
        time.sleep(0.05)
    raise AssertionError(registry.log.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def registry(program: Path) -> Iterator[DebianRegistry]:
    """Run a registry without authentication. Each test uses a repository of its own."""
    with running(program) as found:
        yield found


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EPBUILD_REGISTRY_USER", raising=False)
    monkeypatch.delenv("EPBUILD_REGISTRY_PASSWORD", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


def made() -> Image:
    return build_image(
        [Artifact(path, role, len(data), hashlib.sha256(data).hexdigest()) for path, (role, data) in FILES.items()],
        {"org.opencontainers.image.title": "tiny-llm"},
    )


def pour(content: Artifact, write: Write) -> None:
    write(memoryview(BYTES[content.sha256]))


def pushed(registry: DebianRegistry, repository: str, what: Image | None = None, **options: Any) -> Pushed:
    give = options.pop("pour", pour)
    reference = parse_image_reference(f"{registry.host}/{repository}:1.0")
    return push(what or made(), reference, give, lambda total: nullcontext(ignore_count), step=StepId("emit:x"), **options)


def pulled(registry: DebianRegistry, repository: str, name: str, folder: Path) -> dict[str, bytes]:
    """Pull an image with an ORAS client, and return its files by name."""
    client = importlib.import_module("oras.client").OrasClient(hostname=registry.host, insecure=True)
    client.pull(target=f"{registry.host}/{repository}:{name}", outdir=str(folder))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_pushed_blob_is_read_back_unchanged(registry: DebianRegistry) -> None:
    what = made()
    done = pushed(registry, "back/models", what)
    assert (done.digest, done.there) == (what.digest, 0)
    for digest, size in [*((blob.sha256, blob.size) for blob in what.blobs), (what.config.sha256, what.config.size)]:
        assert registry.get(f"/v2/back/models/blobs/sha256:{digest}") == (200, digest, size)
    for name in (what.digest, "1.0"):
        assert registry.manifest("back/models", name) == (200, what.manifest.sha256, what.manifest.size)


def test_a_second_push_uploads_nothing(registry: DebianRegistry) -> None:
    pushed(registry, "again/models")
    before = [registry.asked(method) for method in ("POST", "PUT", "PATCH")]
    done = pushed(registry, "again/models")
    assert (done.sent, done.sent_bytes, done.there) == (0, 0, len(BYTES))
    assert [registry.asked(method) for method in ("POST", "PUT", "PATCH")] == before
    assert before[0] >= len(BYTES)


def test_another_client_finds_the_files_under_their_names(registry: DebianRegistry, tmp_path: Path) -> None:
    pushed(registry, "oras/models")
    assert pulled(registry, "oras/models", "1.0", tmp_path) == {path: data for path, (_, data) in FILES.items()}


def test_pushing_a_large_blob_needs_little_memory(registry: DebianRegistry) -> None:
    size = 256 * MIB
    piece = memoryview(bytes(MIB))
    found = hashlib.sha256()
    for _ in range(size // MIB):
        found.update(piece)
    what = build_image([Artifact("large.bin", "context-binary", size, found.hexdigest())], {})

    def give(content: Artifact, write: Write) -> None:
        for _ in range(content.size // MIB):
            write(piece)

    tracemalloc.start()
    try:
        pushed(registry, "large/models", what, pour=give)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert registry.get(f"/v2/large/models/blobs/sha256:{found.hexdigest()}") == (200, found.hexdigest(), size)
    assert peak < 4 * MIB


def test_a_stopped_push_creates_no_tag_and_can_be_repeated(registry: DebianRegistry) -> None:
    cancelled = threading.Event()

    def stop(content: Artifact, write: Write) -> None:
        data = memoryview(BYTES[content.sha256])
        write(data[: len(data) // 2])
        if content.size > MIB:
            cancelled.set()
        write(data[len(data) // 2 :])

    with pytest.raises(Cancelled):
        pushed(registry, "stopped/models", pour=stop, cancelled=cancelled)
    assert registry.manifest("stopped/models", "1.0")[0] == 404
    done = pushed(registry, "stopped/models")
    assert registry.manifest("stopped/models", "1.0")[0] == 200
    assert done.there < done.there + done.sent == len(BYTES)


def test_a_blob_with_a_wrong_digest_is_refused(registry: DebianRegistry) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        pushed(registry, "wrong/models", pour=lambda content, write: write(memoryview(bytes(content.size))))
    assert caught.value.problems[0].code == "EPB426"
    assert "400 provided digest did not match uploaded content" in caught.value.problems[0].text
    assert registry.manifest("wrong/models", "1.0")[0] == 404


def test_a_registry_with_users_refuses_wrong_credentials(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(program, HTPASSWD) as registry:
        for password in (None, "wrong", PASSWORD):
            if password is not None:
                monkeypatch.setenv("EPBUILD_REGISTRY", registry.host)
                monkeypatch.setenv("EPBUILD_REGISTRY_USER", "ci")
                monkeypatch.setenv("EPBUILD_REGISTRY_PASSWORD", password)
            if password == PASSWORD:
                assert pushed(registry, "mine/models").sent == len(BYTES)
                continue
            with pytest.raises(EnvironmentFailure) as caught:
                pushed(registry, "mine/models")
            assert caught.value.problems[0].code == "EPB427"


def test_a_build_pushes_what_it_emits(registry: DebianRegistry, quickstart: Project, tmp_path: Path) -> None:
    step = "emit:classifier/snapdragon-SM8750/*"
    quickstart.build("epbuild.yaml", step)
    plain = quickstart.files("dist/quickstart/classifier/snapdragon-SM8750")
    path = "    path: dist/${recipe.name}/${group}/${target}\n"
    packed = path.replace("${group}", "image/${group}")
    push_there = f"    archive: oci\n    registry: {registry.host}/built/${{group}}:${{target}}\n"
    quickstart.edit(path, f"{packed}{push_there}")
    assert len(emitted(quickstart.build("epbuild.yaml", step))) == 1
    found = pulled(registry, "built/classifier", "snapdragon-SM8750", tmp_path / "pulled")
    assert found == plain
    assert set(quickstart.files("dist/quickstart/image/classifier/snapdragon-SM8750")) >= {"index.json", "oci-layout"}


def test_results_of_another_machine_are_pushed_without_emitting(
    registry: DebianRegistry, quickstart: Project, tmp_path: Path
) -> None:
    step, ours = "emit:classifier/snapdragon-SM8750/*", SigningKey.generate()
    quickstart.environment["EPBUILD_SIGNING_KEY"] = ours.text
    quickstart.edit("epbuild: 1\n", f"epbuild: 1\ncache: {{remote: '{tmp_path / 'remote'}', trust: ['{ours.public}']}}\n")
    quickstart.build("epbuild.yaml", step)
    assert quickstart.epbuild("cache", "push", "epbuild.yaml", step).returncode == 0
    plain = quickstart.files("dist/quickstart/classifier/snapdragon-SM8750")
    other = copy_of_quickstart(tmp_path / "other" / "quickstart", tmp_path / "other" / "cache")
    other.recipe.write_bytes(quickstart.recipe.read_bytes())
    path = "    path: dist/${recipe.name}/${group}/${target}\n"
    other.edit(path, f"{path}    archive: oci\n    registry: {registry.host}/direct/${{group}}:${{target}}\n")
    events = other.build("epbuild.yaml", step, "--push-only", "--no-compile")
    assert len(emitted(events)) == 1
    assert pulled(registry, "direct/classifier", "snapdragon-SM8750", tmp_path / "pulled") == plain
    assert other.files() == {}
    largest = max(len(data) for data in plain.values())
    assert all(blob.stat().st_size < largest for blob in (other.cache / "cas" / "sha256").rglob("*") if blob.is_file())


def test_a_push_without_permission_is_a_one_line_error(program: Path, quickstart: Project) -> None:
    with running(program, HTPASSWD) as registry:
        path = "    path: dist/${recipe.name}/${group}/${target}\n"
        quickstart.edit(path, f"{path}    archive: oci\n    registry: {registry.host}/built/${{group}}:${{target}}\n")
        quickstart.environment["DOCKER_CONFIG"] = os.devnull
        done = quickstart.epbuild("run", "epbuild.yaml", "emit:classifier/snapdragon-SM8750/*")
    assert done.returncode == 3, done.stdout + done.stderr
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if "EPB427" in line]
    assert "requires a user and a password" in line
