"""Functions that open a remote cache according to the scheme of its address."""

from __future__ import annotations

import threading
from pathlib import Path

from epbuild.core.errors import Problem, StoreError
from epbuild.recipe.remote_address import RemoteAddress
from epbuild.remote.cache import BLOB_TIMEOUTS, RECORD_TIMEOUTS, RemoteCache, RemoteStores, Warn
from epbuild.remote.keys import require_signing
from epbuild.remote.settings import RemoteSettings
from epbuild.transfer.folder import FolderStore
from epbuild.transfer.objects import MissingPackageError, Timeouts, TransferError

_LOCAL = ("localhost", "127.0.0.1", "::1")
_ACCESS = (
    "Check the address. "
    "The header in EPBUILD_REMOTE_AUTHORIZATION is sent only to an address in EPBUILD_REMOTE_CACHE or in your settings."
)
_WITHHELD = "EPBUILD_REMOTE_CACHE, because credentials are used only for the bucket that this variable names"


def open_remote(settings: RemoteSettings, warn: Warn, cancelled: threading.Event | None = None) -> RemoteCache:
    """Open a remote cache without sending a request.

    Raises StoreError if a required package is missing or the cloud provider's environment variables are invalid.
    """
    require_signing()
    address = settings.address
    if address.is_directory:
        stores = open_folder_stores(Path(address.text), writes=settings.uploads_inputs or settings.signer is not None)
    elif address.scheme in ("http", "https"):
        stores = open_web_stores(address.text, settings.authorization, cancelled)
    else:
        stores = open_bucket_stores(address, is_anonymous=settings.anonymous)
    return RemoteCache(stores, str(address), trust=settings.trust, signer=settings.signer, warn=warn, cancelled=cancelled)


def open_folder_stores(root: Path, *, writes: bool = False) -> RemoteStores:
    """Return the stores of a remote cache in a folder."""
    store = FolderStore(root, writes=writes)
    return RemoteStores(store, store)


def open_web_stores(
    base: str,
    authorization: str | None = None,
    cancelled: threading.Event | None = None,
    timeouts: tuple[Timeouts, Timeouts] = (RECORD_TIMEOUTS, BLOB_TIMEOUTS),
) -> RemoteStores:
    """Return the stores of a remote cache on a web server."""
    from epbuild.transfer.http import HttpClient  # imported here, as only web servers need urllib3
    from epbuild.transfer.web import WebStore

    clients = [HttpClient(local=_LOCAL, cancelled=cancelled, timeouts=limits) for limits in timeouts]
    return RemoteStores(*(WebStore(client, base, authorization=authorization, access_hint=_ACCESS) for client in clients))


def open_bucket_stores(
    address: RemoteAddress,
    timeouts: tuple[Timeouts, Timeouts] = (RECORD_TIMEOUTS, BLOB_TIMEOUTS),
    *,
    is_anonymous: bool = False,
) -> RemoteStores:
    """Return the stores of a remote cache in a bucket.

    Raises StoreError if the package obstore is missing, or if an environment variable of the cloud provider is missing or invalid.
    """
    from epbuild.transfer.bucket import BucketStore

    hint = _WITHHELD if is_anonymous else None
    try:
        return RemoteStores(*(BucketStore(address.scheme, *address.bucket, limits, access_hint=hint) for limits in timeouts))
    except MissingPackageError as error:
        raise StoreError(error.make_problem(f"the remote cache {address}")) from error
    except TransferError as error:
        raise StoreError(Problem("EPB520", f"the remote cache {address} cannot be used: {error}", hint=error.hint)) from error
