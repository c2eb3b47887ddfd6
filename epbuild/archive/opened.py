"""Lends what was received as a folder: an archive or an image layout unpacked into one that goes away again, anything else as it is."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from epbuild.archive import zip_reader as zipped
from epbuild.archive.members import MANIFEST, Members, Say
from epbuild.archive.refusal import cannot_unpack, nothing
from epbuild.core.errors import EpbuildError

Form = Literal["zip", "tar.zst", "image"]

_PREFIX = "epbuild-unpacked-"
_ARCHIVES = (".zip", ".tar.zst")
_IMAGE = frozenset({"oci-layout", "index.json"})
_PACKED = frozenset({".zip", ".zst"})
_OTHERS = frozenset({".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z"})
_NEVER = frozenset({".onnx", ".json"})
_MARK_BYTES = 4
_ZSTD_MARK = b"\x28\xb5\x2f\xfd"  # of a frame


@dataclass(frozen=True)
class Lent:
    """What lies at a path: `place` is that path, or the folder with what was unpacked from it, in which case `form` says what it was."""

    place: Path
    form: Form | None = None
    told: Callable[[str], str] = str
    """A text in which the folder goes by the name of what was unpacked: that folder is nobody's business, and soon gone."""

    def passed_over(self) -> tuple[Path, ...]:
        """The archives and image layouts in a folder that was there: they are not opened with it. Raises OSError.

        Hidden folders are not entered, nor those with a manifest, whose files are all accounted for.
        """
        return tuple(_packed_below(self.place)) if self.form is None else ()


@contextmanager
def opened(path: Path, say: Say = lambda text: None) -> Iterator[Lent]:
    """Lend what lies at `path` for the block; `say` is told how far it is, if it takes long. Errors of the block are told by `path` too.

    Raises NothingToVerify (EPB600) for an archive of another form, UnsoundArchive (EPB619, EPB631) for one that is damaged or could do
    harm, CannotUnpack (EPB638), and EnvironmentFailure (EPB425) when the package for zstd is missing.
    """
    form = _form(path)
    if form is None:
        yield Lent(path)
        return
    title = path.as_posix()
    try:
        temporary = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise cannot_unpack(title, error.strerror or str(error)) from error
    with temporary as name:
        folder = Path(name)
        told = _teller(folder, title)
        try:
            try:
                _unpack(path, form, folder, title, say)
            except OSError as error:
                raise nothing(title, f"cannot be read: {error.strerror or error}") from error
            yield Lent(folder, form, told)
        except EpbuildError as error:
            error.problems = tuple(
                replace(
                    problem,
                    message=told(problem.message),
                    where=Path(told(str(problem.where))) if isinstance(problem.where, Path) else problem.where,
                    hint=told(problem.hint) if problem.hint is not None else None,
                )
                for problem in error.problems
            )
            raise
        except OSError as error:
            if isinstance(error.filename, str):
                error.filename = told(error.filename)
            raise


def _form(path: Path) -> Form | None:
    """What there is to unpack at a path; None: it is something else, or nothing. Raises NothingToVerify for what only looks like it."""
    try:
        if path.is_dir():
            # A folder that has both is one of another tool's, or the user's.
            return "image" if all((path / name).is_file() for name in _IMAGE) else None
        if not path.is_file() or path.suffix in _NEVER:
            return None
        with path.open("rb") as file:
            mark = file.read(_MARK_BYTES)
    except (OSError, ValueError):
        return None  # for whoever looks into it to say
    if mark in zipped.MARKS:
        return "zip"
    if mark == _ZSTD_MARK:
        return "tar.zst"
    if path.suffix.lower() in _PACKED:
        raise nothing(path.as_posix(), "is no archive: it does not begin as one does. Get it again")
    if path.suffix.lower() in _OTHERS:
        raise nothing(path.as_posix(), "is an archive of another form than .zip and .tar.zst: unpack it, and name the folder")
    return None


def _packed_below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for root, folders, names in os.walk(folder, onerror=refuse) if folder.is_dir() else ():
        here = Path(root)
        if MANIFEST in names:
            folders.clear()
        elif set(names) >= _IMAGE:
            yield here
            folders.clear()
        else:
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (here / name for name in sorted(names) if name.endswith(_ARCHIVES))


def _unpack(path: Path, form: Form, folder: Path, title: str, say: Say) -> None:
    if form == "image":
        from epbuild.archive.oci_reader import unpack_image

        blobs = path / "blobs" / "sha256"
        packed = sum(blob.stat().st_size for blob in blobs.iterdir()) if blobs.is_dir() else 0
        unpack_image(path, Members(folder, title, packed, say))
        return
    members = Members(folder, title, path.stat().st_size, say)
    if form == "zip":
        zipped.unpack_zip(path, members)
        return
    from epbuild.archive.tar_reader import unpack_tar

    with path.open("rb") as file:
        unpack_tar(file, members)


def _teller(folder: Path, title: str) -> Callable[[str], str]:
    """Puts `title` for `folder` in texts, which may have come from an EP: as it is, resolved, quoted, or cut off in its last part."""
    random = len(folder.name) - len(_PREFIX)
    written = {str(place) for place in (folder, folder.resolve())}
    written |= {text.replace("\\", "/") for text in written} | {text.replace("\\", "\\\\") for text in written}
    cut = sorted({text[: len(text) - count] for text in written for count in range(random + 1)}, key=len, reverse=True)
    pattern = re.compile("|".join(f"{re.escape(text)}(?![A-Za-z0-9_])" for text in cut))
    return lambda text: pattern.sub(lambda match: title, text)
