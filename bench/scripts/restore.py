"""`python restore.py STORE FOLDER THREADS DIGEST...`: parallel copy of blobs into a folder, as an emission does it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from epbuild.cache.blobs import BlobStore


def main(root: Path, folder: Path, threads: int, digests: list[str]) -> None:
    store = BlobStore(root)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda digest: store.materialize(digest, folder / digest), digests))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
