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

from epbuild.archive.compression import Squeezed, is_squeezed, squeezed
from epbuild.archive.content import Content, Role
from epbuild.archive.packs import Form
from epbuild.output.contents import Merged
from epbuild.output.jsonfile import JsonFile
from epbuild.output.layout import Placed, Stored
from epbuild.output.merging import MergedModel, draft_names, settings_of
from epbuild.plan.key import action_key
from epbuild.plan.steps import Emission, Merging, Part
from epbuild.publish.publishing import Files, image_of


class Identities:
    """A bench and a destination that only name files. `Content.sha256` is then an identity, and no size is known."""

    def __init__(self, emission: Emission) -> None:
        self._emission = emission
        self.files: dict[str, str] = {}
        """The identity of each file of the output, by its path below the output's root."""
        self.image: dict[str, str] = {}
        """Those of the documents that make an image of them, by what they are."""

    def written(self, path: str, role: Role, file: JsonFile) -> Content:
        return Content(path, role, 0, file.identity)

    def shipped(self, path: str, role: Role, file: Path, sha256: str) -> Content:
        return Content(path, role, 0, sha256)

    def stored(self, path: str, role: Role, artifact: Stored) -> Content:
        return Content(path, role, artifact.size, artifact.digest)

    def relinked(self, path: str, role: Role, artifact: Stored, renames: Mapping[str, str]) -> Content:
        return Content(path, role, 0, action_key({"blob": artifact.digest, "references": dict(renames)}))

    def merged(self, part: Part, merging: Merging, placed: Sequence[Placed], say: Callable[[str], None]) -> Merged:
        contents = {item.path: self._placed(posixpath.join(part.folder, item.path), item) for item in placed}
        members = {member: contents.pop(name).sha256 for member, name in draft_names(part, merging).items()}
        path = posixpath.join(part.folder, part.models[merging.name])
        file = Content(path, "model", 0, action_key({"merge": settings_of(merging), "members": members}))
        # What will be in the model, the manifest tells from the model.
        return Merged(MergedModel((), {}), file, tuple(contents.values()))

    def as_folder(self, contents: Sequence[Content]) -> Files:
        self.files = {content.path: content.sha256 for content in contents}
        return {}

    def as_archive(self, form: Form, contents: Sequence[Content], beside: Callable[[Content], Mapping[str, JsonFile]]) -> Files:
        path = self._emission.path
        self.as_folder(contents)
        neighbours = beside(Content(path.name, "asset", 0, action_key(self.files)))
        # Beside the archive, a file may have the name of one in it.
        self.files |= {f"../{name}": file.identity for name, file in neighbours.items()}
        return {}

    def as_image(self, contents: Sequence[Content], annotations: Mapping[str, str]) -> Files:
        self.as_folder(contents)
        layers: Sequence[Content | Squeezed] = contents
        if self._emission.compression is not None:  # what it makes of a content, the key has beside the identities
            layers = [squeezed(content, content.sha256, 0) if is_squeezed(content) else content for content in contents]
        image = image_of(self._emission, layers, annotations)
        self.image = {"manifest": image.manifest.sha256, "index": image.index.sha256, "layout": image.layout.sha256}
        return {}

    def _placed(self, path: str, item: Placed) -> Content:
        named = self.relinked(path, item.role, item.artifact, item.renames)
        return named if item.renames else self.stored(path, item.role, item.artifact)
