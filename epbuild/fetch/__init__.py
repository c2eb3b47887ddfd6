"""Remote models into the store: addresses, downloads that resume and are checked, and folders that read like local models."""

from epbuild.fetch.address import (
    Address,
    BadAddress,
    HubAddress,
    ObjectAddress,
    WebAddress,
    is_immutable,
    is_remote,
    parse_address,
)
from epbuild.fetch.download import fetch
from epbuild.fetch.failures import FetchError
from epbuild.fetch.models import RemoteModel, fetch_model
from epbuild.fetch.web import make_opener

__all__ = [
    "Address",
    "BadAddress",
    "FetchError",
    "HubAddress",
    "ObjectAddress",
    "RemoteModel",
    "WebAddress",
    "fetch",
    "fetch_model",
    "is_immutable",
    "is_remote",
    "make_opener",
    "parse_address",
]
