"""What a file may be called on every platform, and what a path leads to. Windows has the fewest names."""

from __future__ import annotations

import os
import re
from pathlib import Path

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


def real_path(path: Path) -> Path:
    """`path` without links. A link that leads to itself stays, where `Path.resolve` raises RuntimeError before Python 3.13."""
    return Path(os.path.realpath(path))
