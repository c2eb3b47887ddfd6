"""Benchmark of hashing large models that are new to epbuild."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from files import GIB, write_noise
from peers import Peers
from results import Result, Series
from rounds import Contender, interleave
from workshop import SCRIPTS, Workshop

TIMES_FASTER = {1: 3, 4: 6}
"""Minimum speed, as a multiple of sha256sum's, by the number of files. Several files use all cores."""

_TOTAL = 4 * GIB


def measure(workshop: Workshop, rounds: int) -> Result:
    peers = Peers(workshop, "sha256sum", "dvc")
    series: list[Series] = []
    for count, factor in TIMES_FASTER.items():
        folder = workshop.folder / f"{count}-files"
        folder.mkdir()
        files = [write_noise(folder / f"{number}.bin", _TOTAL // count) for number in range(count)]
        hashed, *others = interleave(_contenders(workshop, peers, folder, files), rounds)
        medians = {other.what.partition(",")[0]: other.median for other in others}
        limit = medians["sha256sum"] / factor if "sha256sum" in medians else None
        series += [replace(hashed, limit=limit), *others]
        for path in files:
            path.unlink()
    return Result(
        "How long does it take to hash 4 GiB?",
        tuple(series),
        "The limits are a third of sha256sum's time for one file, and a sixth for four files. All files are in the page "
        f"cache. epbuild and sha256sum compute SHA-256, and `dvc add --no-commit` computes MD5. {peers.notes()}",
    )


def _contenders(workshop: Workshop, peers: Peers, folder: Path, files: Sequence[Path]) -> list[Contender]:
    what = f"{len(files)} x {_TOTAL // len(files) // GIB} GiB"
    own: list[str | Path] = [sys.executable, SCRIPTS / "hash_files.py", *files]
    found = [Contender(f"epbuild, {what}", partial(workshop.seconds, own))]
    sha256sum, dvc = peers.program("sha256sum"), peers.program("dvc")
    if sha256sum:
        found.append(Contender(f"sha256sum, {what}", partial(workshop.seconds, [sha256sum, *files])))
    if dvc:
        found.append(Contender(f"dvc, {what}", _with_dvc(workshop, dvc, folder, files)))
    return found


def _with_dvc(workshop: Workshop, program: str, folder: Path, files: Sequence[Path]) -> Callable[[], float]:
    workshop.seconds([program, "init", "--no-scm"], folder)

    def sample() -> float:
        for path in files:
            os.utime(path)  # otherwise epbuild remembers the digests
        return workshop.seconds([program, "add", "--no-commit", *files], folder)

    return sample
