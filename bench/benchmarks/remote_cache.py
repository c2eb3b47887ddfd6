"""Benchmark of look-ups in a remote cache, and of the download of a large result."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from files import GIB, write_noise
from peers import Peers
from results import Result, Series
from rounds import Contender, interleave
from workshop import SCRIPTS, Unable, Workshop

from epbuild.core.digest import hash_file
from epbuild.remote.envelope import seal
from epbuild.remote.keys import SigningKey

SECONDS = 8.0
"""Limit for 10,000 look-ups of 20 ms each, in seconds."""
SHARE = 0.8
"""Minimum speed of a download, as a share of the speed of curl and sha256sum."""
MEGABYTES = 200.0

_KEYS = 10_000
_LATENCY = 0.02


def measure(workshop: Workshop, rounds: int) -> Result:
    peers = Peers(workshop, "curl", "sha256sum", "nginx")
    nginx, curl, sha256sum = (peers.program(name) for name in ("nginx", "curl", "sha256sum"))
    if nginx is None or curl is None or sha256sum is None:
        raise Unable(peers.notes())
    root = workshop.folder / "remote"
    with _served(nginx, root) as port, _delayed(port) as slow:
        places = {
            "a directory": str(root),
            "nginx": f"http://127.0.0.1:{port}",
            "nginx, 20 ms a request": f"http://127.0.0.1:{slow}",
        }
        series = _look_ups(workshop, root, places, rounds)
        series += _blob(workshop, root, places, [curl, sha256sum], rounds)
    return Result(
        f"How long do {_KEYS:,} look-ups in a remote cache and a download of 1 GiB take?",
        tuple(series),
        "Half of the keys exist, as signed records of 2.5 kB. The limit for the blob is the time of curl and sha256sum, "
        f"divided by {SHARE}. epbuild also writes the blob to the store on disk. An asyncio proxy adds the 20 ms.",
    )


def _look_ups(workshop: Workshop, root: Path, places: dict[str, str], rounds: int) -> list[Series]:
    sys.path.insert(0, str(SCRIPTS))
    from remote_look_ups import KIND, records

    signer, keys, listed = SigningKey.generate(), [], workshop.folder / "keys.txt"
    for number, (key, record) in enumerate(records(_KEYS)):
        keys.append(key)
        if number % 2:
            (root / "ac" / key).write_bytes(seal(KIND, key, record, signer))
    listed.write_text("\n".join(keys), encoding="ascii")

    def sample(address: str) -> Callable[[], float]:
        command: list[str | Path] = [sys.executable, SCRIPTS / "remote_look_ups.py", address, signer.public, listed]
        return lambda: workshop.seconds(command, said=lambda text: text == str(_KEYS // 2))

    found = interleave([Contender(f"{_KEYS:,} look-ups, {place}", sample(address)) for place, address in places.items()], rounds)
    return [*found[:-1], replace(found[-1], limit=SECONDS)]


def _blob(workshop: Workshop, root: Path, places: dict[str, str], tools: list[str], rounds: int) -> list[Series]:
    noise = write_noise(workshop.folder / "noise.bin", GIB)
    digest = hash_file(noise)
    noise.rename(root / "cas" / digest)
    store, copy = workshop.folder / "fetched", workshop.folder / "copy.bin"
    megabytes: list[float] = []

    def fetch(address: str) -> Callable[[], float]:
        def noted(text: str) -> bool:
            megabytes.append(float(text))
            return True

        def once() -> float:
            shutil.rmtree(store, ignore_errors=True)
            return workshop.seconds([sys.executable, SCRIPTS / "remote_fetch.py", address, store, digest, str(GIB)], said=noted)

        return once

    def by_hand() -> float:
        copy.unlink(missing_ok=True)
        curl, sha256sum = tools
        return workshop.seconds([curl, "-s", "-o", copy, f"{places['nginx']}/cas/{digest}"]) + workshop.seconds([sha256sum, copy])

    directory, web, hand = interleave(
        [
            Contender("1 GiB, a directory", fetch(places["a directory"])),
            Contender("1 GiB, nginx", fetch(places["nginx"])),
            Contender("1 GiB, curl and sha256sum", by_hand),
        ],
        rounds,
    )
    limit = hand.median / SHARE
    memory = Series("1 GiB, peak memory", "MB", tuple(megabytes), MEGABYTES)
    return [replace(directory, limit=limit), replace(web, limit=limit), hand, memory]


@contextmanager
def _served(nginx: str, root: Path) -> Iterator[int]:
    port, own = _free_port(), root.parent / "nginx"
    for folder in (own, root / "ac", root / "cas"):
        folder.mkdir(parents=True)
    temporary = " ".join(f"{kind}_temp_path {own}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (own / "nginx.conf").write_text(
        f"worker_processes 1; pid {own}/pid; error_log {own}/errors.log; daemon off; events {{ worker_connections 1024; }}\n"
        f"http {{ access_log off; sendfile on; keepalive_requests 1000000; {temporary}\n"
        f"server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n",
        encoding="utf-8",
    )
    root.parent.chmod(0o755)  # nginx reads as another user if root starts it
    with _process([nginx, "-c", str(own / "nginx.conf"), "-e", str(own / "errors.log")], port):
        yield port


@contextmanager
def _delayed(target: int) -> Iterator[int]:
    port = _free_port()
    with _process([sys.executable, str(SCRIPTS / "delay.py"), str(port), str(target), str(_LATENCY)], port):
        yield port


@contextmanager
def _process(command: list[str], port: int) -> Iterator[None]:
    """Run a server, and enter the block once it listens."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(100):
                with socket.socket() as line:
                    if line.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            else:
                raise Unable(f"{command[0]} did not start to listen")
            yield
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        port: int = line.getsockname()[1]
        return port
