"""Differing bytes of two files, and their meanings: times, padding, texts.

The patterns occur in files of EPs (docs/internals/facts.md). One or two bytes never suffice to recognize a pattern.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.safepath import open_regular
from epbuild.diff.file_parts import FilePart, fill_gaps, split_file
from epbuild.onnxfile.read.payload import Payload

if TYPE_CHECKING:
    from numpy import intp
    from numpy.typing import NDArray

Meaning = Literal["timestamp", "padding", "text", "size", "missing", "added", "bytes"]
"""Meaning of a difference.

`timestamp`: a date and time, as text. `padding`: unset 16-bit slots between used slots. `text`: a short text. `size`: the
number of bytes. `missing`, `added`: a part that only one file has. `bytes`: anything else.
"""

_CHUNK = 1 << 20
_MAX_GAP = 64  # Differing bytes that are at most this far apart form one run.
_MAX_RUN_LENGTH = 4096
_MAX_RUNS = 4096  # Approximate limit of runs to examine in one file. Padding never has more runs.
_CONTEXT_BYTES = 32  # Number of bytes to read before and after a run, enough for any timestamp.
_MAX_TEXT_LENGTH = 256
_MAX_SHOWN_BYTES = 16
_TIMESTAMP = re.compile(rb"(?<![0-9])[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?![0-9])(?: UTC|Z)?")
_SLOT_BYTES = 2  # Bytes of a half-precision number.
_MIN_PADDING = 4  # Minimum number of padding bytes in one part. Fewer bytes may match the pattern by chance.


class DifferingBytes(Struct, frozen=True):
    """Differing bytes with one meaning in one part of a file: `count` bytes in `runs` ranges.

    `offset` is the position of the first byte in the old file. `part` is empty outside named parts. `old` and `new` show
    the first difference: the texts, the sizes, or a few bytes in quotes or hexadecimal. `old` or `new` is None if that file
    lacks the part.
    """

    meaning: Meaning
    """`timestamp`: a date and time as text. `padding`: unset 16-bit slots. `text`: a short text. `size`: the number of bytes.
    `missing`, `added`: a part that only one file has. `bytes`: anything else."""
    part: str
    """Part of the file; empty outside named parts."""
    offset: int
    """Position of the first byte that differs."""
    count: int
    """Number of bytes that differ."""
    runs: int = 1
    """Number of ranges of bytes that differ."""
    old: str | None = None
    """First text, size or bytes that differ, in the old file."""
    new: str | None = None
    """First text, size or bytes that differ, in the new file."""


class FileDifference(Struct, frozen=True):
    """Difference between a stored file and its rebuilt version.

    `offset` is the position of the first differing byte. `count` is the number of differing bytes, including bytes that only the larger
    file has.
    """

    file: str
    """Name of the file."""
    old_size: int | None
    """Bytes of the stored file; null if it does not exist."""
    new_size: int | None
    """Bytes of the rebuilt file; null if it does not exist."""
    offset: int = 0
    """Position of the first byte that differs."""
    count: int = 0
    """Number of bytes that differ, including bytes that only the larger file has."""
    found: tuple[DifferingBytes, ...] = ()
    """Differences by part and meaning; empty if parts were not compared."""

    @property
    def meanings(self) -> frozenset[Meaning]:
        """Meanings of the differences; empty if parts were not compared."""
        return frozenset(item.meaning for item in self.found)


def compare_bytes(name: str, old: Path, new: Path) -> FileDifference | None:
    """Compare two files in constant memory. Return their difference, or None if they are equal. Raises OSError."""
    whole = Payload.whole(old), Payload.whole(new)
    offset, count = _measure_extent(*whole)
    if not count:
        return None
    sizes = whole[0].size, whole[1].size
    found = _compare_parts(split_file(old), split_file(new), old, new)
    return FileDifference(name, *sizes, offset, count, tuple(found))


def _measure_extent(old: Payload, new: Payload) -> tuple[int, int]:
    first, count = min(old.size, new.size), abs(old.size - new.size)
    with open_regular(old.path) as before, open_regular(new.path) as after:
        for at, left, right in _read_chunks(old, new, before, after):
            if left != right:
                positions = _find_positions(left, right)
                first = min(first, at + int(positions[0]))
                count += len(positions)
    return first, count


def _compare_parts(before: tuple[FilePart, ...], after: tuple[FilePart, ...], old: Path, new: Path) -> list[DifferingBytes]:
    extents = [[(part.bytes.start, part.bytes.size) for part in found] for found in (before, after)]
    if extents[0] == extents[1] and old.stat().st_size == new.stat().st_size:
        # Pair parts by position, not by title: an EP can name a member of its archive after the member's content.
        pairs = list(zip(fill_gaps(old, before), fill_gaps(new, after), strict=True))
    else:
        pairs = _pair_parts(before, after)
    sums: dict[tuple[str, Meaning], DifferingBytes] = {}
    budget = [_MAX_RUNS]
    with open_regular(old) as left, open_regular(new) as right:
        inside = (item for one, other in pairs for item in _compare_part(one, other, left, right, budget))
        for item in itertools.chain(
            _find_unpaired("missing", before, pairs, 0), _find_unpaired("added", after, pairs, 1), inside
        ):
            key = (item.part, item.meaning)
            first = sums.get(key, replace(item, count=0, runs=0))
            sums[key] = replace(first, count=first.count + item.count, runs=first.runs + item.runs)
    found = (
        replace(item, meaning="bytes") if item.meaning == "padding" and item.count < _MIN_PADDING else item
        for item in sums.values()
    )
    # If all named parts are equal, the bytes between the parts differ.
    return sorted(found, key=lambda item: item.offset) or [DifferingBytes("bytes", "", 0, 0)]


def _pair_parts(before: tuple[FilePart, ...], after: tuple[FilePart, ...]) -> list[tuple[FilePart, FilePart]]:
    """Return pairs of parts with the same title. Parts with the same title are paired in order."""
    theirs = dict(zip(_number_titles(after), after, strict=True))
    return [(part, theirs[key]) for key, part in zip(_number_titles(before), before, strict=True) if key in theirs]


def _number_titles(found: tuple[FilePart, ...]) -> list[tuple[str, int]]:
    seen = Counter[str]()
    keys = []
    for part in found:
        seen[part.title] += 1
        keys.append((part.title, seen[part.title]))
    return keys


def _find_unpaired(
    meaning: Literal["missing", "added"], found: tuple[FilePart, ...], pairs: Sequence[tuple[FilePart, FilePart]], side: int
) -> Iterator[DifferingBytes]:
    paired = {id(pair[side]) for pair in pairs}
    for part in found:
        if part.title and id(part) not in paired:
            size = _format_size(part.bytes.size)
            shown = (size, None) if meaning == "missing" else (None, size)
            yield DifferingBytes(meaning, part.title, part.bytes.start, part.bytes.size, 1, *shown)


def _compare_part(old: FilePart, new: FilePart, before: BinaryIO, after: BinaryIO, budget: list[int]) -> Iterator[DifferingBytes]:
    """Yield the differences in a part that both files have.

    `budget[0]` is the remaining number of runs to examine. Each examined run lowers it by one.
    """
    title, start = old.title, old.bytes.start
    texts = [_read_short_text(payload, file) for payload, file in ((old.bytes, before), (new.bytes, after))]
    if old.bytes.size != new.bytes.size:
        extent = abs(old.bytes.size - new.bytes.size)
        shown = texts if None not in texts else [_format_size(part.bytes.size) for part in (old, new)]
        yield DifferingBytes("text" if None not in texts else "size", title, start, extent, 1, *shown)
        return
    for at, left, right in _read_chunks(old.bytes, new.bytes, before, after):
        if left == right:
            continue
        positions = _find_positions(left, right)
        if budget[0] <= 0:
            yield DifferingBytes("bytes", title, start + at + int(positions[0]), len(positions))
            continue
        for run in _group_runs(positions):
            budget[0] -= 1
            for item in _split_run(at + run, old, new, before, after):
                if title and None not in texts and item.meaning == "bytes":
                    yield replace(item, meaning="text", old=texts[0], new=texts[1])
                else:
                    yield item


def _group_runs(positions: NDArray[intp]) -> list[NDArray[intp]]:
    """Group positions that are close together into runs of at most 4096 bytes."""
    import numpy

    cuts = numpy.flatnonzero((numpy.diff(positions) > _MAX_GAP) | (numpy.diff(positions // _MAX_RUN_LENGTH) > 0)) + 1
    return [run for run in numpy.split(positions, cuts) if len(run)]


def _split_run(run: NDArray[intp], old: FilePart, new: FilePart, before: BinaryIO, after: BinaryIO) -> Iterator[DifferingBytes]:
    """Yield the differences in a run: one for each timestamp, and one for all other bytes."""
    around = max(0, int(run[0]) - _CONTEXT_BYTES)
    end = min(old.bytes.size, int(run[-1]) + 1 + _CONTEXT_BYTES)
    left, right = (_read_part(part.bytes, file, around, end) for part, file in ((old, before), (new, after)))
    rest = run - around
    for stamp in _find_timestamps(left, right):
        inside = (stamp.start() <= rest) & (rest < stamp.end())
        if inside.any():
            shown = (text[stamp.start() : stamp.end()].decode("ascii") for text in (left, right))
            offset = old.bytes.start + around + int(rest[inside][0])
            yield DifferingBytes("timestamp", old.title, offset, int(inside.sum()), 1, *shown)
            rest = rest[~inside]
    if len(rest):
        meaning: Meaning = "padding" if _is_padding(left, right, rest, around) else "bytes"
        first = int(rest[0])
        last = min(int(rest[-1]) + 1, first + _MAX_SHOWN_BYTES)
        offset = old.bytes.start + around + first
        yield DifferingBytes(meaning, old.title, offset, len(rest), 1, *_format_bytes(left[first:last], right[first:last]))


def _find_timestamps(left: bytes, right: bytes) -> Iterator[re.Match[bytes]]:
    """Yield matches of timestamps that differ between the texts, but have the same position."""
    theirs = {match.span() for match in _TIMESTAMP.finditer(right)}
    for match in _TIMESTAMP.finditer(left):
        other = right[match.start() : match.end()]
        if match.span() in theirs and match[0] != other and _is_time(match[0]) and _is_time(other):
            yield match


def _is_time(text: bytes) -> bool:
    try:
        datetime.strptime(text[:19].decode("ascii").replace("T", " "), "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return False
    return True


def _is_padding(left: bytes, right: bytes, positions: NDArray[intp], around: int) -> bool:
    """Return whether all positions are in uninitialized padding.

    Padding occupies odd 16-bit slots. The slot before padding is used, and equal in both texts.
    """
    import numpy

    slots = (positions + around) // _SLOT_BYTES
    used = (slots - 1) * _SLOT_BYTES - around
    # Even slots hold the lower halves of 32-bit numbers. If an even slot differs, a number differs.
    if (slots % 2 == 0).any() or used[0] < 0:
        return False
    before, after = (numpy.frombuffer(text, numpy.uint8) for text in (left, right))
    equal = (before[used] == after[used]) & (before[used + 1] == after[used + 1])
    return bool((equal & ((before[used] != 0) | (before[used + 1] != 0))).all())


def _format_bytes(left: bytes, right: bytes) -> tuple[str, str]:
    """Format a few bytes of each file: in quotes if all of them are printable text, or else in hexadecimal."""
    texts = [piece.decode("latin-1") for piece in (left, right)]
    if all(text.isascii() and text.isprintable() for text in texts):
        return f"'{texts[0]}'", f"'{texts[1]}'"
    return left.hex(" "), right.hex(" ")


def _read_short_text(payload: Payload, file: BinaryIO) -> str | None:
    """Return the text of a part, or None if the part is not one short line of printable text."""
    if payload.size > _MAX_TEXT_LENGTH:
        return None
    try:
        text = _read_part(payload, file, 0, payload.size).decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _read_chunks(old: Payload, new: Payload, before: BinaryIO, after: BinaryIO) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield chunks of both payloads with their offset, up to the end of the shorter payload.

    A chunk has at most 1 MiB.
    """
    size = min(old.size, new.size)
    for at in range(0, size, _CHUNK):
        end = min(at + _CHUNK, size)
        yield at, _read_part(old, before, at, end), _read_part(new, after, at, end)


def _find_positions(left: bytes, right: bytes) -> NDArray[intp]:
    import numpy

    return numpy.flatnonzero(numpy.frombuffer(left, numpy.uint8) != numpy.frombuffer(right, numpy.uint8))


def _read_part(payload: Payload, file: BinaryIO, start: int, end: int) -> bytes:
    file.seek(payload.start + start)
    data = file.read(end - start)
    if len(data) < end - start:
        raise OSError(f"{payload.path} was truncated while it was being read")
    return data


def _format_size(size: int) -> str:
    return f"{size:,} bytes"
