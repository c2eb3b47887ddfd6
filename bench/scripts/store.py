"""`python store.py STORE FILE...`: add files to a store one after the other, as a compile does; prints their digests."""

from __future__ import annotations

import sys
from pathlib import Path

from epbuild.cache.blobs import BlobStore

if __name__ == "__main__":
    store = BlobStore(Path(sys.argv[1]))
    for argument in sys.argv[2:]:
        print(store.put(Path(argument)).digest)
