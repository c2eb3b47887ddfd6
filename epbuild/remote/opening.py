"""The opening of a remote cache: its transport, by the scheme of its address."""

from __future__ import annotations

import threading
from pathlib import Path

from epbuild.remote.attempts import Warn
from epbuild.remote.cache import RemoteCache
from epbuild.remote.directory import DirectoryTransport
from epbuild.remote.keys import require_signing
from epbuild.remote.settings import RemoteSettings
from epbuild.remote.transport import Transport


def open_remote(settings: RemoteSettings, warn: Warn, cancelled: threading.Event | None = None) -> RemoteCache:
    """The remote cache, of which nothing is asked yet. Raises StoreError without its packages, or where a cloud's variables are wrong."""
    require_signing()
    transport = _TRANSPORTS[settings.address.scheme](settings, cancelled)
    return RemoteCache(
        transport, str(settings.address), trust=settings.trust, signer=settings.signer, warn=warn, cancelled=cancelled
    )


def _directory(settings: RemoteSettings, cancelled: threading.Event | None) -> Transport:
    return DirectoryTransport(Path(settings.address.text), writes=settings.provides or settings.signer is not None)


def _web(settings: RemoteSettings, cancelled: threading.Event | None) -> Transport:
    from epbuild.remote.web import WebTransport  # urllib3 is not needed for the others

    return WebTransport(settings.address.text, authorization=settings.authorization, cancelled=cancelled)


def _objects(settings: RemoteSettings, cancelled: threading.Event | None) -> Transport:
    from epbuild.remote.objects import ObjectTransport

    return ObjectTransport(settings.address, anonymous=settings.anonymous)


_TRANSPORTS = {
    "directory": _directory,
    "http": _web,
    "https": _web,
    "s3": _objects,
    "gs": _objects,
    "az": _objects,
}
