"""Forms of a model's path: a file, a file of an installed package, or an address."""

from __future__ import annotations

import re
from typing import Final

PACKAGE: Final = "package:"
# What no name of an importable package holds, and a requirement with a version does.
RELEASE: Final = re.compile(rf"{PACKAGE}[^/]*[=<>~!@\[]")
# Two letters at least: `C://m.onnx` is a path.
SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def package_file(path: str) -> tuple[str, str] | None:
    """The installed Python package, and the file in it, that `package:<package>/<file>` names; None for a path of another form."""
    if not path.startswith(PACKAGE) or RELEASE.match(path):
        return None
    package, _, file = path.removeprefix(PACKAGE).partition("/")
    return package, file


def is_remote(path: str) -> bool:
    """Whether a model's path is an address, good or bad, and not a path."""
    return SCHEME.match(path) is not None or RELEASE.match(path) is not None
