"""Files of an output as values: their paths and their content references.

A content reference is known before the file exists. Its `identity` is a digest of everything that determines the bytes: the SHA-256 of a
blob or of a user's file, or otherwise a digest of the content's inputs and settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, field

from epbuild.archive.artifact import FileEntry, Role
from epbuild.core.canonical import JsonFile
from epbuild.core.digest import Blob
from epbuild.plan.key import compute_action_key
from epbuild.plan.steps import Merging, Part
from epbuild.recipe.model import Encryption

ENCRYPTION_FORMAT = 1
"""Version of the format of encrypted files, which `epbuild/runtime/encryption.py` describes."""


class UserFile(Struct, frozen=True):
    """User's file that is copied unchanged. Its SHA-256 is known."""

    file: Path
    sha256: str

    @property
    def identity(self) -> str:
        return self.sha256


class RelinkedModel(Struct, frozen=True):
    """Model in the store whose references to context binaries are rewritten."""

    stored: Blob
    references: Mapping[str, str]
    """New references, by old reference."""

    @property
    def identity(self) -> str:
        return compute_action_key({"blob": self.stored.digest, "references": dict(self.references)})


class MergedModel(Struct, frozen=True):
    """Model that a part's compiled models are merged into."""

    part: Part
    merging: Merging
    settings: Mapping[str, Any]
    """Everything that merging depends on except the models, as plain data."""
    drafts: Mapping[str, str]
    """Path of each member's model in `files`, by member."""
    files: tuple[OutputFile, ...]
    """The members' models and the files that they refer to. The paths are below the part's folder."""

    @property
    def identity(self) -> str:
        identities = {file.path: file.content.identity for file in self.files}
        members = {member: identities[path] for member, path in self.drafts.items()}
        return compute_action_key({"merge": self.settings, "members": members})


PlainRef = Blob | UserFile | RelinkedModel | MergedModel | JsonFile
"""Reference to the content of a file: a blob of the store, a user's file, a model that is rewritten or merged, or generated JSON."""


class EncryptedFile(Struct, frozen=True):
    """Content that is encrypted when it is written. `encryption` has the name of the key, but not the key."""

    plain: PlainRef
    encryption: Encryption

    @property
    def identity(self) -> str:
        # The name of the key stands for the key, so that planning needs no key.
        return compute_action_key({"encrypt": self.plain.identity, "format": ENCRYPTION_FORMAT, "key": self.encryption.key_id})


ContentRef = PlainRef | EncryptedFile


class OutputFile(Struct, frozen=True):
    """File of an output: its POSIX path below the output's root (or its part's folder), its role and its content."""

    path: str
    role: Role
    content: ContentRef

    @property
    def plain(self) -> PlainRef:
        """Content before it is encrypted."""
        return self.content.plain if isinstance(self.content, EncryptedFile) else self.content

    @property
    def entry(self) -> FileEntry:
        """Entry of the file in key documents. The size is 0 unless the content is a blob."""
        return FileEntry(self.path, self.role, self.content.size if isinstance(self.content, Blob) else 0, self.content.identity)


class MergedHeader(Struct, frozen=True):
    """Values that are known only after a merged model is written: its EPContext nodes, and the compatibility string of each EP."""

    nodes: tuple[dict[str, Any], ...] = ()
    compatibility: Mapping[str, str] = field(default_factory=dict)


class Document(Protocol):
    """Generated file that lists other files of the output, such as a manifest."""

    def render(self, files: Sequence[FileEntry], merged: Mapping[str, MergedHeader]) -> JsonFile:
        """Return the document about `files`; `merged` has the headers of merged models, by path.

        To compute a key, the document is rendered from planned entries without headers. Raises BuildError if the files do not fit together.
        """


class OutputDocument(Struct, frozen=True):
    """Document of an output, with its POSIX path below the output's root and its role."""

    path: str
    role: Role
    document: Document
