"""`python emit.py STORE FORM PLACE PEAK DIGEST...`: emission of blobs as a build does it.

FORM is `directory` or the form of an archive. The script imports all modules of an epbuild command, and writes its peak memory
in bytes to the file PEAK. With `-` it does neither.
"""

from __future__ import annotations

import sys
from pathlib import Path

from epbuild.archive.artifact import Artifact
from epbuild.archive.formats import write_archive
from epbuild.cache.blobs import BlobStore
from epbuild.core.digest import Write
from epbuild.publish.emit import copy_all


def main(root: Path, form: str, place: Path, digests: list[str]) -> None:
    store = BlobStore(root)
    blobs = [blob for digest in digests if (blob := store.find(digest)) is not None]
    contents = [Artifact(f"{number}.bin", "context-binary", blob.size, blob.digest) for number, blob in enumerate(blobs)]
    if form == "directory":
        copy_all(contents, lambda content: store.materialize(content.sha256, place / content.path))
        return

    def pour(content: Artifact, write: Write) -> None:
        store.copy(content.sha256, write)

    with place.open("xb") as file:
        write_archive("zip" if form == "zip" else "tar.zst", contents, pour, file)


if __name__ == "__main__":
    store, form, place, peak_file, *digests = sys.argv[1:]
    if peak_file == "-":
        main(Path(store), form, Path(place), digests)
    else:
        from peak_memory import peak  # imports the commands

        main(Path(store), form, Path(place), digests)
        Path(peak_file).write_text(str(peak()), encoding="utf-8")
