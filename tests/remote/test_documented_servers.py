"""nginx as the documentation sets it up: all users can read, and only users with a password can write."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from epbuild.remote.cache import RemoteStores
from epbuild.remote.envelope import RemoteRecord
from epbuild.remote.keys import SigningKey
from epbuild.remote.opening import open_web_stores
from tests.support.quick_builds import wait_until
from tests.support.remote_caches import COMPILE, Maker, Place

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "remote-cache-servers.md"
NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
OURS = SigningKey.generate()
FILES = {"model.onnx": b"a model", "sub/weights.bin": b"weights " * 400_000}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(NGINX is None or os.name == "nt", reason="nginx is not installed")]


class NginxPlace(Place):
    def __init__(self, address: str, authorization: str | None) -> None:
        self._address = address
        self._authorization = authorization

    def stores(self, *, writes: bool = False) -> RemoteStores:
        return open_web_stores(self._address, self._authorization)

    def read(self, space: str, name: str) -> bytes | None:
        raise NotImplementedError

    def write(self, space: str, name: str, data: bytes | None) -> None:
        raise NotImplementedError

    def names(self, space: str) -> list[str]:
        raise NotImplementedError


def documented(folder: Path, port: int) -> str:
    """Return the server section of the page, without its certificate, with a folder and a port of this test."""
    [server] = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    server = re.sub(r" *ssl_certificate.*\n", "", server).replace("listen 8443 ssl", f"listen 127.0.0.1:{port}")
    assert "/srv/epbuild" in server
    return server.replace("/srv/epbuild", str(folder / "srv")).replace("/etc/nginx", str(folder))


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert NGINX is not None
    (tmp_path / "srv").mkdir()
    digest = base64.b64encode(hashlib.sha1(b"open sesame").digest()).decode()
    (tmp_path / "epbuild.htpasswd").write_text(f"ci:{{SHA}}{digest}\n", encoding="ascii")
    user = "user root;" if hasattr(os, "geteuid") and os.geteuid() == 0 else ""
    temporary = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    config = tmp_path / "nginx.conf"
    config.write_text(
        f"{user} worker_processes 1; pid {tmp_path}/pid; error_log {tmp_path}/errors.log; daemon off;\n"
        f"events {{}}\nhttp {{ access_log off; {temporary}\n{documented(tmp_path, port)}}}\n",
        encoding="utf-8",
    )
    with subprocess.Popen([NGINX, "-c", str(config), "-e", str(tmp_path / "errors.log")]) as process:
        try:
            wait_until(lambda: process.poll() is not None or _listens(port))
            assert process.poll() is None, (tmp_path / "errors.log").read_text(encoding="utf-8")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def test_documented_nginx_stores_authenticated_uploads(address: str, tmp_path: Path) -> None:
    maker, user, stranger = (Maker(tmp_path / name) for name in ("maker", "user", "stranger"))
    key, record = maker.record("one", FILES)
    password = f"Basic {base64.b64encode(b'ci:open sesame').decode()}"
    writer = maker.remote(NginxPlace(address, password), trust={OURS.public}, signer=OURS)
    assert writer.publish(COMPILE, key, record, maker.store) == "written"
    assert maker.warnings == []
    reader = user.remote(NginxPlace(address, None), trust={OURS.public})
    found = reader.look_up(COMPILE, key)
    assert isinstance(found, RemoteRecord)
    for blob in found.blobs:
        reader.fetch(blob, user.store)
    assert {name: user.store.read_bytes(blob.digest) for name, blob in found.files.items()} == FILES
    other, record = stranger.record("other", {"model.onnx": b"another"})
    anonymous = stranger.remote(NginxPlace(address, None), trust={OURS.public}, signer=OURS)
    assert anonymous.publish(COMPILE, other, record, stranger.store) is None
    assert [problem.code for problem in stranger.warnings] == ["EPB521"]
    assert isinstance(anonymous.look_up(COMPILE, key), RemoteRecord)  # reading goes on
    assert not isinstance(reader.look_up(COMPILE, other), RemoteRecord)
    assert (tmp_path / "srv" / "ac" / key).is_file()
