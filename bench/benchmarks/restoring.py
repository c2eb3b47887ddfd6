"""Benchmark of copying artifacts from the store into place. Every byte is verified on the way."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from files import CAN_FORGET, GIB, forget, write_noise
from peers import Peers
from results import Result, Series
from rounds import Contender, interleave
from workshop import SCRIPTS, Unable, Workshop

FACTOR = 1.15
_FILES = 4
_TOTAL = 2 * GIB


def measure(workshop: Workshop, rounds: int) -> Result:
    peers = Peers(workshop, "cp")
    cp = peers.program("cp")
    if cp is None:
        raise Unable(peers.notes())
    digests = workshop.stored([write_noise(workshop.folder / f"{number}.bin", _TOTAL // _FILES) for number in range(_FILES)])
    blobs = [workshop.cache / "cas" / "sha256" / digest[:2] / digest for digest in digests]
    folder = workshop.folder / "restored"
    restore: list[str | Path] = [
        sys.executable,
        SCRIPTS / "restore.py",
        workshop.cache,
        folder,
        str(os.cpu_count() or 1),
        *digests,
    ]

    def sample(command: list[str | Path], *, from_disk: bool) -> Callable[[], float]:
        def once() -> float:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            if hasattr(os, "sync"):
                os.sync()  # do not wait for the previous sample's writes
            if from_disk:
                forget(blobs)
            return workshop.seconds(command)

        return once

    series: list[Series] = []
    for from_disk in (False, True) if CAN_FORGET else (False,):
        where = "the disk" if from_disk else "memory"
        own, other = interleave(
            [
                Contender(f"epbuild, from {where}", sample(restore, from_disk=from_disk)),
                Contender(f"cp, from {where}", sample([cp, *blobs, folder], from_disk=from_disk)),
            ],
            rounds,
        )
        series += [replace(own, limit=FACTOR * other.median), other]
    return Result(
        f"How long does it take to restore {_FILES} artifacts of {_TOTAL // _FILES // (1 << 20)} MiB each?",
        tuple(series),
        f"The limits are {FACTOR} x cp. epbuild verifies the copied bytes against checksums that were computed when the files "
        "were stored. Files that were stored some time ago are read from the disk.",
    )
