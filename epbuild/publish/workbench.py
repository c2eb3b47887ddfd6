"""Files that are made for one output, in a folder beside its place."""

from __future__ import annotations

from pathlib import Path

from epbuild.archive.artifact import Artifact, Role
from epbuild.cache.blobs import BlobSource
from epbuild.core.canonical import JsonFile
from epbuild.core.digest import Blob, file_digest
from epbuild.engine.events import Progress, StepOutput
from epbuild.onnxfile.rewrite import relink
from epbuild.output.files import OutputFile, RelinkedModel, UserFile
from epbuild.output.merging import MergedModels, merge


class Workbench:
    """Makes the artifacts of files: `folder`, made for the first of them, holds them at the paths that they will have below the
    output's root. What is generated is in no file yet.

    Its methods raise MissingBlob or DamagedBlob when something of the store has to be made again. The events are of `step`: what was
    connected where models were merged, and what was left out.
    """

    def __init__(self, folder: Path, store: BlobSource, step: str, progress: Progress) -> None:
        self.folder = folder
        self._store = store
        self._step = step
        self._progress = progress
        self._fetched: dict[str, Artifact] = {}
        """What was copied out of the store already, by its path here."""

    def make(self, file: OutputFile) -> Artifact:
        """The artifact of a file. Raises BuildError where models cannot be merged."""
        path, role, source = file.path, file.role, file.source
        match source:
            case JsonFile():
                return Artifact.generated(path, role, source.data)
            case UserFile():
                return Artifact(path, role, source.file.stat().st_size, source.sha256, source.file)
            case Blob():
                return self._fetched.get(path) or Artifact(path, role, source.size, source.digest)
            case RelinkedModel():
                return self._fetched.get(path) or self._relinked(path, role, source)
            case MergedModels():
                return self._merged(path, role, source)
        raise TypeError(source)

    def _relinked(self, path: str, role: Role, source: RelinkedModel) -> Artifact:
        original = self.folder.with_name("original")  # not called as the file is, whose name may be as long as any
        self._store.materialize(source.stored.digest, original)
        relink(original, self._place(path), source.references)
        original.unlink()
        return self._made(path, role)

    def _merged(self, path: str, role: Role, source: MergedModels) -> Artifact:
        folder = source.part.folder
        for file in source.files:
            below = f"{folder}/{file.path}" if folder else file.path
            if isinstance(file.source, RelinkedModel):
                self._fetched[below] = self._relinked(below, file.role, file.source)
            elif isinstance(file.source, Blob):
                self._store.materialize(file.source.digest, self.folder / below)
                self._fetched[below] = Artifact(below, file.role, file.source.size, file.source.digest, self.folder / below)
        for sentence in merge(source.part, source.merging, self.folder / folder):
            self._progress.report(StepOutput(self._step, sentence))
        return self._made(path, role)

    def _made(self, path: str, role: Role) -> Artifact:
        file = self.folder / path
        return Artifact(path, role, file.stat().st_size, file_digest(file), file)

    def _place(self, path: str) -> Path:
        """Where a file is to be, in a folder that exists."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        return file
