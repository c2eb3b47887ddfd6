"""Benchmark of emissions from the store into a folder and into an archive. Every byte is verified on the way."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from files import CAN_FORGET, GIB, forget, write_weights
from peers import Peers
from results import Result, Series
from rounds import Contender, interleave
from workshop import SCRIPTS, Unable, Workshop

SPEED = 0.85
"""Minimum speed, as a share of the program that copies without verification."""

LIMIT_MB = 200.0

_FILES = 4
_TOTAL = 2 * GIB
_LEVEL = 3

_HOW = (
    "epbuild verifies all bytes that it reads, and computes the SHA-256 of an archive. The benchmark measures only the "
    "emission from the store, without the rest of the build. The peak memory includes the modules of a command."
)


def measure_directory(workshop: Workshop, rounds: int) -> Result:
    cp = _program(workshop, "cp")
    bench = _Bench(workshop)
    series: list[Series] = []
    for from_disk in (False, True) if CAN_FORGET else (False,):
        where = "the disk" if from_disk else "memory"
        own, other = interleave(
            [
                Contender(f"epbuild, from {where}", bench.timed(bench.emission("directory"), from_disk=from_disk)),
                Contender(f"cp, from {where}", bench.timed([cp, *bench.blobs, bench.folder], from_disk=from_disk)),
            ],
            rounds,
        )
        series += [replace(own, limit=other.median / SPEED), other]
    return Result(
        f"How long does it take to emit {_FILES} artifacts of {_TOTAL // _FILES // (1 << 20)} MiB each into a folder?",
        (*series, *bench.memory("directory", rounds)),
        f"The limits are cp's time / {SPEED}, and {LIMIT_MB:.0f} MB. {_HOW}",
    )


def measure_archive(workshop: Workshop, rounds: int) -> Result:
    tar, zstd = _program(workshop, "tar"), _program(workshop, "zstd")
    bench = _Bench(workshop)
    # As `tar --zstd` does. Newer versions of zstd would use several threads.
    packing: list[str | Path] = [tar, "--use-compress-program", f"{zstd} -q -{_LEVEL} -T1", "-cf", bench.archive, *bench.blobs]
    own, other = interleave(
        [
            Contender("epbuild, tar.zst", bench.timed(bench.emission("tar.zst"))),
            Contender(f"tar --zstd, level {_LEVEL}, one thread", bench.timed(packing)),
        ],
        rounds,
    )
    (stored,) = interleave([Contender("epbuild, zip", bench.timed(bench.emission("zip")))], rounds)
    return Result(
        f"How long does it take to emit {_FILES} artifacts of {_TOTAL // _FILES // (1 << 20)} MiB each into an archive?",
        (replace(own, limit=other.median / SPEED), other, stored, *bench.memory("tar.zst", rounds), *bench.memory("zip", rounds)),
        f"The limits are tar's time / {SPEED}, and {LIMIT_MB:.0f} MB. A zip archive contains uncompressed files. All files are "
        f"in the page cache. The weights are random half-precision numbers, and half of their rows are zero. {_HOW}",
    )


class _Bench:
    """Store with artifacts, and places to emit them to."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._digests = workshop.stored(
            [write_weights(workshop.folder / f"{number}.bin", _TOTAL // _FILES, number) for number in range(_FILES)]
        )
        self.blobs = [workshop.cache / "cas" / "sha256" / digest[:2] / digest for digest in self._digests]
        self.folder = workshop.folder / "emitted"
        self.archive = self.folder / "emitted.archive"

    def emission(self, form: str, peak_file: str = "-") -> list[str | Path]:
        place = self.folder if form == "directory" else self.archive
        return [sys.executable, SCRIPTS / "emit.py", self._workshop.cache, form, place, peak_file, *self._digests]

    def timed(self, command: list[str | Path], *, from_disk: bool = False) -> Callable[[], float]:
        """Return a function that empties the folder and measures a command that fills it, in seconds."""

        def once() -> float:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            if hasattr(os, "sync"):
                os.sync()  # do not wait for the previous sample's writes
            if from_disk:
                forget(self.blobs)
            return self._workshop.seconds(command)

        return once

    def memory(self, form: str, rounds: int) -> list[Series]:
        """Measure the peak memory of an emission, in the same places."""
        if sys.platform == "win32":  # Windows has no getrusage
            return []
        answer = self._workshop.folder / "peak"
        emit = self.timed(self.emission(form, str(answer)))

        def sample() -> float:
            emit()
            return int(answer.read_text(encoding="utf-8")) / 1e6

        return [
            replace(one, limit=LIMIT_MB) for one in interleave([Contender(f"epbuild, {form}, peak memory", sample)], rounds, "MB")
        ]


def _program(workshop: Workshop, name: str) -> str:
    peers = Peers(workshop, name)
    found = peers.program(name)
    if found is None:
        raise Unable(peers.notes())
    return found
