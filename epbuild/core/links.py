"""Symbolic links on the way to files: which of them the system follows, and where each of them leads."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as type checkers read it, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable


def links_on_the_way(paths: Iterable[str]) -> dict[str, str]:
    """Every link that the system follows from the start of these paths to the files that they name, with what it holds.

    `..` after a link is the folder above the one that the link leads to, as the system takes it: nothing is shortened by name.
    """
    links: dict[str, str] = {}
    looked: set[str] = set()
    pending = list(paths)
    while pending:
        path = pending.pop()
        while path and path not in looked:
            looked.add(path)
            folder = os.path.dirname(path)  # noqa: PTH120 - pathlib takes longer, and 30,000 files may be asked for
            try:
                links[path] = os.readlink(path)  # noqa: PTH115
            except (OSError, ValueError):
                pass  # no link
            else:
                pending.append(os.path.join(folder, links[path]))  # noqa: PTH118
            path = folder
    return links
