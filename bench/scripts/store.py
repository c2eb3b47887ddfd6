"""`python store.py STORE FILE...`: sequential addition of files to a store, as a compile does it. Prints their digests."""

from __future__ import annotations

import sys
from pathlib import Path

from epbuild.cache.blobs import BlobStore

if __name__ == "__main__":
    store = BlobStore(Path(sys.argv[1]))
    for argument in sys.argv[2:]:
        print(store.put(Path(argument)).digest)
