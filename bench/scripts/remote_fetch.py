"""`python remote_fetch.py ADDRESS STORE DIGEST SIZE`: download of a blob from a remote cache. Prints the peak memory in MB."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from remote_look_ups import remote

from epbuild.cache.blobs import BlobStore
from epbuild.core.digest import Blob

if __name__ == "__main__":
    remote(sys.argv[1], set()).fetch(Blob(sys.argv[3], int(sys.argv[4])), BlobStore(Path(sys.argv[2])))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
