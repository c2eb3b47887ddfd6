"""Blobs, action records and leases that checkouts share, and the workspace beside a recipe; no idea of what they mean."""

from epbuild.store.blobs import BlobStore
from epbuild.store.content import Blob
from epbuild.store.digests import Digests, StatKey, StatMemory, unchanged
from epbuild.store.failures import DamagedBlob, MissingBlob
from epbuild.store.leases import Cancelled, lease
from epbuild.store.location import cache_directory, toolchain_directory
from epbuild.store.records import RECORD_FORMAT, ActionRecords
from epbuild.store.state import FileMemory, Measurement, StepRecord, Workspace

__all__ = [
    "RECORD_FORMAT",
    "ActionRecords",
    "Blob",
    "BlobStore",
    "Cancelled",
    "DamagedBlob",
    "Digests",
    "FileMemory",
    "Measurement",
    "MissingBlob",
    "StatKey",
    "StatMemory",
    "StepRecord",
    "Workspace",
    "cache_directory",
    "lease",
    "toolchain_directory",
    "unchanged",
]
