"""`Artifact`: one file of an output, with its path, role and digest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from epbuild.core.digest import Blob, Write, hash_bytes
from epbuild.core.errors import BuildError, Problem, StepId

Role = Literal[
    "model",
    "context-binary",
    "external-data",
    "base-model",
    "base-data",
    "genai-config",
    "adapter",
    "asset",
    "manifest",
    "provenance",
    "bom",
]
"""Purpose of a file. `asset`: a user's file that is shipped unchanged, such as a tokenizer."""


class FileEntry(NamedTuple):
    """Entry of a file in a document: its POSIX path, its role, its size in bytes and a digest.

    In an emitted document, the digest is the SHA-256 of the file. In a key document, most files do not exist yet. There, the digest
    identifies the content in another way, and an unknown size is 0.
    """

    path: str
    role: Role
    size: int
    digest: str
    plain: Blob | None = None
    """Content of an encrypted file before its encryption. None in key documents, and for all other files."""
    shared: str | None = None
    """Path of the file in a shared asset of a model package, relative to the manifest. None if the file is at `path`."""


class Artifact(Struct, frozen=True):
    """File of an output: its POSIX path below the output's root, its size in bytes and its SHA-256.

    The content is in `file` or in `data`. If neither is set, the content is the blob with the digest `sha256` in the store.
    """

    path: str
    role: Role
    size: int
    sha256: str
    file: Path | None = None
    """Path of the finished file: generated for this output, or the user's own file."""
    data: bytes | None = None
    """The bytes of a small generated file."""
    plain: Blob | None = None
    """Content of an encrypted file before its encryption."""

    @classmethod
    def generated(cls, path: str, role: Role, data: bytes) -> Artifact:
        """Create a small file from its bytes."""
        return cls(path, role, len(data), hash_bytes(data), data=data)

    @property
    def entry(self) -> FileEntry:
        """Entry of the file in documents that are emitted."""
        return FileEntry(self.path, self.role, self.size, self.sha256, self.plain)


Copy = Callable[[Artifact, Write], None]
"""Function that writes the bytes of an artifact to a `Write`, in order and in pieces, and verifies them.

It raises MissingBlob or DamagedBlob if the store has lost the content, and StoreError if the content cannot be read.
"""


def make_changed_error(path: str, step: StepId | None, how: str = "") -> BuildError:
    """Return the error for a file that has changed since it was listed. `how` describes the change, and is appended to the message."""
    message = f"the file {path} changed while it was being emitted{how}"
    return BuildError(Problem("EPB415", message, step, "No output was kept. Run the build again."))


def make_size_error(artifact: Artifact, step: StepId | None) -> BuildError:
    """Return the error for a file whose size has changed since it was listed."""
    return make_changed_error(artifact.path, step, f": its size is no longer {artifact.size} bytes")


def extract_own_manifest(document: Any) -> Any:
    """Return epbuild's part of a manifest. In a model package, the part is metadata in ONNX Runtime's manifest."""
    return document if "files" in document else document["additional_metadata"]["epbuild"]
