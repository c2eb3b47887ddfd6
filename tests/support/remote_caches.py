"""Remote caches in a directory or on a server, with access to their content, and results to store there."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from epbuild.cache.blobs import BlobStore
from epbuild.core.digest import Blob, hash_document
from epbuild.core.errors import Problem
from epbuild.recipe.remote_address import parse_remote
from epbuild.remote.cache import RemoteCache, RemoteStores
from epbuild.remote.envelope import RecordKind
from epbuild.remote.keys import SigningKey
from epbuild.remote.opening import open_bucket_stores, open_folder_stores, open_web_stores
from epbuild.transfer.objects import Content, MissingObjectError, Timeouts
from tests.support.cache_server import CacheServer

QUICK = Timeouts(1.0, 0.4, 0.4, 0.4), Timeouts(1.0, 0.4, 0.6, 0.5)


class Place(Protocol):
    """Place of a remote cache, whose content can be read and changed directly."""

    def stores(self, *, writes: bool = False) -> RemoteStores: ...

    def read(self, space: str, name: str) -> bytes | None: ...

    def write(self, space: str, name: str, data: bytes | None) -> None: ...

    def names(self, space: str) -> list[str]: ...


class DirectoryPlace:
    def __init__(self, root: Path) -> None:
        self.root = root

    def stores(self, *, writes: bool = False) -> RemoteStores:
        return open_folder_stores(self.root, writes=writes)

    def read(self, space: str, name: str) -> bytes | None:
        path = self.root / space / name
        return path.read_bytes() if path.exists() else None

    def write(self, space: str, name: str, data: bytes | None) -> None:
        path = self.root / space / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)

    def names(self, space: str) -> list[str]:
        return sorted(path.name for path in (self.root / space).glob("*"))


class ServerPlace:
    def __init__(self, server: CacheServer) -> None:
        self.server = server

    def stores(self, *, writes: bool = False) -> RemoteStores:
        return open_web_stores(self.server.address, timeouts=QUICK)

    def read(self, space: str, name: str) -> bytes | None:
        return self.server.objects.get((space, name))

    def write(self, space: str, name: str, data: bytes | None) -> None:
        self.server.objects.pop((space, name), None)
        if data is not None:
            self.server.objects[space, name] = data

    def names(self, space: str) -> list[str]:
        return sorted(name for where, name in self.server.objects if where == space)


class ObjectPlace:
    """A prefix in a bucket that the environment variables configure."""

    def __init__(self, address: str) -> None:
        self.address = parse_remote(address)
        self.prefix = self.address.bucket[1]

    def stores(self, *, writes: bool = False) -> RemoteStores:
        return open_bucket_stores(self.address)

    def read(self, space: str, name: str) -> bytes | None:
        try:
            return io.BufferedReader(self.stores().blobs.get(f"{space}/{name}")).read()
        except MissingObjectError:
            return None

    def write(self, space: str, name: str, data: bytes | None) -> None:
        if data is None:
            import obstore

            with suppress(FileNotFoundError):
                obstore.delete(self._bucket(), f"{space}/{name}")
        else:
            self.stores().blobs.put(f"{space}/{name}", Content.of(data))

    def names(self, space: str) -> list[str]:
        import obstore

        found = obstore.list(self._bucket(), space).collect()
        return sorted(str(entry["path"]).rpartition("/")[2] for entry in found)

    def _bucket(self) -> Any:
        from obstore import store

        kind = {"s3": store.S3Store, "az": store.AzureStore}[self.address.scheme]
        return kind(self.address.bucket[0], prefix=self.prefix)


def _key(record: Mapping[str, Any]) -> str:
    return hash_document(record["document"])


def _is_sound(record: Mapping[str, Any]) -> bool:
    match record:
        case {"document": dict(), "result": {"artifacts": dict(artifacts), "log": dict(log)}}:
            return all(
                isinstance(blob, dict) and isinstance(blob.get("digest"), str) and type(blob.get("size")) is int
                for blob in (*artifacts.values(), log)
            )
    return False


def _files(record: Mapping[str, Any]) -> dict[str, Blob]:
    return {name: Blob(blob["digest"], blob["size"]) for name, blob in record["result"]["artifacts"].items()}


def _log(record: Mapping[str, Any]) -> Blob:
    return Blob(record["result"]["log"]["digest"], record["result"]["log"]["size"])


COMPILE = RecordKind("compile", _key, _is_sound, _files, _log)


class Maker:
    """Factory of results in a store that keeps the warnings and the skipped pauses of its remote caches."""

    def __init__(self, folder: Path) -> None:
        self.store = BlobStore(folder / "store")
        self._folder = folder
        self.warnings: list[Problem] = []
        self.pauses: list[float] = []

    def record(self, name: str, files: Mapping[str, bytes]) -> tuple[str, dict[str, Any]]:
        """Store these files as a result, and return its key and record."""
        artifacts = {file: self._stored(data) for file, data in files.items()}
        document = {"members": [name]}
        record = {"document": document, "result": {"artifacts": artifacts, "log": self._stored(b"a log of " + name.encode())}}
        return hash_document(document), record

    def _stored(self, data: bytes) -> dict[str, Any]:
        path = self._folder / hashlib.sha256(data).hexdigest()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        blob = self.store.put(path, move=True)
        return {"digest": blob.digest, "size": blob.size}

    def remote(self, place: Place, *, trust: set[str] | None, signer: SigningKey | None = None) -> RemoteCache:
        stores = place.stores(writes=signer is not None)
        warn, pause = self.warnings.append, self.pauses.append
        return RemoteCache(stores, "the remote", trust=trust, signer=signer, warn=warn, pause=pause)
