"""Writer of outputs: folders (swapped in atomically), archives and images."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from epbuild.archive.artifact import Artifact, make_changed_error
from epbuild.cache.blobs import BlobSource
from epbuild.core.atomic import rename, sync_directory, sync_file, write_file, write_new
from epbuild.core.canonical import JsonFile
from epbuild.core.clone import copy_open_file
from epbuild.core.digest import Blob, Count, Hasher, Write, hash_bytes, hash_into, ignore_count
from epbuild.core.directory import prepare, scratch_path, swap_in
from epbuild.core.entries import HiddenFolders, choose_free_name, is_special
from epbuild.core.errors import BuildError, Problem, StepId, StoreError
from epbuild.core.safepath import open_raw
from epbuild.core.shown import describe_files
from epbuild.engine.events import Progress, StepOutput, count_step_bytes
from epbuild.output.existing import OwnedFiles
from epbuild.output.files import RelinkedModel
from epbuild.output.provenance import is_statement_about
from epbuild.output.tree import OutputTree, build_image_annotations, get_image_tag, render_statement
from epbuild.plan.outputs import PROVENANCE
from epbuild.plan.steps import Emission
from epbuild.publish.artifacts import ArtifactBuilder
from epbuild.publish.keys import Keys
from epbuild.recipe.image_reference import ImageReference

if TYPE_CHECKING:
    from epbuild.archive.formats import ArchiveName
    from epbuild.archive.oci import Image
    from epbuild.archive.zstd import Compressed

_LARGE_BYTES = 8 << 20
"""Minimum size of files that are copied in parallel. For smaller files, a thread costs more than it saves."""
_THREADS = min(4, os.cpu_count() or 1)

Files = dict[str, dict[str, object]]
"""The digest and the size of each emitted file, by its path below the output's root."""


def emit_output(
    tree: OutputTree,
    store: BlobSource,
    written: OwnedFiles,
    progress: Progress,
    cancelled: threading.Event,
    keys: Keys,
    hidden: HiddenFolders | None = None,
) -> Files:
    """Write an output to its path, and push it if the recipe names a registry. Return the output's files.

    `written` has the files that epbuild wrote to this path before, and records which of them are kept. `hidden` is passed to
    `recover_swaps`. The reported events describe how models were merged, and what the output lacks.

    Raises BuildError if a user's file is in the way or the output is impossible, and EnvironmentFailure if the path cannot be written.
    Also raises MissingBlob or DamagedBlob if the store has lost a result, and errors of `push` and `keys`.
    """
    with prepare(tree.emission.path, written, tree.emission.id, hidden) as draft:
        return materialize(tree, draft, store, written, progress, cancelled, keys)


def materialize(
    tree: OutputTree,
    draft: Path,
    store: BlobSource,
    written: OwnedFiles,
    progress: Progress,
    cancelled: threading.Event,
    keys: Keys,
) -> Files:
    """Write an output and return its files.

    `draft` is an empty folder beside the output's path. If the output is only pushed, `draft` is an unused path.
    """
    emission = tree.emission
    for sentence in tree.omissions:
        progress.report(StepOutput(emission.steps[0], sentence))
    with scratch_path(draft) as work, _counting(tree, progress) as count:
        artifacts = ArtifactBuilder(tree, work / "made", store, progress, keys, count).build()
        writer = OutputWriter(emission, draft, work, store, written, progress, cancelled, count)
        match emission.archive_format:
            case "zip" | "tar.zst" as form:
                return writer.write_archive(form, artifacts, tree)
            case "oci":
                return writer.write_image(_add_statement(tree, artifacts))
            case None:
                return writer.write_folder(_add_statement(tree, artifacts))


def _counting(tree: OutputTree, progress: Progress) -> AbstractContextManager[Count]:
    """Return a context that reports the progress of reading the output's blobs. It yields a callback for the size of each piece.

    The client of the registry reports the progress of a push itself.
    """
    if tree.emission.push_only:
        return nullcontext(ignore_count)
    contents = {file.path: file.plain for file in tree.files}
    blobs = {path: content.stored if isinstance(content, RelinkedModel) else content for path, content in contents.items()}
    sizes = {path: blob.size for path, blob in blobs.items() if isinstance(blob, Blob)}
    return count_step_bytes(progress, tree.emission.id, f"writing {describe_files(sizes)}", sum(sizes.values()))


class OutputWriter(Struct, frozen=True):
    """Writer of artifacts to the path of an emission. Files are first written to `draft`, an empty folder beside the path.

    Artifacts below `work` are moved, and all others are copied. `written` has the files that epbuild wrote to the path before, and records
    which of them are kept. The `write_...` methods return the files that they wrote. They raise BuildError if a user's file is in the way,
    and MissingBlob or DamagedBlob if the store has lost a result.
    """

    emission: Emission
    draft: Path
    work: Path
    store: BlobSource
    written: OwnedFiles
    progress: Progress
    cancelled: threading.Event
    count: Count
    """Callback for the size of each piece of a blob that has been read."""

    def write_folder(self, artifacts: Sequence[Artifact]) -> Files:
        """Write the artifacts to a new folder, which then replaces the output's folder.

        An existing file that already has the right content is linked, not copied, so programs that watch the file see no change.
        """
        tree, place, files = self.draft, self.emission.path, _summarize_files(artifacts)
        is_there = os.path.lexists(place)  # otherwise, there are no files to keep

        def copy(artifact: Artifact) -> None:
            if not (is_there and self._keep(artifact, tree / artifact.path, place / artifact.path)):
                self._copy_to(artifact, f"{tree}{os.sep}{artifact.path}")

        copy_all(artifacts, copy)
        self.written.announce(files, self.written.find_accepted(place, place))
        kept = (place / item.path for item in artifacts if _is_same(place / item.path, tree / item.path)) if is_there else ()
        with self.written.digests.relinking(kept):
            self.written.kept.update(swap_in(tree, place, self.written, self.emission.id))
        return files

    def write_archive(self, form: ArchiveName, artifacts: Sequence[Artifact], tree: OutputTree) -> Files:
        """Pack the artifacts into a new archive, and rename the archive and its provenance statement to their final names."""
        from epbuild.archive.formats import write_archive

        emission, draft = self.emission, self.draft
        path, packed = emission.path, draft / emission.path.name
        self._refuse_foreign(path, owned=path.name in self.written.list_written(path))
        with packed.open("xb") as file:
            made = write_archive(form, artifacts, self.copy, file, level=emission.compression_level, step=StepId(emission.id))
        files: Files = {path.name: {"digest": made.digest, "size": made.size}}
        if emission.statement is not None:
            beside = emission.statement
            owned = beside.name in self.written.recorded or is_statement_about(beside, path.name)
            self._refuse_foreign(beside, owned=owned)
            data = _render_statement(tree, [Artifact(path.name, "asset", made.size, made.digest), *artifacts]).data
            (draft / beside.name).write_bytes(data)
            files[beside.name] = {"digest": hash_bytes(data), "size": len(data)}
        unrecorded = files.keys() - self.written.recorded.keys()
        self.written.announce(files, {name: path.with_name(name) for name in unrecorded})
        as_written = self.written.list_unchanged_in_archive(path)
        with _restored_on_failure(emission.statement):
            for name in reversed(files):  # the archive comes last, so that its statement exists before it does
                target = path.with_name(name)
                if self.written.digest(target, name) != files[name]["digest"]:
                    if name in self.written.recorded and name not in as_written and os.path.lexists(target):
                        self.written.kept[name] = _save(target).name
                    sync_file(draft / name)
                    rename(draft / name, target)
        sync_directory(path.parent)
        self._remove_sidecars(path, files, as_written)
        return files

    def write_image(self, artifacts: Sequence[Artifact]) -> Files:
        """Write an OCI image of the artifacts, and push it if the emission names a registry. Raises errors of `push`."""
        from epbuild.archive.oci import build_image

        emission = self.emission
        made = build_image(self._compress_layers(artifacts), build_image_annotations(emission), tag=get_image_tag(emission))
        generated = [Artifact.generated(document.path, "asset", document.data) for document in made.documents]
        files = [*made.blobs, *generated]
        if emission.push_only and emission.registry is not None:
            self._push(made, emission.registry)  # reads each blob from its current location
            return _summarize_files(files)
        self.write_folder(files)
        if emission.registry is not None:
            emitted_blobs = (replace(blob, file=emission.path / blob.path) for blob in made.blobs)
            self._push(replace(made, blobs=tuple(emitted_blobs)), emission.registry)
        return _summarize_files(files)

    def _push(self, image: Image, reference: ImageReference) -> None:
        from epbuild.publish.registry.client import push

        step = self.emission.id
        counting = partial(count_step_bytes, self.progress, step, f"pushing to {reference.host}")
        pushed = push(image, reference, self.copy, counting, step=StepId(step), cancelled=self.cancelled)
        text = f"pushed {reference} ({pushed.digest}): {pushed.sent} blobs sent, {pushed.there} already present"
        self.progress.report(StepOutput(step, text))

    def copy(self, artifact: Artifact, write: Write) -> None:
        """Pass the bytes of an artifact to `write`, piece by piece, and verify their digest."""
        if artifact.data is not None:
            write(memoryview(artifact.data))
            return
        if artifact.file is None:
            self.store.copy(artifact.sha256, write, self.count)
            return
        hasher = Hasher()
        with open_raw(artifact.file) as file:
            hash_into(file, hasher, write)
        self._check(artifact, hasher.digest)

    def _compress_layers(self, artifacts: Sequence[Artifact]) -> list[Artifact | Compressed]:
        """Return the layers of an image, compressed if the emission has a compression level."""
        level = self.emission.compression_level
        if level is None:
            return list(artifacts)
        from epbuild.archive.zstd import compress, is_compressed

        folder, step = self.work / "compressed", StepId(self.emission.id)
        return [
            compress(artifact, self.copy, level, folder, step) if is_compressed(artifact.role) else artifact
            for artifact in artifacts
        ]

    def _copy_to(self, artifact: Artifact, place: str) -> None:
        if artifact.data is not None:
            write_new(place, artifact.data)
            return
        if artifact.file is None:
            self.store.materialize(artifact.sha256, place, self.count)
            return
        path = Path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        if artifact.file.is_relative_to(self.work):
            rename(artifact.file, path)  # the file was written for this output
        else:
            hasher = Hasher()
            with open_raw(artifact.file) as source, path.open("x+b") as copy:
                copy_open_file(source, copy, hasher)
            self._check(artifact, hasher.digest)

    def _check(self, artifact: Artifact, digest: str | None) -> None:
        if digest != artifact.sha256:
            raise make_changed_error(artifact.path, StepId(self.emission.id))

    def _keep(self, artifact: Artifact, path: Path, existing: Path) -> bool:
        """Create `path` as a link to the file `existing` if that file has the artifact's content. Return whether the link was created."""
        if self.written.digest(existing, artifact.path) != artifact.sha256:
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self.written.digests.relinking([existing]):
                os.link(existing, path)
        except (OSError, StoreError):
            return False
        self.written.note_link(existing, artifact.path)
        return True

    def _remove_sidecars(self, archive: Path, files: Files, as_written: Collection[str]) -> None:
        """Remove unchanged files that an earlier build wrote beside the archive, if this build does not write them."""
        if archive.name not in self.written.recorded:
            return
        for name in self.written.recorded.keys() - files.keys():
            left = archive.with_name(name)
            if name in as_written:
                left.unlink()
            elif os.path.lexists(left):
                self.written.kept[name] = name

    def _refuse_foreign(self, path: Path, *, owned: bool) -> None:
        """Raise BuildError if `path` is a folder, pipe, socket or device, or if it is any other file and `owned` is false."""
        if path.is_dir() or (os.path.lexists(path) and (not owned or is_special(path))):
            message = f"the output {path.name} already exists and was not created by epbuild"
            raise BuildError(Problem("EPB423", message, StepId(self.emission.id), "Move it away, or change the output's path."))


def copy_all(artifacts: Iterable[Artifact], copy: Callable[[Artifact], None]) -> None:
    """Call `copy` for each artifact. Large artifacts are copied in several threads, as hashing is CPU-bound. Raises errors of `copy`."""
    large = []
    for artifact in artifacts:
        if artifact.size >= _LARGE_BYTES:
            large.append(artifact)
        else:
            copy(artifact)
    if len(large) < 2:
        for artifact in large:
            copy(artifact)
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(min(_THREADS, len(large)), thread_name_prefix="copy")
    try:
        for _ in pool.map(copy, large):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _add_statement(tree: OutputTree, artifacts: Sequence[Artifact]) -> list[Artifact]:
    """Return the artifacts sorted by path, with a provenance statement about them if the output has one."""
    if tree.emission.provenance:
        statement = _render_statement(tree, artifacts)
        artifacts = [*artifacts, Artifact.generated(PROVENANCE, "provenance", statement.data)]
    return sorted(artifacts, key=lambda artifact: artifact.path.split("/"))


def _render_statement(tree: OutputTree, artifacts: Iterable[Artifact]) -> JsonFile:
    return render_statement(tree.inputs, [artifact.entry for artifact in artifacts], tree.key)


def _summarize_files(artifacts: Iterable[Artifact]) -> Files:
    """Return the digest and the size of each artifact, in the form that the workspace records."""
    return {artifact.path: {"digest": artifact.sha256, "size": artifact.size} for artifact in artifacts}


def _is_same(there: Path, path: Path) -> bool:
    return there.is_file() and there.samefile(path)


@contextmanager
def _restored_on_failure(path: Path | None) -> Iterator[None]:
    """Restore the file at `path`, or its absence, if the block raises OSError, for example because the archive beside it is in use."""
    before = path.read_bytes() if path is not None and path.is_file() else None
    try:
        yield
    except OSError:
        with suppress(OSError):  # the first error is more important
            if path is not None and before is not None:
                write_file(path, before)
            elif path is not None:
                path.unlink(missing_ok=True)
        raise


def _save(path: Path) -> Path:
    """Save the file at `path` under another name beside it, before a new file replaces it. Return the path of the saved file."""
    kept = choose_free_name(path, path)
    try:
        os.link(path, kept, follow_symlinks=False)
    except FileExistsError:  # a saved file with the same content exists
        return kept
    except (OSError, NotImplementedError):
        rename(path, kept)
    return kept
