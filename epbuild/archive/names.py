"""Names that members of an archive may have, on every platform, each once."""

from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath

from epbuild.archive.refusal import harmful, quoted
from epbuild.core.safepath import BadReference, check_reference, is_device

_MOST_PLACES = 200_000
_MOST_PARTS = 64


class Names:
    """The names that the members of one archive have, as they come; `title` is the archive, for messages."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._taken: dict[str, tuple[str, bool]] = {}

    def file(self, name: str) -> str:
        """The POSIX path of a file below the folder. Raises UnsoundArchive (EPB631) for a name that it cannot have."""
        path = self._path(name, name)
        if self._claim(path, name, folder=False):
            return path
        raise harmful(self._title, name, "is there twice")

    def folder(self, name: str) -> None:
        """A folder that is a member itself, which those of files need not be. Raises UnsoundArchive (EPB631)."""
        if (path := name.rstrip("/")) not in ("", ".", "./."):
            self._claim(self._path(path, name), name, folder=True)

    def _path(self, path: str, name: str) -> str:
        try:
            path.encode()
            check_reference(path)
        except UnicodeEncodeError as error:
            raise harmful(self._title, name, "has a name that is not UTF-8") from error
        except BadReference as error:
            raise harmful(self._title, name, "is not named by a path below a folder, written with '/'") from error
        parts = PurePosixPath(path).parts
        if not parts or len(parts) > _MOST_PARTS or any(map(is_device, parts)):
            raise harmful(self._title, name, "has a name that not every platform has for a file")
        return "/".join(parts)

    def _claim(self, path: str, name: str, *, folder: bool) -> bool:
        """Whether the path is new; the folders that lead to it are its too."""
        above = [str(parent) for parent in PurePosixPath(path).parents][:-1]
        new = False
        for place, is_folder in (*((parent, True) for parent in reversed(above)), (path, folder)):
            key = _alike(place)
            new = key not in self._taken
            other, was_folder = self._taken.setdefault(key, (place, is_folder))
            if other != place:
                raise harmful(self._title, name, f"and {quoted(other)} are one where upper and lower case are the same")
            if was_folder != is_folder:
                raise harmful(self._title, name, f"makes a file and a folder of {quoted(place)}")
        if len(self._taken) > _MOST_PLACES:
            raise harmful(self._title, name, f"is one of more than {_MOST_PLACES:,} files and folders")
        return new


def _alike(path: str) -> str:
    """What names have in common that some file system takes for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
