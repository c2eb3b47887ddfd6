"""Pushes of one image to a server of the tests, with the reported events."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from epbuild.archive.artifact import Artifact
from epbuild.archive.oci import Image, build_image
from epbuild.core.digest import Count, Write
from epbuild.core.errors import EnvironmentFailure, StepId
from epbuild.publish.registry.client import Pushed, push
from epbuild.recipe.image_reference import parse_image_reference
from epbuild.transfer.retry import RetryPolicy
from tests.support.registry_server import Registry, Server, digest

STEP = StepId("emit:decoder/npu/oci")
PASSWORD = "open sesame"
FILES = {"decode_ctx.onnx": b"model", "npu/llm.bin": bytes(range(256)) * 4096}
LARGE = digest(FILES["npu/llm.bin"])
LARGE_UPLOAD = f"digest=sha256%3A{LARGE.removeprefix('sha256:')}"

_S = TypeVar("_S", bound=Server)
Start = Callable[[type[_S]], _S]


def contents() -> list[Artifact]:
    return [
        Artifact(path, "model" if path.endswith("onnx") else "context-binary", len(data), hashlib.sha256(data).hexdigest())
        for path, data in FILES.items()
    ]


BYTES = {hashlib.sha256(data).hexdigest(): data for data in FILES.values()}


def pour(content: Artifact, write: Write) -> None:
    data = memoryview(BYTES[content.sha256])
    for start in range(0, len(data), 300_000):
        write(data[start : start + 300_000])


class Pusher:
    """Pusher of one image to a server that keeps the reported events."""

    def __init__(self) -> None:
        self.image: Image = build_image(contents(), {})
        self.told: list[tuple[int, int]] = []

    def __call__(self, server: Server, *, host: str = "", tag: str = "1.0", **options: Any) -> Pushed:
        self.told.clear()
        reference = parse_image_reference(f"{host or '127.0.0.1'}:{server.port}/team/models:{tag}")
        give, retry = options.pop("pour", pour), RetryPolicy(options.pop("pauses", (0.0, 0.0, 0.0)))
        return push(self.image, reference, give, self.counting, step=STEP, retry=retry, **options)

    @contextmanager
    def counting(self, total: int) -> Iterator[Count]:
        self.told.append((0, total))
        yield lambda size: self.told.append((self.told[-1][0] + size, total))

    def fails(self, server: Server, **options: Any) -> tuple[str, str]:
        """Push to `server`, which has to fail, and return the code and the text of the failure."""
        with pytest.raises(EnvironmentFailure) as caught:
            self(server, **options)
        (problem,) = caught.value.problems
        assert problem.where == STEP
        assert caught.value.exit_code == 3
        assert "\n" not in problem.text
        assert PASSWORD not in repr(caught.value) + str(problem)
        return problem.code, problem.text


def holds_all(registry: Registry, pusher: Pusher, tag: str = "1.0") -> bool:
    """Return whether the registry has the complete image, under its digest and its tag."""
    manifest = pusher.image.manifest.data
    named = [registry.manifests.get(name) for name in (pusher.image.digest, tag)]
    return set(registry.blobs) >= {digest(data) for data in (*FILES.values(), b"{}")} and named == [manifest, manifest]


def as_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replace the user's configuration by one without credentials and proxies."""
    for name in ("EPBUILD_REGISTRY_USER", "EPBUILD_REGISTRY_PASSWORD", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
