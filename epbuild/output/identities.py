"""The identity of every file of an output, told from plan and results alone: nothing is read from the store, and nothing is written.

What would make the output is asked to name it instead. A file is what its bytes are: a blob, or a file of the user's, by its digest; a
blob in which references are rewritten, by its digest and the references; merged models, by their own identities and the settings; and what
is generated, by a digest of just that. An output's key is made of all of them, so that there is nothing in an output that is not in its
key.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epbuild.archive.artifact import Artifact, Role
from epbuild.archive.formats import ArchiveName
from epbuild.archive.zstd import Compressed, compressed, is_compressed
from epbuild.output.contents import Merged
from epbuild.output.jsonfile import JsonFile
from epbuild.output.layout import Placed, Stored
from epbuild.output.merging import MergedModel, draft_names, settings_of
from epbuild.plan.key import action_key
from epbuild.plan.steps import Emission, Merging, Part
from epbuild.publish.publishing import Files, image_of


class Identities:
    """A bench and a destination that only name files. `Artifact.sha256` is then an identity, and no size is known."""

    def __init__(self, emission: Emission) -> None:
        self._emission = emission
        self.files: dict[str, str] = {}
        """The identity of each file of the output, by its path below the output's root."""
        self.image: dict[str, str] = {}
        """Those of the documents that make an image of them, by what they are."""

    def written(self, path: str, role: Role, file: JsonFile) -> Artifact:
        return Artifact(path, role, 0, file.identity)

    def shipped(self, path: str, role: Role, file: Path, sha256: str) -> Artifact:
        return Artifact(path, role, 0, sha256)

    def stored(self, path: str, role: Role, artifact: Stored) -> Artifact:
        return Artifact(path, role, artifact.size, artifact.digest)

    def relinked(self, path: str, role: Role, artifact: Stored, renames: Mapping[str, str]) -> Artifact:
        return Artifact(path, role, 0, action_key({"blob": artifact.digest, "references": dict(renames)}))

    def merged(self, part: Part, merging: Merging, placed: Sequence[Placed], say: Callable[[str], None]) -> Merged:
        artifacts = {item.path: self._placed(posixpath.join(part.folder, item.path), item) for item in placed}
        members = {member: artifacts.pop(name).sha256 for member, name in draft_names(part, merging).items()}
        path = posixpath.join(part.folder, part.models[merging.name])
        file = Artifact(path, "model", 0, action_key({"merge": settings_of(merging), "members": members}))
        # What will be in the model, the manifest tells from the model.
        return Merged(MergedModel((), {}), file, tuple(artifacts.values()))

    def as_folder(self, artifacts: Sequence[Artifact]) -> Files:
        self.files = {artifact.path: artifact.sha256 for artifact in artifacts}
        return {}

    def as_archive(
        self, form: ArchiveName, artifacts: Sequence[Artifact], beside: Callable[[Artifact], Mapping[str, JsonFile]]
    ) -> Files:
        path = self._emission.path
        self.as_folder(artifacts)
        neighbours = beside(Artifact(path.name, "asset", 0, action_key(self.files)))
        # Beside the archive, a file may have the name of one in it.
        self.files |= {f"../{name}": file.identity for name, file in neighbours.items()}
        return {}

    def as_image(self, artifacts: Sequence[Artifact], annotations: Mapping[str, str]) -> Files:
        self.as_folder(artifacts)
        layers: Sequence[Artifact | Compressed] = artifacts
        if self._emission.compression is not None:  # what it makes of a content, the key has beside the identities
            layers = [compressed(artifact, artifact.sha256, 0) if is_compressed(artifact) else artifact for artifact in artifacts]
        image = image_of(self._emission, layers, annotations)
        self.image = {"manifest": image.manifest.sha256, "index": image.index.sha256, "layout": image.layout.sha256}
        return {}

    def _placed(self, path: str, item: Placed) -> Artifact:
        named = self.relinked(path, item.role, item.artifact, item.renames)
        return named if item.renames else self.stored(path, item.role, item.artifact)
