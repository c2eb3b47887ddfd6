"""How artifacts are laid out for people: layouts, directories that are swapped in whole, manifests."""

from epbuild.emit.directory import Ours, prepare, swap_in
from epbuild.emit.layout import Placed, Stored, StoredModel, arrange
from epbuild.emit.manifest import ManifestFile, ManifestModel, emitted_files, render

__all__ = [
    "ManifestFile",
    "ManifestModel",
    "Ours",
    "Placed",
    "Stored",
    "StoredModel",
    "arrange",
    "emitted_files",
    "prepare",
    "render",
    "swap_in",
]
