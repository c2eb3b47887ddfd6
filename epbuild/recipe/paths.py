"""Paths of files, models and libraries in a recipe."""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import Final

from epbuild.core.errors import Position, Problem
from epbuild.core.safepath import find_links, resolve_links
from epbuild.recipe.problems import WRONG_VALUE, quote_text

PACKAGE: Final = "package:"
# A requirement with a version contains one of these characters. Names of importable packages do not contain them.
RELEASE: Final = re.compile(rf"{PACKAGE}[^/]*[=<>~!@\[]")
# A scheme has at least two characters, because `C://m.onnx` is a path.
SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_LIBRARY = re.compile(r"[/\\]|\.(?:so(?:\.\d+)*|dll|dylib|pyd)$", re.IGNORECASE)


def rebase_path(text: str, where: Position, main: Path) -> str:
    """Convert a path in the file of `where` to a path relative to the folder of the main recipe, `main`."""
    if where.file == str(main):
        return text
    folder, home = Path(where.file).parent, main.parent
    if folder == home or Path(text).is_absolute():
        return text
    asked = folder / text
    try:
        names = [Path(os.path.relpath(asked, home)), Path(os.path.relpath(folder, home), text)]
    except ValueError:  # on another drive of Windows
        names = []
    for name in names:
        if is_same(home / name, asked):
            return name.as_posix()
    return asked.absolute().as_posix()


def use_slashes(path: str, where: Position, problems: list[Problem]) -> str:
    """Return a path with `/` between its parts. Add a problem if it has backslashes, which only Windows reads as separators."""
    if "\\" not in path:
        return path
    portable = path.replace("\\", "/")
    message, hint = f"the path {quote_text(path)} contains a backslash", f"Write {quote_text(portable)}."
    problems.append(Problem(WRONG_VALUE, message, where, hint))
    return portable


def is_same(one: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file through the same links.

    If the links differ, the paths may lead to different files later.
    """
    links = [set(find_links([str(path.absolute())]).items()) for path in (one, other)]
    return links[0] == links[1] and resolve_links(one) == resolve_links(other)


def find_package_file(path: str) -> tuple[str, str] | None:
    """Return the package and the file in `package:<package>/<file>`, or None for any other path."""
    if not path.startswith(PACKAGE) or RELEASE.match(path):
        return None
    package, _, file = path.removeprefix(PACKAGE).partition("/")
    return package, file


def is_remote(path: str) -> bool:
    """Return whether a model's path is an address, valid or not."""
    return SCHEME.match(path) is not None or RELEASE.match(path) is not None


def is_library_path(text: str) -> bool:
    """Return whether a text is the path of a shared library rather than the name of a Python package.

    A path contains a folder or ends with the suffix of a library.
    """
    return _LIBRARY.search(text) is not None
