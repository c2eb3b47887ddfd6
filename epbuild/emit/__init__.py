"""How artifacts are laid out for people: layouts, directories that are swapped in whole, manifests."""

from epbuild.emit.directory import Ours, mend, prepare, swap_in, unfinished
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
    "mend",
    "prepare",
    "render",
    "swap_in",
    "unfinished",
]
