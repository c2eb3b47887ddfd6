"""Names that every platform has for a file. Windows has the fewest, and what is built on Linux is often run there."""

from __future__ import annotations

import re

# From "Naming Files, Paths, and Namespaces" in the documentation of Windows. Under the name of a device Windows opens that, whatever
# follows the first dot.
_DEVICE = r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]) *(?:\..*)?"
_UNPORTABLE = re.compile(rf"{_DEVICE}|.*[. ]|.*[<>:\"|?*\\\x00-\x1f].*", re.IGNORECASE | re.DOTALL)
_IS_DEVICE = re.compile(_DEVICE, re.IGNORECASE | re.DOTALL)


def is_device(name: str) -> bool:
    """Whether Windows takes the last part of a path for a device."""
    return _IS_DEVICE.fullmatch(name) is not None


def unportable(path: str) -> str | None:
    """The first part of a POSIX path that not every platform has as the name of a file or a folder."""
    return next((name for name in path.split("/") if _UNPORTABLE.fullmatch(name)), None)
