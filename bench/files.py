"""Large files with incompressible contents, and control of the system's page cache."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

GIB = 1 << 30
_PIECE_BYTES = 1 << 26
_ROW_BYTES = 1 << 13

CAN_FORGET = hasattr(os, "posix_fadvise")
"""True if this system can drop a file from its page cache."""


def write_noise(path: Path, size: int) -> Path:
    """Write a file of `size` bytes, a multiple of 64 MiB. No two files have equal contents."""
    piece = bytearray(os.urandom(_PIECE_BYTES))
    with path.open("wb") as file:
        for number in range(size // _PIECE_BYTES):
            piece[:8] = number.to_bytes(8, "little")
            file.write(piece)
    return path


def write_weights(path: Path, size: int, seed: int) -> Path:
    """Write a file of `size` bytes, a multiple of 64 MiB, with float16 weights that compress to about half.

    The weights are random, and every other row is zero on average. The content repeats after 64 MiB, beyond the window of a
    fast compressor.
    """
    import numpy

    numbers = numpy.random.default_rng(seed)
    rows, columns = _PIECE_BYTES // _ROW_BYTES, _ROW_BYTES // 2
    weights = (numbers.standard_normal((rows, columns), dtype=numpy.float32) * 0.02).astype("<f2")
    weights[numbers.random(rows) < 0.5] = 0
    piece = weights.tobytes()
    with path.open("wb") as file:
        for _ in range(size // _PIECE_BYTES):
            file.write(piece)
    return path


def forget(files: Iterable[Path]) -> None:
    """Drop these files from the page cache. Requires `CAN_FORGET`."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
