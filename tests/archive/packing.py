"""Archives and image layouts as epbuild emits them, with the files that a test chooses."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import zstandard

from epbuild.archive.artifact import Artifact
from epbuild.archive.formats import ArchiveName, write_archive
from epbuild.archive.oci import build_image
from epbuild.archive.zstd import Compressed, compress, is_compressed
from epbuild.core.digest import Write

FILES: Mapping[str, bytes] = {
    "m_ctx.onnx": b"\x08\x0a" * 700,
    "npu/m_qnn.bin": bytes(range(256)) * 40,
    "empty": b"",
    "modèles/größe.bin": b"nine",
}


def with_manifest(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files and a manifest that lists their sizes."""
    listed = [{"path": path, "size": len(data)} for path, data in files.items()]
    return {"manifest.json": json.dumps({"format": 1, "files": listed}).encode(), **files}


def contents_of(files: Mapping[str, bytes]) -> list[Artifact]:
    return [
        Artifact(path, "manifest" if path == "manifest.json" else "asset", len(data), hashlib.sha256(data).hexdigest())
        for path, data in files.items()
    ]


def archived(form: ArchiveName, files: Mapping[str, bytes], level: int | None = None) -> bytes:
    def pour(content: Artifact, write: Write) -> None:
        write(memoryview(files[content.path]))

    file = io.BytesIO()
    write_archive(form, contents_of(files), pour, file, level=level)
    return file.getvalue()


def write_image_layout(files: Mapping[str, bytes], folder: Path, *, compressed: bool = False) -> Path:
    """Write an image layout of the files, plain or compressed by zstd."""
    contents = contents_of(files)
    with tempfile.TemporaryDirectory() as temporary:

        def pour(content: Artifact, write: Write) -> None:
            write(memoryview(files[content.path]))

        layers = [
            compress(item, pour, 3, Path(temporary)) if compressed and is_compressed(item.role) else item for item in contents
        ]
        packed = [
            item.packed.file.read_bytes() for item in layers if isinstance(item, Compressed) and item.packed.file is not None
        ]
    made = build_image(layers, {})
    by_digest = {hashlib.sha256(data).hexdigest(): data for data in (*files.values(), *packed)}
    blobs = {blob.path: by_digest[blob.sha256] for blob in made.blobs}
    for path, data in {**blobs, **{document.path: document.data for document in made.documents}}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def compressed(tar: bytes) -> bytes:
    """Compress a tar archive with zstd, with a checksum as the program `zstd` adds it."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(tar)


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
