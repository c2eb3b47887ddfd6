"""The publisher of an output: a folder swapped in, or an archive renamed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from epbuild.archive.artifact import Artifact, Copy, changed
from epbuild.cache.blobs import BlobSource
from epbuild.cache.digests import Digests
from epbuild.core.atomic import rename, sync_directory, sync_file, write_new
from epbuild.core.clone import copy_open_file
from epbuild.core.digest import Hasher, Write, digest_of, hash_into
from epbuild.core.directory import prepare, swap_in, workplace
from epbuild.core.entries import HiddenFolders, free_name, is_special
from epbuild.core.errors import BuildError, Problem, StepId, StoreError
from epbuild.core.safepath import open_raw
from epbuild.engine.events import Progress, StepOutput
from epbuild.output.existing import Written
from epbuild.output.output import Output
from epbuild.output.pack import Files, Sidecars, image_of
from epbuild.plan.steps import Emission
from epbuild.publish.workbench import Workbench
from epbuild.recipe.image_reference import ImageReference

if TYPE_CHECKING:
    from epbuild.archive.formats import ArchiveName
    from epbuild.archive.oci import Image
    from epbuild.archive.zstd import Compressed

_LARGE_BYTES = 8 << 20
"""From this size on, another thread saves more than it costs to copy a file."""
_THREADS = min(4, os.cpu_count() or 1)


class Pusher(Protocol):
    """Brings images into registries."""

    def push(self, image: Image, reference: ImageReference, copy: Copy) -> None:
        """Bring an image to the place that the reference names; `copy` reads its blobs."""


def publish(
    output: Output,
    store: BlobSource,
    written: Written,
    digests: Digests,
    progress: Progress,
    pusher: Pusher,
    hidden: HiddenFolders | None = None,
) -> Files:
    """Put an output in its place; returns each file's digest and size by its path below the output's root.

    `written` knows what epbuild wrote here before, and notes what of that is kept; the events are how models were merged, and what was
    left out; `hidden` is as `recover_swaps` has it.

    Raises BuildError when something of the user's is in the way, or the output cannot be as it is asked for,
    EnvironmentFailure when the place cannot be written, MissingBlob or DamagedBlob when an artifact has to be made again, and what `pusher`
    raises.
    """
    with prepare(output.emission.path, written, output.emission.id, hidden) as draft:
        return publish_from(draft, output, store, written, digests, progress, pusher)


def publish_from(
    draft: Path, output: Output, store: BlobSource, written: Written, digests: Digests, progress: Progress, pusher: Pusher
) -> Files:
    """As `publish`, by way of an empty folder on the file system of the output's place, or where that gets nothing of a free name."""
    emission, key = output.emission, output.key
    for sentence in output.notes():
        progress.report(StepOutput(emission.steps[0], sentence))
    with workplace(draft) as work:
        bench = Workbench(work / "made", store, emission.steps[0], progress)
        return output.publish_to(Publisher(emission, draft, work, store, digests, written, pusher), bench.make, key)


def recorded(artifacts: Iterable[Artifact]) -> Files:
    """What is remembered of published files."""
    return {artifact.path: {"digest": artifact.sha256, "size": artifact.size} for artifact in artifacts}


class Publisher:
    """Puts artifacts in the place of an emission, by way of `draft`, an empty folder beside it, and of `work`, where the bench made some.

    `written` knows what epbuild wrote there before, and notes what is kept of it. The methods return what is remembered of
    the files that they wrote.
    """

    def __init__(
        self,
        emission: Emission,
        draft: Path,
        work: Path,
        store: BlobSource,
        digests: Digests,
        written: Written,
        pusher: Pusher,
    ) -> None:
        self._emission = emission
        self._draft = draft
        self._work = work
        self._pusher = pusher
        self._store = store
        self._digests = digests
        self._written = written

    def as_folder(self, artifacts: Sequence[Artifact]) -> Files:
        """Put the artifacts into a new folder, and swap it in.

        A file that is there already as it has to be stays that file: what watches it sees no change, and nothing is copied. Raises
        BuildError when something of the user's is in the way, MissingBlob or DamagedBlob when an artifact has to be made again.
        """
        tree, place, files = self._draft, self._emission.path, recorded(artifacts)
        is_there = os.path.lexists(place)  # else there is nothing to keep

        def copy(artifact: Artifact) -> None:
            if not (is_there and self._keep(artifact, tree / artifact.path, place / artifact.path)):
                self._copy_to(artifact, f"{tree}{os.sep}{artifact.path}")

        copy_all(artifacts, copy)
        self._written.announce(files)
        kept = (place / item.path for item in artifacts if _is_same(place / item.path, tree / item.path)) if is_there else ()
        with self._digests.relinking(kept):
            self._written.kept.update(swap_in(tree, place, self._written, self._emission.id))
        return files

    def as_archive(self, form: ArchiveName, artifacts: Sequence[Artifact], sidecars: Sidecars) -> Files:
        """Pack the artifacts into a new archive, and rename it to its place. Raises what `as_folder` does."""
        from epbuild.archive.formats import write_archive
        from epbuild.output.provenance import is_statement_about

        emission, draft = self._emission, self._draft
        path, packed = emission.path, draft / emission.path.name
        self._refuse_foreign(path, owned=path.name in self._written.wrote(path))
        level = emission.compression.level if emission.compression is not None else None
        with packed.open("xb") as file:
            made = write_archive(form, artifacts, self.copy, file, level=level, step=StepId(emission.id))
        whole = Artifact(path.name, "asset", made.size, made.digest, packed)
        files: Files = {path.name: {"digest": whole.sha256, "size": whole.size}}
        documents = {name: file.data for name, file in sidecars(whole).items()}
        for name in documents:
            sidecar = path.with_name(name)
            self._refuse_foreign(sidecar, owned=name in self._written.recorded or is_statement_about(sidecar, path.name))
        for name, data in documents.items():
            (draft / name).write_bytes(data)
            files[name] = {"digest": digest_of(data), "size": len(data)}
        self._written.announce(files)
        as_written = self._written.archive_as_written(path)
        # The archive last: its sidecars are there before it is.
        for name in (*documents, path.name):
            target = path.with_name(name)
            if self._written.digest(target, name) != files[name]["digest"]:
                if name in self._written.recorded and name not in as_written and os.path.lexists(target):
                    self._written.kept[name] = _saved(target).name
                sync_file(draft / name)
                rename(draft / name, target)
        sync_directory(path.parent)
        self._remove_sidecars(path, files, as_written)
        return files

    def as_image(self, artifacts: Sequence[Artifact], annotations: Mapping[str, str]) -> Files:
        """Publish an OCI image of the artifacts, and have it pushed where a registry is named. Raises what `as_folder` and `push` do."""
        reference = self._emission.push
        made = image_of(self._emission, self._layers(artifacts), annotations)
        generated = [Artifact.generated(document.path, "asset", document.data) for document in made.documents]
        files = [*made.blobs, *generated]
        if self._emission.push_only and reference is not None:
            self._pusher.push(made, reference, self.copy)  # each blob from where it is
            return recorded(files)
        self.as_folder(files)
        if reference is not None:
            there = (replace(blob, file=self._emission.path / blob.path) for blob in made.blobs)
            self._pusher.push(replace(made, blobs=tuple(there)), reference, self.copy)
        return recorded(files)

    def copy(self, artifact: Artifact, write: Write) -> None:
        """Write the bytes of an artifact to `write`, piece by piece, and check them."""
        if artifact.data is not None:
            write(memoryview(artifact.data))
            return
        if artifact.file is None:
            self._store.copy(artifact.sha256, write)
            return
        hasher = Hasher()
        with open_raw(artifact.file) as file:
            hash_into(file, hasher, write)
        self._check(artifact, hasher.digest)

    def _layers(self, artifacts: Sequence[Artifact]) -> list[Artifact | Compressed]:
        """The files of an image, compressed where the emission asks for that."""
        compression = self._emission.compression
        if compression is None:
            return list(artifacts)
        from epbuild.archive.zstd import compress, is_compressed

        folder, step = self._work / "compressed", StepId(self._emission.id)
        return [
            compress(artifact, self.copy, compression.level, folder, step) if is_compressed(artifact) else artifact
            for artifact in artifacts
        ]

    def _copy_to(self, artifact: Artifact, place: str) -> None:
        if artifact.data is not None:
            write_new(place, artifact.data)
            return
        if artifact.file is None:
            self._store.materialize(artifact.sha256, place)
            return
        path = Path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        if artifact.file.is_relative_to(self._work):
            rename(artifact.file, path)  # it was made here for this
        else:
            hasher = Hasher()
            with open_raw(artifact.file) as source, path.open("x+b") as copy:
                copy_open_file(source, copy, hasher)
            self._check(artifact, hasher.digest)

    def _check(self, artifact: Artifact, digest: str | None) -> None:
        if digest != artifact.sha256:
            raise changed(artifact.path, StepId(self._emission.id))

    def _keep(self, artifact: Artifact, path: Path, existing: Path) -> bool:
        """Make `path` the very file `existing`, if it has that content."""
        if self._written.digest(existing, artifact.path) != artifact.sha256:
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._digests.relinking([existing]):
                os.link(existing, path)
        except (OSError, StoreError):
            return False
        self._written.linked(existing, artifact.path)
        return True

    def _remove_sidecars(self, archive: Path, files: Files, as_written: Collection[str]) -> None:
        """Remove sidecars of an earlier build that this one does not write, unless they were changed."""
        if archive.name not in self._written.recorded:
            return
        for name in self._written.recorded.keys() - files.keys():
            left = archive.with_name(name)
            if name in as_written:
                left.unlink()
            elif os.path.lexists(left):
                self._written.kept[name] = name

    def _refuse_foreign(self, path: Path, *, owned: bool) -> None:
        """Refuse to replace what is not `owned`; a folder, a pipe, a socket or a device in any case."""
        if path.is_dir() or (os.path.lexists(path) and (not owned or is_special(path))):
            message = f"the output {path.name} exists, and epbuild did not make it"
            raise BuildError(Problem("EPB423", message, StepId(self._emission.id), "Move it away, or change the output's path."))


def copy_all(artifacts: Iterable[Artifact], copy: Callable[[Artifact], None]) -> None:
    """Have each artifact copied; copying and checking a large one takes a processor. Raises what `copy` does."""
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


def _is_same(there: Path, path: Path) -> bool:
    return there.is_file() and there.samefile(path)


def _saved(path: Path) -> Path:
    """Give what is at `path` a name of its own beside it, before something else takes its place."""
    kept = free_name(path, path)
    try:
        os.link(path, kept, follow_symlinks=False)
    except FileExistsError:  # it has the same already
        return kept
    except (OSError, NotImplementedError):
        rename(path, kept)
    return kept
