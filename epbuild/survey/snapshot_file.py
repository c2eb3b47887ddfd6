"""The file of a snapshot: facts, stats and digests of files, steps.

    length | facts and the sizes of the sections | stats, some hundred files in each | digests, likewise | steps

All of it is what `marshal` writes: it is read back by the Python that wrote it, from a folder of this user alone. Sections are only
parsed when they are needed.
"""

from __future__ import annotations

import marshal
import os

from epbuild.core.places import cache_root

TYPE_CHECKING = False  # as type checkers read it, without the import that would take longer than what is done here
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    PlainProblem = tuple[Any, ...]
    """A problem as `Problem.plain` has it: no class is needed to read it."""
    Stat = tuple[str, int, int, int, int]
    """A file, as seen from the recipe's folder, with its size, its mtime and ctime in nanoseconds, and its inode."""

PART = 500
"""How many files are read and compared at once, and written anew where one of them has changed. Any project has several times as many."""

UNREADABLE = (OSError, ValueError, EOFError, TypeError, LookupError, AttributeError)
"""What a snapshot raises that cannot be read, or is damaged, whenever that shows."""

PIECES = ".plan"
"""Ends the name of the file beside a snapshot that has its recipe in pieces."""

_LENGTH = 8  # bytes of the number that holds the length of a snapshot's head
_FOLDER = "looks"


class Facts:
    """What a snapshot holds beside its files and steps; no dataclass, whose import takes longer than what is done here."""

    identity: tuple[Any, ...]
    """Who took it, and of what."""
    recipe: str
    """The digest of the recipe's text, as `Recipe.digest`."""
    environment: Sequence[tuple[str, str | None]]
    """The variables that were read, with their values' digests; of those that decide where things are, the values."""
    absent: Sequence[str]
    """Files that would have changed the answer, and were not there."""
    links: Sequence[tuple[str, str]]
    """The links on the way to the files, with what each holds."""
    view: tuple[str, str]
    """What decides how files are called in messages: how the recipe was named, and from where."""
    drivers: Sequence[tuple[Any, str]]
    """The drivers that an EP's output may depend on, as `core.host.driver_version` takes them, with their versions."""
    lock: str
    """`none`, `held` or `doubted`: whether everything was as the recipe's lock has it."""
    warnings: Sequence[PlainProblem]
    steps: int
    """How many steps there are."""
    unsettled: Sequence[int]
    """The numbers of the actions that were not current, or have to be looked at in any case."""
    shared: int
    """How many files, the first ones, concern everything: the recipe's, toolchains', epbuild's own."""
    fresh: Sequence[int]
    """The numbers of the files whose times could not be trusted: their contents are looked at."""

    def __init__(self, **facts: Any) -> None:
        """All of them. Raises ValueError where one is missing."""
        if facts.keys() != Facts.__annotations__.keys():
            raise ValueError(facts.keys())
        vars(self).update(facts)


class Snapshot:
    """A snapshot that was read back."""

    def __init__(self, facts: Facts, data: memoryview, sizes: Sequence[int]) -> None:
        self.facts = facts
        self.changed: list[int] = []
        """The numbers of the files that are not as they were."""
        self.stats: dict[int, Stat] = {}
        """The stats, as they are now, of files that were touched or fresh, and hold what they held."""
        self._sections: list[memoryview] = []
        for size in sizes:
            self._sections.append(data[:size])
            data = data[size:]
        self._count = len(sizes) // 2
        self._parsed: dict[int, Any] = {}

    @property
    def parts(self) -> Sequence[memoryview]:
        """The stats of all files, as marshalled lists."""
        return self._sections[: self._count]

    @property
    def steps(self) -> Any:
        """What was written of the steps."""
        return self._parse(2 * self._count)

    def stat(self, number: int) -> Stat:
        """A file's name, and what its stat was."""
        part, place = divmod(number, PART)
        found: Stat = self._parse(part)[place]
        return found

    def digest(self, number: int) -> bytes | None:
        """The SHA-256 of the content that a file had, if it is known."""
        part, place = divmod(number, PART)
        found: bytes = self._parse(self._count + part)[place]
        return found or None

    def files(self) -> tuple[list[Stat], list[bytes]]:
        """The stats of all files as they are known now, and their digests."""
        stats = [stat for part in range(self._count) for stat in self._parse(part)]
        for number, stat in self.stats.items():
            stats[number] = stat
        return stats, [digest for part in range(self._count) for digest in self._parse(self._count + part)]

    def refresh(self, place: str) -> None:
        """Write it again, with the stats as they are known now."""
        sections = list(self._sections)
        for part in {number // PART for number in self.stats}:
            stats = self._parse(part)
            sections[part] = memoryview(
                marshal.dumps([self.stats.get(part * PART + number, stat) for number, stat in enumerate(stats)])
            )
        _write(place, self.facts, sections)

    def _parse(self, section: int) -> Any:
        if section not in self._parsed:
            self._parsed[section] = marshal.loads(self._sections[section])  # noqa: S302 - as trusted as the program
        return self._parsed[section]


def place_of(recipe: str, settings: Sequence[str], selection: Sequence[str]) -> str | None:
    """The file of the snapshot of a recipe, read with `settings` (the texts of `--set`), of the steps that match `selection`.

    None where this user has no place for it.
    """
    root = cache_root()
    asked = "\0".join(["", *settings, "", *selection])
    return None if root is None else os.path.join(root, _FOLDER, f"{_name(os.path.realpath(recipe))}-{_name(asked)}")  # noqa: PTH118


def read(place: str) -> Snapshot:
    """The snapshot in a file. Raises one of `UNREADABLE` for what is none."""
    data = memoryview(read_own(place))
    begin = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
    facts, sizes = marshal.loads(data[_LENGTH:begin])  # noqa: S302
    if len(data) != begin + sum(sizes):
        raise ValueError
    return Snapshot(Facts(**facts), data[begin:], sizes)


def read_own(place: str) -> bytes:
    """The content of a file that this user alone may write. Raises OSError, and ValueError for any other: a cache may be shared."""
    with open(place, "rb") as file:  # noqa: PTH123
        seen = os.fstat(file.fileno())
        if hasattr(os, "getuid") and (seen.st_uid != os.getuid() or seen.st_mode & 0o022):
            raise ValueError(place)
        return file.read()


def write_own(place: str, content: bytes) -> None:
    """Write a file for its owner alone, in a folder for this user alone. Where that fails there is none: it only saves time."""
    from pathlib import Path

    from epbuild.core.atomic import write_file

    try:
        Path(place).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The digest of a short secret reveals it to all who can try every one.
        write_file(Path(place), content, durable=False, mode=0o600)
    except OSError:
        return


def write(
    place: str, facts: Facts, stats: list[Stat], digests: list[bytes], steps: Any, same: Mapping[int, memoryview] | None = None
) -> None:
    """Write a snapshot; `digests` has the SHA-256 of each file, or nothing. Where that fails there is none.

    `same` has the parts of the stats, by their numbers, that are as they were written before.
    """
    starts, known = range(0, len(stats), PART), same or {}
    parts = [known.get(start // PART) or marshal.dumps(stats[start : start + PART]) for start in starts]
    parts += [marshal.dumps(digests[start : start + PART]) for start in starts]
    _write(place, facts, [*parts, marshal.dumps(steps)])


def snapshots_of(recipe: str, root: str | None = None) -> list[str]:
    """The files of all snapshots of a recipe, in this user's cache or in that at `root`."""
    folder = os.path.join(root or cache_root() or "", _FOLDER)  # noqa: PTH118
    beginning = f"{_name(os.path.realpath(recipe))}-"
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names if name.startswith(beginning) and not name.endswith(PIECES)]  # noqa: PTH118


def forget(recipe: str) -> None:
    """Remove all snapshots of a recipe, so that the next run looks for itself. One that cannot be removed stays, and is no less right."""
    for place in snapshots_of(recipe):
        try:
            os.unlink(place)  # noqa: PTH108
        except OSError:
            return


def remove_older(root: str, time: float) -> None:
    """Remove the snapshots in the cache at `root` that were written before a `time`, in Unix seconds: they only save time."""
    folder = os.path.join(root, _FOLDER)  # noqa: PTH118
    try:
        for entry in list(os.scandir(folder)):
            if entry.stat().st_mtime < time:
                os.unlink(entry.path)  # noqa: PTH108
    except OSError:
        return


def _write(place: str, facts: Facts, sections: Sequence[bytes | memoryview]) -> None:
    head = marshal.dumps((vars(facts), tuple(map(len, sections))))
    write_own(place, b"".join([len(head).to_bytes(_LENGTH, "big"), head, *sections]))


def _name(text: str) -> str:
    """A short name for a text. What lies under it has what it is of: two texts of one name only take turns."""
    from binascii import crc32

    data = text.encode("utf-8", "surrogatepass")
    return f"{crc32(data):08x}{crc32(data[::-1]):08x}"
