"""An artifact of an output: its path, its role, and the identity of its content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from epbuild.core.digest import Write, digest_of
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
"""What a file is to its readers. `asset`: a file of the user's that is shipped as it is, such as a tokenizer."""


class FileEntry(NamedTuple):
    """File as documents list it: its POSIX path, its role, its size in bytes and a digest.

    In a document that is emitted, the digest is the SHA-256 of the file. In a key document it is the identity of the content, since most of
    the files are not written yet, and an unknown size is 0.
    """

    path: str
    role: Role
    size: int
    digest: str


class Artifact(Struct, frozen=True):
    """One file of an output: its POSIX path below the output's root, its size in bytes and its SHA-256."""

    path: str
    role: Role
    size: int
    sha256: str
    file: Path | None = None
    """Where the finished file is that was made for this output, or is the user's."""
    data: bytes | None = None
    """The bytes of a small file that is generated; with neither it is the blob of that digest in the store."""

    @classmethod
    def generated(cls, path: str, role: Role, data: bytes) -> Artifact:
        """A small file whose bytes are here."""
        return cls(path, role, len(data), digest_of(data), data=data)

    @property
    def entry(self) -> FileEntry:
        """Entry of the file in documents that are emitted."""
        return FileEntry(self.path, self.role, self.size, self.sha256)


Copy = Callable[[Artifact, Write], None]
"""Copies the bytes of an artifact, in order and piece by piece, to a `Write`, and checks them on the way.

Raises MissingBlob or DamagedBlob when the store has them no longer, and StoreError when they cannot be read.
"""


def changed(path: str, step: StepId | None, how: str = "") -> BuildError:
    """The error of a file that is no longer what it was when it was listed."""
    message = f"the file {path} changed while it was published{how}"
    return BuildError(Problem("EPB415", message, step, "Nothing was kept; run the build again."))


def wrong_size(artifact: Artifact, step: StepId | None) -> BuildError:
    """The error of a file that has another size than when it was listed."""
    return changed(artifact.path, step, f": it no longer has {artifact.size} bytes")


def own_manifest(document: Any) -> Any:
    """What epbuild writes in a manifest: that of a model package is ONNX Runtime's, and has it where ONNX Runtime does not look."""
    return document if "files" in document else document["additional_metadata"]["epbuild"]
