"""`Artifact`: one file of an output, with its path, role and digest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from epbuild.core.digest import Write, hash_bytes
from epbuild.core.errors import BuildError, Problem, StepId

Role = Literal[
    "model",
    "context-binary",
    "external-data",
    "base-model",
    "base-data",
    "genai-config",
    "asset",
    "manifest",
    "provenance",
    "bom",
]
"""Purpose of a file. `asset`: a file of the user's that is shipped unchanged, such as a tokenizer."""


class FileEntry(NamedTuple):
    """File as documents list it: its POSIX path, its role, its size in bytes and a digest.

    In an emitted document, the digest is the SHA-256 of the file. In a key document it identifies the content, since most files are not
    written yet, and an unknown size is 0.
    """

    path: str
    role: Role
    size: int
    digest: str


class Artifact(Struct, frozen=True):
    """File of an output: its POSIX path below the output's root, its size in bytes and its SHA-256.

    The content is in `file` or in `data`; with neither, it is the blob of that digest in the store.
    """

    path: str
    role: Role
    size: int
    sha256: str
    file: Path | None = None
    """The finished file, made for this output or the user's own."""
    data: bytes | None = None
    """The bytes of a small generated file."""

    @classmethod
    def generated(cls, path: str, role: Role, data: bytes) -> Artifact:
        """Create a small file from its bytes."""
        return cls(path, role, len(data), hash_bytes(data), data=data)

    @property
    def entry(self) -> FileEntry:
        """Entry of the file in documents that are emitted."""
        return FileEntry(self.path, self.role, self.size, self.sha256)


Copy = Callable[[Artifact, Write], None]
"""Function that writes the bytes of an artifact to a `Write`, in order and in pieces, and checks them on the way.

It raises MissingBlob or DamagedBlob if the store no longer has them, and StoreError if they cannot be read.
"""


def make_changed_error(path: str, step: StepId | None, how: str = "") -> BuildError:
    """Return the error of a file that has changed since it was listed."""
    message = f"the file {path} changed while it was emitted{how}"
    return BuildError(Problem("EPB415", message, step, "Nothing was kept; run the build again."))


def make_size_error(artifact: Artifact, step: StepId | None) -> BuildError:
    """Return the error of a file whose size has changed since it was listed."""
    return make_changed_error(artifact.path, step, f": it no longer has {artifact.size} bytes")


def extract_own_manifest(document: Any) -> Any:
    """Return epbuild's part of a manifest. In a model package, that part is metadata in ONNX Runtime's format."""
    return document if "files" in document else document["additional_metadata"]["epbuild"]
