"""Blobs, action records and leases that checkouts share, and the workspace beside a recipe; no idea of what they mean."""

from epbuild.store.blobs import BlobStore
from epbuild.store.collect import YOUNG_SECONDS, Collected, Limits, Needs, Reason, collect
from epbuild.store.content import Blob, Copier, Reading, read
from epbuild.store.digests import Digests, StatKey, StatMemory, unchanged
from epbuild.store.failures import DamagedBlob, MissingBlob, NewerRecord
from epbuild.store.leases import Cancelled, lease, lease_if_free
from epbuild.store.leftovers import Leftovers, discard_all
from epbuild.store.location import cache_directory, tag_cache, toolchain_directory
from epbuild.store.memory import UNKNOWN, Configuration, Memory, OutputRecord, StepRecord
from epbuild.store.records import RECORD_FORMAT, ActionRecords, address_records
from epbuild.store.roots import Roots
from epbuild.store.state import FileMemory, Measurement, Workspace
from epbuild.store.things import KINDS, Kind, Thing, files_below

__all__ = [
    "KINDS",
    "RECORD_FORMAT",
    "UNKNOWN",
    "YOUNG_SECONDS",
    "ActionRecords",
    "Blob",
    "BlobStore",
    "Cancelled",
    "Collected",
    "Configuration",
    "Copier",
    "DamagedBlob",
    "Digests",
    "FileMemory",
    "Kind",
    "Leftovers",
    "Limits",
    "Measurement",
    "Memory",
    "MissingBlob",
    "Needs",
    "NewerRecord",
    "OutputRecord",
    "Reading",
    "Reason",
    "Roots",
    "StatKey",
    "StatMemory",
    "StepRecord",
    "Thing",
    "Workspace",
    "address_records",
    "cache_directory",
    "collect",
    "discard_all",
    "files_below",
    "lease",
    "lease_if_free",
    "read",
    "tag_cache",
    "toolchain_directory",
    "unchanged",
]
