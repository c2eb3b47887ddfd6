"""Builder of an output's artifacts: its files, with sizes and digests."""

from __future__ import annotations

from pathlib import Path

from epbuild.archive.artifact import Artifact, Role
from epbuild.cache.blobs import BlobSource
from epbuild.core.canonical import JsonFile
from epbuild.core.digest import Blob, hash_file
from epbuild.engine.events import Progress, StepOutput
from epbuild.onnxfile.edit.rewrite import relink
from epbuild.output.files import MergedHeader, MergedModel, OutputFile, RelinkedModel, UserFile
from epbuild.output.merging import merge, read_merged
from epbuild.output.tree import OutputTree


class ArtifactBuilder:
    """Builder of the artifacts of one output.

    Models that are relinked or merged are written below `folder`, at their paths relative to the output's root. The folder is created on
    demand. Blobs are left in the store, users' files in their original location, and generated files in memory.
    """

    def __init__(self, tree: OutputTree, folder: Path, store: BlobSource, progress: Progress) -> None:
        self._tree = tree
        self._folder = folder
        self._store = store
        self._progress = progress
        self._merged: dict[str, MergedHeader] = {}
        self._staged: dict[str, Artifact] = {}
        """Artifacts that were written below the folder, by relative path."""

    def build(self) -> list[Artifact]:
        """Build and return the artifacts, except the provenance statement.

        Raises BuildError if models cannot be merged, and MissingBlob or DamagedBlob if the store has lost a result.
        """
        for file in self._tree.files:
            if isinstance(file.content, MergedModel):
                self._merge(file, file.content)
        artifacts = [self._build(file) for file in self._tree.files]
        for item in self._tree.documents:
            document = item.document.render([artifact.entry for artifact in artifacts], self._merged)
            artifacts.append(Artifact.generated(item.path, item.role, document.data))
        return artifacts

    def _build(self, file: OutputFile) -> Artifact:
        path, role, content = file.path, file.role, file.content
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

    def _relink(self, path: str, role: Role, content: RelinkedModel) -> Artifact:
        original = self._folder.with_name("original")  # a fixed name, as a suffix could make the file's own name too long
        self._store.materialize(content.stored.digest, original)
        place = self._folder / path
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
                self._store.materialize(member.content.digest, self._folder / path)
                self._staged[path] = Artifact(path, member.role, member.content.size, member.content.digest, self._folder / path)
        for sentence in merge(content, self._folder / content.part.folder):
            self._progress.report(StepOutput(self._tree.emission.steps[0], sentence))
        self._merged[file.path] = read_merged(self._folder / self._stage(file.path, file.role).path)

    def _stage(self, path: str, role: Role) -> Artifact:
        """Register a file that was written below the folder, and return its artifact."""
        file = self._folder / path
        self._staged[path] = Artifact(path, role, file.stat().st_size, hash_file(file), file)
        return self._staged[path]
