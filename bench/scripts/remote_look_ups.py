"""`python remote_look_ups.py ADDRESS PUBLIC_KEY FILE`: look-up of the keys in the lines of a file. Prints the number of hits.

The records have a kind of their own, with the content of a compile's record. The benchmark creates them with `records` and
`KIND`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from epbuild.core.digest import Blob, hash_document
from epbuild.remote.cache import RemoteCache
from epbuild.remote.envelope import RecordKind, RemoteRecord
from epbuild.remote.opening import open_folder_stores, open_web_stores


def _files(record: Mapping[str, Any]) -> Mapping[str, Blob]:
    return {name: Blob(blob["digest"], blob["size"]) for name, blob in record["result"]["artifacts"].items()}


KIND = RecordKind("bench", lambda record: hash_document(record["document"]), lambda record: "document" in record, _files)


def records(count: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield keys and records of about 2.5 kB each."""
    options = {f"option_{number}": "a value of an option of forty characters" for number in range(30)}
    for number in range(count):
        document = {"members": [f"model_{number}"], "options": options}
        files = {f"model_{part}.onnx": {"digest": f"{number:032x}{part:032x}", "size": 100} for part in range(3)}
        yield hash_document(document), {"document": document, "result": {"artifacts": files}}


def remote(address: str, trust: set[str]) -> RemoteCache:
    """Return the remote cache at a URL or in a directory."""
    stores = open_web_stores(address) if "://" in address else open_folder_stores(Path(address))
    return RemoteCache(stores, address, trust=trust, warn=lambda problem: sys.exit(str(problem)))


if __name__ == "__main__":
    keys = Path(sys.argv[3]).read_text(encoding="ascii").split()
    found = remote(sys.argv[1], {sys.argv[2]}).look_up_all(KIND, keys)
    print(sum(isinstance(answer, RemoteRecord) for answer in found.values()))
