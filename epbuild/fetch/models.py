"""Remote models as folders with the graph file and its external data."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct, field

from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import DamagedBlob, MissingBlob
from epbuild.cache.garbage import discard_all
from epbuild.cache.leases import lease
from epbuild.core.atomic import rename
from epbuild.core.digest import Blob, hash_document
from epbuild.core.errors import PlanError, Problem
from epbuild.core.safepath import BadReference, check_reference
from epbuild.fetch.download import FetchProgress, fetch
from epbuild.fetch.partial import writing
from epbuild.fetch.wheels import fetch_from_wheel
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.recipe.address import Address, PackageAddress, is_immutable, parse_address, resolve_beside
from epbuild.transfer.http import HttpClient

_NO_FILE_NAME = re.compile(r'[\x00-\x1f<>:"/\\|?*]')


class RemoteModel(Struct, frozen=True):
    """Fetched model: the path of its graph file, with external data beside it, and the digests of these files.

    Models in wheels have no digests, as the installer has verified the wheel.
    """

    graph: Path
    digests: Mapping[Path, str]


class Pins(Struct, frozen=True):
    """Pinned SHA-256 digests of a model's files. Files without an entry are not pinned."""

    graph: str | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each external data file, by its location in the graph."""
    wheels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Allowed digests of wheels, by requirement. For a requirement without an entry, any wheel is allowed."""
    only_checked: bool = False
    """True to fetch a wheel again if it was fetched without verification."""


def fetch_model(
    text: str,
    pins: Pins,
    store: BlobStore,
    *,
    progress: FetchProgress,
    cancelled: threading.Event,
    client: HttpClient | None = None,
) -> RemoteModel:
    """Fetch the missing files of the model at the address `text`, and return the model in a folder of the store.

    A graph that is not a valid model is accepted here, as the planner reports it. Raises PlanError for external data that is not pinned or
    not beside the graph, and errors of `fetch` and `fetch_from_wheel`.
    """
    address = parse_address(text)
    if isinstance(address, PackageAddress):
        progress.arrived(str(address), 0, None)
        digests = pins.wheels.get(address.requirement, ())
        found = fetch_from_wheel(address, store.root, digests, only_checked=pins.only_checked, cancelled=cancelled)
        return RemoteModel(found, {})
    return _Fetching(address, pins, store, client or HttpClient(cancelled=cancelled), progress).model()


class _Fetching(Struct, frozen=True):
    address: Address
    pins: Pins
    store: BlobStore
    client: HttpClient
    progress: FetchProgress

    def model(self) -> RemoteModel:
        graph = fetch(self.address, self.pins.graph, self.store, self.client, self.progress)
        key = hash_document({"address": self.address.text, "graph": graph.digest, "pins": dict(self.pins.data)})
        folder = self.store.root / "remote" / key
        with lease(self.store.root, f"remote-{key}", cancelled=self.client.cancelled):
            place = folder / make_file_name(self.address)
            self._lay_out(self.address, self.pins.graph, graph, folder, place)
            digests = {place: graph.digest}
            for location in self._list_locations(place):
                address, pin = resolve_beside(self.address, location), self.pins.data.get(location)
                data = fetch(address, pin, self.store, self.client, self.progress)
                self._lay_out(address, pin, data, folder, folder / location)
                digests[folder / location] = data.digest
        return RemoteModel(place, digests)

    def _list_locations(self, graph: Path) -> tuple[str, ...]:
        try:
            locations = read_header(graph).external_locations
        except MalformedModel:
            return ()
        for location in locations:
            if not _is_reference(location) or str(PurePosixPath(location)).casefold() == graph.name.casefold():
                message = f"the model {self.address} has external data outside the model's folder, or at the model's own path: {location}"
                hint = "Save the model again with its data beside it, and a relative path to the data."
                raise PlanError(Problem("EPB204", message, hint=hint))
            if location not in self.pins.data and not is_immutable(self.address):
                message = f"{resolve_beside(self.address, location)} is not pinned, and its content can change"
                hint = f"Add its sha256 to the model's data_sha256, under '{location}'."
                raise PlanError(Problem("EPB208", message, hint=hint))
        for location in self.pins.data:
            if location not in locations:
                message = f"the recipe has a sha256 for {location}, but the model {self.address} does not refer to this file"
                hint = "Remove the sha256 from the recipe, or write the location as in the model."
                raise PlanError(Problem("EPB208", message, hint=hint))
        return locations

    def _lay_out(self, address: Address, sha256: str | None, blob: Blob, folder: Path, place: Path) -> None:
        """Write the blob's content to the read-only file `place` below `folder`, unless a file of the blob's size exists there."""
        if _has_size(place, blob.size):
            return
        draft = folder.with_suffix(".part")
        with writing(place):
            discard_all(draft)
            try:
                self.store.materialize(blob.digest, draft)
            except (DamagedBlob, MissingBlob):  # the blob is damaged, or `gc` has deleted it: fetch it again
                self.store.materialize(fetch(address, sha256, self.store, self.client, self.progress).digest, draft)
            draft.chmod(0o444)
            place.parent.mkdir(parents=True, exist_ok=True)
            discard_all(place)
            rename(draft, place)


def make_file_name(address: Address) -> str:
    """Return the file name in the address, made valid for every platform."""
    return _NO_FILE_NAME.sub("_", address.file.rpartition("/")[2])


def _is_reference(location: str) -> bool:
    try:
        check_reference(location)
    except BadReference:
        return False
    return True


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size
    except OSError:
        return False
