"""Paths in a recipe of several files."""

from __future__ import annotations

import os.path
from pathlib import Path

from epbuild.core.errors import Position
from epbuild.core.safepath import links_on_the_way, real_path


def rebased(text: str, where: Position, main: Path) -> str:
    """A path that is written at `where`, relative to its own file, as a path relative to the folder of the `main` recipe."""
    if where.file == str(main):
        return text
    folder, home = Path(where.file).parent, main.parent
    if folder == home or Path(text).is_absolute():
        return text
    asked = folder / text
    try:
        names = [Path(os.path.relpath(asked, home)), Path(os.path.relpath(folder, home), text)]
    except ValueError:  # another drive of Windows
        names = []
    for name in names:
        if is_same(home / name, asked):
            return name.as_posix()
    return asked.absolute().as_posix()


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths name one file, and by the same links: where one goes through another link, it may lead elsewhere tomorrow."""
    links = [set(links_on_the_way([str(path.absolute())]).items()) for path in (one, other)]
    return links[0] == links[1] and real_path(one) == real_path(other)
