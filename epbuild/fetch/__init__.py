"""Remote models into the store: downloads that resume and are checked, and folders that read like local models."""

from epbuild.fetch.download import fetch
from epbuild.fetch.failures import FetchError
from epbuild.fetch.models import RemoteModel, fetch_model
from epbuild.fetch.web import make_opener
from epbuild.fetch.wheels import wheel_digests

__all__ = [
    "FetchError",
    "RemoteModel",
    "fetch",
    "fetch_model",
    "make_opener",
    "wheel_digests",
]
