"""Packs by their names in recipes: what the files of an output are packed into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from epbuild.archive.artifact import Artifact
from epbuild.core.canonical import JsonFile
from epbuild.output.files import OutputFile, Resolve
from epbuild.output.parts import in_order
from epbuild.plan.key import action_key
from epbuild.plan.outputs import PROVENANCE
from epbuild.plan.steps import Emission
from epbuild.recipe.image_reference import DEFAULT_TAG
from epbuild.recipe.model import Pack as PackName

if TYPE_CHECKING:
    from epbuild.archive.formats import ArchiveName
    from epbuild.archive.oci import Image
    from epbuild.archive.zstd import Compressed

Files = dict[str, dict[str, object]]
"""The digest and size of each published file, by its path below the output's root."""

Statement = Callable[[Sequence[Artifact]], JsonFile]
"""The provenance of files."""

Sidecars = Callable[[Artifact], Mapping[str, JsonFile]]
"""The files beside an archive, by their names."""


class Destination(Protocol):
    """Where the files of an output go: in its place, or into the document that names them all."""

    def as_folder(self, artifacts: Sequence[Artifact]) -> Files:
        """The output is a folder with these files."""

    def as_archive(self, name: ArchiveName, artifacts: Sequence[Artifact], sidecars: Sidecars) -> Files:
        """The output is an archive with these files, in the format of that name."""

    def as_image(self, artifacts: Sequence[Artifact], annotations: Mapping[str, str]) -> Files:
        """The output is an OCI image with these files."""


class Pack(Protocol):
    """How the files of an output are published; what `plan` has to know of a pack is in `recipe/forms.py`."""

    described_as: str | None
    """As that of a layout."""

    def publish(
        self, emission: Emission, artifacts: Sequence[Artifact], statement: Statement, resolve: Resolve, destination: Destination
    ) -> Files:
        """Publish the artifacts to a destination, with the statement about them where the emission wants one."""


class Folder:
    """The files as they are."""

    described_as: str | None = None

    def publish(
        self, emission: Emission, artifacts: Sequence[Artifact], statement: Statement, resolve: Resolve, destination: Destination
    ) -> Files:
        return destination.as_folder(_with_statement(emission, artifacts, statement, resolve))


class ArchiveFile:
    """One file, beside which the statement is."""

    described_as: str | None = None

    def __init__(self, name: ArchiveName) -> None:
        self._name = name

    def publish(
        self, emission: Emission, artifacts: Sequence[Artifact], statement: Statement, resolve: Resolve, destination: Destination
    ) -> Files:
        sidecar = emission.statement
        return destination.as_archive(
            self._name, artifacts, lambda whole: {sidecar.name: statement([whole, *artifacts])} if sidecar is not None else {}
        )


class ImageLayout:
    """An OCI image layout."""

    described_as: str | None = "image"

    def publish(
        self, emission: Emission, artifacts: Sequence[Artifact], statement: Statement, resolve: Resolve, destination: Destination
    ) -> Files:
        return destination.as_image(_with_statement(emission, artifacts, statement, resolve), _annotations(emission))


PACKS: Mapping[PackName | None, Pack] = MappingProxyType(
    {None: Folder(), "zip": ArchiveFile("zip"), "tar.zst": ArchiveFile("tar.zst"), "oci": ImageLayout()}
)


class Identities:
    """The destination that only names files: `Artifact.sha256` is then an identity, and the sizes of few are known."""

    def __init__(self, emission: Emission) -> None:
        self._emission = emission
        self.files: dict[str, str] = {}
        """The identity of each file of the output, by its path below the output's root."""
        self.image: dict[str, str] = {}
        """Those of the documents that make an image of them, by what they are."""

    def as_folder(self, artifacts: Sequence[Artifact]) -> Files:
        self.files = {artifact.path: artifact.sha256 for artifact in artifacts}
        return {}

    def as_archive(self, name: ArchiveName, artifacts: Sequence[Artifact], sidecars: Sidecars) -> Files:
        path = self._emission.path
        self.as_folder(artifacts)
        found = sidecars(Artifact(path.name, "asset", 0, action_key(self.files)))
        # A sidecar may have the name of a file in the archive.
        self.files |= {f"../{name}": file.identity for name, file in found.items()}
        return {}

    def as_image(self, artifacts: Sequence[Artifact], annotations: Mapping[str, str]) -> Files:
        from epbuild.archive.zstd import compressed, is_compressed

        self.as_folder(artifacts)
        layers: Sequence[Artifact | Compressed] = artifacts
        if self._emission.compression is not None:  # what it makes of an artifact, the key has beside the identities
            layers = [compressed(item, item.sha256, 0) if is_compressed(item) else item for item in artifacts]
        image = image_of(self._emission, layers, annotations)
        self.image = {"manifest": image.manifest.sha256, "index": image.index.sha256, "layout": image.layout.sha256}
        return {}


def image_of(emission: Emission, artifacts: Sequence[Artifact | Compressed], annotations: Mapping[str, str]) -> Image:
    """The image that an emission's files become, each as it is or compressed."""
    from epbuild.archive.oci import image

    return image(artifacts, annotations, tag=emission.push.tag if emission.push is not None else DEFAULT_TAG)


def _with_statement(
    emission: Emission, artifacts: Sequence[Artifact], statement: Statement, resolve: Resolve
) -> Sequence[Artifact]:
    if not emission.provenance:
        return artifacts
    file = OutputFile(PROVENANCE, "provenance", statement(artifacts))
    return in_order([*artifacts, resolve(file)])


def _annotations(emission: Emission) -> dict[str, str]:
    """The annotations of an image, by the names of https://github.com/opencontainers/image-spec/blob/main/annotations.md."""
    described = {"org.opencontainers.image.description": emission.description} if emission.description else {}
    return {"org.opencontainers.image.title": emission.title, **described}
