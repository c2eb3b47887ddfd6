"""Versions of EPs' SDKs, in compiled models and on this machine."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable

from .plugins import SDK_ATTRIBUTES
from .variants import Ep, Variant

_NUMBERS = 3
"""Parts of a version to compare. A fourth part is the number of a build."""


def describe_newer_sdk(variant: Variant, model: str) -> str | None:
    """Return a warning without a full stop if a newer SDK than the one here compiled the model, or None."""
    for ep in variant.eps:
        compiled, here = find_compiling_sdk(variant.sdks.get(model, ()), ep.name), _find_sdk(ep)
        if compiled is not None and here is not None and is_newer(compiled, here):
            text = (
                f"the model {model} was compiled with the SDK {compiled}, which is newer than {here}, the SDK of {ep.name} here"
            )
            return f"{text}; install {ep.package or ep.name}"
    return None


def find_compiling_sdk(sdks: Iterable[tuple[str, str]], ep: str) -> str | None:
    """Return the newest SDK version of an EP's nodes, or None. `sdks` has pairs of a node's `source` and its version.

    QNN's nodes have the EP's name as their source, or `QNN`, in upper or lower case.
    """
    name = ep.casefold()
    names = {name, name.removesuffix("executionprovider")}
    return max((version for source, version in sdks if source.casefold() in names), key=_read_version, default=None)


def is_newer(compiled: str, here: str) -> bool:
    """Return whether a version is newer than another, by the numbers that both have."""
    left, right = _read_version(compiled), _read_version(here)
    length = min(len(left), len(right))
    return left[:length] > right[:length]


def _find_sdk(ep: Ep) -> str | None:
    """Return the version of an EP's SDK from the EP's package, or None if it is unknown."""
    attribute = SDK_ATTRIBUTES.get(ep.name)
    if attribute is None or ep.module is None:
        return None
    try:
        value = importlib.import_module(ep.module)
        for name in attribute.split("."):
            value = getattr(value, name)
    except Exception:  # noqa: BLE001 - a module may raise anything while it is imported
        return None
    return str(value)


def _read_version(text: str) -> tuple[int, ...]:
    found = re.search(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split(".")[:_NUMBERS])) if found is not None else ()
