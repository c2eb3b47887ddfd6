"""Opening of received artifacts: archives and image layouts are unpacked."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epbuild.archive import oci
from epbuild.archive.formats import FORMATS, find_format
from epbuild.archive.members import UNLISTED, Members, UnlistedMembers, make_nothing_to_verify_error, make_unpack_error
from epbuild.archive.oci_layout import INDEX, LAYOUT
from epbuild.core.defaults import MANIFEST
from epbuild.core.errors import EpbuildError
from epbuild.core.safepath import is_folder, open_regular
from epbuild.core.shown import ProgressLines, discard_line, format_path

_PREFIX = "epbuild-unpacked-"
_ARCHIVES = tuple(f".{name}" for name in FORMATS)
_IMAGE = frozenset({LAYOUT, INDEX})
_PACKED = frozenset(f".{name.rpartition('.')[2]}" for name in FORMATS)
_OTHER_FORMATS = frozenset({".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z"})
_NO_ARCHIVES = frozenset({".onnx", ".json"})
_MARK_BYTES = 4

_Unpack = Callable[[Path, Members], None]


class OpenedArtifact(Struct, frozen=True):
    """Opened artifact. `place` is its path, or the temporary folder into which it was unpacked."""

    place: Path
    unpacked: bool = False
    shown: Callable[[str], str] = str
    """Function that replaces the temporary folder in a text with the path that the user gave."""

    def find_skipped(self) -> tuple[Path, ...]:
        """Return the archives and image layouts in the opened folder, which `open_artifact` does not unpack. Raises OSError.

        Hidden folders are not searched. Folders with a manifest are not searched either, as the manifest lists all files.
        """
        return () if self.unpacked else tuple(_find_packed(self.place))


@contextmanager
def open_artifact(
    path: Path, lines: ProgressLines = discard_line, unlisted: UnlistedMembers = UNLISTED
) -> Iterator[OpenedArtifact]:
    """Open the artifact at `path` during the block. Errors in the block name `path` instead of the temporary folder.

    `lines` receives the progress of slow work. Raises NothingToVerify (EPB600) for an archive in an unsupported format, and UnsoundArchive
    (EPB619, EPB631) for an archive that is damaged or could do harm. Also raises CannotUnpack (EPB638), and EnvironmentFailure (EPB425) if
    the zstd package is missing.
    """
    unpack = _find_unpacker(path)
    if unpack is None:
        yield OpenedArtifact(path)
        return
    title = path.as_posix()
    try:
        temporary = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise make_unpack_error(title, error.strerror or str(error)) from error
    with temporary as name:
        folder = Path(name)
        shown = _make_folder_replacer(folder, title)
        with _edit_errors(shown):
            try:
                unpack(path, Members(folder, title, _measure_packed_bytes(path), lines, unlisted))
            except OSError as error:
                raise make_nothing_to_verify_error(title, f"cannot be read: {error.strerror or error}") from error
            yield OpenedArtifact(folder, unpacked=True, shown=shown)


@contextmanager
def _edit_errors(edit: Callable[[str], str]) -> Iterator[None]:
    """Apply `edit` to the texts of errors that the block raises."""
    try:
        yield
    except EpbuildError as error:
        error.problems = tuple(
            replace(
                problem,
                message=edit(problem.message),
                where=Path(edit(str(problem.where))) if isinstance(problem.where, Path) else problem.where,
                hint=edit(problem.hint) if problem.hint is not None else None,
            )
            for problem in error.problems
        )
        raise
    except OSError as error:
        if isinstance(error.filename, str):
            error.filename = edit(error.filename)
        raise


def _find_unpacker(path: Path) -> _Unpack | None:
    """Return the function that unpacks `path`, or None if `path` is not an archive.

    Raises NothingToVerify if the file's name has an archive's suffix, but the content is not in a supported format.
    """
    try:
        if path.is_dir():
            # A folder with only one of the two files is not an image layout.
            return oci.unpack if all((path / name).is_file() for name in _IMAGE) else None
        if not path.is_file() or path.suffix in _NO_ARCHIVES:
            return None
        with open_regular(path) as file:
            archive_format = find_format(file.read(_MARK_BYTES))
    except (OSError, ValueError):
        return None  # the caller also reads the file, and reports the error
    if archive_format is not None:
        return archive_format.unpack
    if path.suffix.lower() in _PACKED:
        raise make_nothing_to_verify_error(
            path.as_posix(), "does not start with the header of an archive. Copy or download it again"
        )
    if path.suffix.lower() in _OTHER_FORMATS:
        forms = " or ".join(_ARCHIVES)
        raise make_nothing_to_verify_error(path.as_posix(), f"is not a {forms} archive: unpack it, and pass the folder")
    return None


def _measure_packed_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    blobs = path / "blobs" / "sha256"
    return sum(blob.stat().st_size for blob in blobs.iterdir()) if blobs.is_dir() else 0


def _find_packed(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise error

    for root, folders, names in os.walk(folder, onerror=fail) if is_folder(folder) else ():
        parent = Path(root)
        if MANIFEST in names:
            folders.clear()
        elif set(names) >= _IMAGE:
            yield parent
            folders.clear()
        else:
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (parent / name for name in sorted(names) if name.endswith(_ARCHIVES))


def _make_folder_replacer(folder: Path, title: str) -> Callable[[str], str]:
    """Return a function that replaces `folder` with `title` in texts.

    EPs may log the folder with links resolved, with other separators, or truncated within its last part.
    """
    spellings = {str(folder), str(folder.resolve()), format_path(folder)}
    spellings |= {text.replace("\\", "/") for text in spellings} | {text.replace("\\", "\\\\") for text in spellings}
    random_length = len(folder.name) - len(_PREFIX)
    truncated = {text[: len(text) - count] for text in spellings for count in range(random_length + 1)}
    longest_first = sorted(truncated, key=len, reverse=True)
    pattern = re.compile("|".join(f"{re.escape(text)}(?![A-Za-z0-9_])" for text in longest_first))
    return lambda text: pattern.sub(lambda match: title, text)
