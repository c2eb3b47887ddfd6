"""Builder of an output's artifacts: its files, with sizes and digests."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field

from epbuild.archive.artifact import Artifact, Role
from epbuild.cache.blobs import BlobSource
from epbuild.core.canonical import JsonFile
from epbuild.core.digest import Blob, Count, Hasher, hash_file, hash_into
from epbuild.core.safepath import open_regular
from epbuild.engine.events import Progress, StepOutput
from epbuild.onnxfile.edit.rewrite import relink
from epbuild.output.files import EncryptedFile, MergedHeader, MergedModel, OutputFile, RelinkedModel, UserFile
from epbuild.output.merging import merge, read_merged
from epbuild.output.tree import OutputTree
from epbuild.publish.keys import Keys
from epbuild.recipe.model import Encryption
from epbuild.runtime.encryption import Encryptor, make_header


class ArtifactBuilder(Struct):
    """Builder of the artifacts of one output.

    Models that are relinked or merged are written below `folder`, at their paths relative to the output's root. The folder is created on
    demand. Blobs are left in the store, users' files in their original location, and generated files in memory. `count` receives the size
    of each piece of a blob that was read.
    """

    tree: OutputTree
    folder: Path
    store: BlobSource
    progress: Progress
    keys: Keys
    count: Count
    _merged: dict[str, MergedHeader] = field(default_factory=dict)
    _staged: dict[str, Artifact] = field(default_factory=dict)
    """Artifacts that were written below the folder, by relative path."""

    def build(self) -> list[Artifact]:
        """Build and return the artifacts, except the provenance statement.

        Raises BuildError if models cannot be merged, and MissingBlob or DamagedBlob if the store has lost a result.
        """
        for file in self.tree.files:
            if isinstance(file.plain, MergedModel):
                self._merge(file, file.plain)
        artifacts = [
            self._encrypt(self._build(file), file.content.encryption)
            if isinstance(file.content, EncryptedFile)
            else self._build(file)
            for file in self.tree.files
        ]
        for item in self.tree.documents:
            document = item.document.render([artifact.entry for artifact in artifacts], self._merged)
            artifacts.append(Artifact.generated(item.path, item.role, document.data))
        return artifacts

    def _build(self, file: OutputFile) -> Artifact:
        path, role, content = file.path, file.role, file.plain
        if path in self._staged:
            return self._staged[path]
        match content:
            case JsonFile():
                return Artifact.generated(path, role, content.data)
            case UserFile():
                return Artifact(path, role, content.file.stat().st_size, content.sha256, content.file)
            case Blob():
                return Artifact(path, role, content.size, content.digest)
            case RelinkedModel():
                return self._relink(path, role, content)
        raise TypeError(content)

    def _encrypt(self, plain: Artifact, encryption: Encryption) -> Artifact:
        """Write the encrypted form of an artifact, chunk by chunk, in place of a plain file below the folder."""
        key = self.keys.read(encryption, self.tree.emission.id)
        header = make_header(key, plain.path, plain.size, plain.sha256)
        place, draft = self.folder / plain.path, self.folder.with_name("encrypted")
        place.parent.mkdir(parents=True, exist_ok=True)
        hasher = Hasher()
        with draft.open("wb") as file:

            def write(data: bytes) -> None:
                file.write(data)
                hasher.update(data)

            encryptor = Encryptor(header, key, write)
            if plain.file is None:
                self.store.copy(plain.sha256, encryptor.add, self.count)
            else:
                with open_regular(plain.file) as source:
                    hash_into(source, Hasher(digest=False), encryptor.add)
            encryptor.finish()
        draft.replace(place)
        made = hasher.blob
        return Artifact(plain.path, plain.role, made.size, made.digest, place, plain=Blob(plain.sha256, plain.size))

    def _relink(self, path: str, role: Role, content: RelinkedModel) -> Artifact:
        original = self.folder.with_name("original")  # a fixed name, as a suffix could make the file's own name too long
        self.store.materialize(content.stored.digest, original, self.count)
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        relink(original, place, content.references)
        original.unlink()
        return self._stage(path, role)

    def _merge(self, file: OutputFile, content: MergedModel) -> None:
        """Write a merged model and, beside it, the files that the model refers to."""
        prefix = f"{content.part.folder}/" if content.part.folder else ""
        for member in content.files:
            path = f"{prefix}{member.path}"
            if isinstance(member.content, RelinkedModel):
                self._relink(path, member.role, member.content)
            elif isinstance(member.content, Blob):
                self.store.materialize(member.content.digest, self.folder / path, self.count)
                self._staged[path] = Artifact(path, member.role, member.content.size, member.content.digest, self.folder / path)
        for sentence in merge(content, self.folder / content.part.folder):
            self.progress.report(StepOutput(self.tree.emission.steps[0], sentence))
        self._merged[file.path] = read_merged(self.folder / self._stage(file.path, file.role).path)

    def _stage(self, path: str, role: Role) -> Artifact:
        """Register a file that was written below the folder, and return its artifact."""
        file = self.folder / path
        self._staged[path] = Artifact(path, role, file.stat().st_size, hash_file(file), file)
        return self._staged[path]
