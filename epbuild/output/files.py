"""Files of an output as values: where each goes, and the identity of its content.

The identity is known before the file exists: a blob is its digest, a blob in which references are rewritten is that digest and the
references, merged models are their own identities and the settings, and what is generated is a digest of just that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from epbuild.archive.artifact import Artifact, Role
from epbuild.core.digest import Blob
from epbuild.plan.key import action_key


class FileSource(Protocol):
    """Where the content of a file comes from: a `Blob` is in the store, a `JsonFile` is generated, and the others are below."""

    @property
    def identity(self) -> str:
        """What the content is, as 64 hexadecimal digits: equal identities are equal bytes."""


class OutputFile(Struct, frozen=True):
    """A file of an output: its POSIX path below the output's root (or its part's folder), its role, and where its content comes from."""

    path: str
    role: Role
    source: FileSource


Resolve = Callable[[OutputFile], Artifact]
"""Makes the artifact of a file, or only names it.

The one that makes them raises MissingBlob or DamagedBlob when something of the store has to be made again, and BuildError where models
cannot be merged.
"""


def named(file: OutputFile) -> Artifact:
    """The artifact that a file will be: its `sha256` is the identity, its size 0 while it is not known; nothing is read or written."""
    return Artifact(file.path, file.role, file.source.size if isinstance(file.source, Blob) else 0, file.source.identity)


class RelinkedModel(Struct, frozen=True):
    """A model in the store whose references to binaries are rewritten."""

    stored: Blob
    references: Mapping[str, str]
    """The new references, by the old ones."""

    @property
    def identity(self) -> str:
        return action_key({"blob": self.stored.digest, "references": dict(self.references)})


class UserFile(Struct, frozen=True):
    """A file of the user's as it is, whose SHA-256 was found before."""

    file: Path
    sha256: str

    @property
    def identity(self) -> str:
        return self.sha256
