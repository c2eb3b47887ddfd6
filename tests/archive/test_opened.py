"""Opened archives and images: all files exist until the end of the block, none remain, and damage is reported."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import re
import shutil
import sys
import tarfile
import tempfile
import time
import tracemalloc
from collections import namedtuple
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from epbuild.archive.formats import ArchiveName
from epbuild.archive.members import UNLISTED, CannotUnpack, UnlistedMembers, UnsoundArchive
from epbuild.archive.opened import open_artifact
from epbuild.core.errors import EnvironmentFailure, EpbuildError, NothingToVerify, Problem
from tests.archive.packing import FILES, archived, compressed, files_below, with_manifest, write_image_layout

MIB = 1 << 20
FORMS: tuple[ArchiveName, ...] = get_args(ArchiveName)
both_forms = pytest.mark.parametrize("form", FORMS)
every_form = pytest.mark.parametrize("form", [*FORMS, "deflated", "oci", "oci+zstd"])

segments = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40).filter(
    lambda text: text not in (".", "..")
)
names = st.lists(segments, min_size=1, max_size=3).map("/".join)
PLAIN = r"[a-z0-9_-]{4,12}\.bin"
plain = st.from_regex(PLAIN, fullmatch=True)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of temporary files. Fail if a file remains in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def made(form: str, files: Mapping[str, bytes], folder: Path) -> Path:
    if form.startswith("oci"):
        return write_image_layout(files, folder / "image", compressed=form == "oci+zstd")
    if form == "deflated":
        (folder / "a.zip").write_bytes(archived("zip", files, 6))
        return folder / "a.zip"
    path = folder / f"a.{form}"
    path.write_bytes(archived(form, files))  # type: ignore[arg-type]
    return path


def files_in(path: Path, unlisted: UnlistedMembers = UNLISTED) -> dict[str, bytes]:
    with open_artifact(path, unlisted=unlisted) as received:
        return files_below(received.place)


@every_form
def test_opened_archive_has_all_files(form: str, tmp_path: Path) -> None:
    assert files_in(made(form, FILES, tmp_path)) == FILES


@both_forms
@given(files=st.dictionaries(names | plain, st.binary(max_size=600), max_size=5))
@example(files={"a": b"1", "A": b"2"})
@example(files={"nul.txt": b""})
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_files_with_any_names_survive_or_cause_one_error(form: ArchiveName, files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = made(form, files, Path(folder))
        told = ""
        try:
            assert files_in(path) == files
        except (UnsoundArchive, CannotUnpack) as error:
            told = str(error).replace(str(path), "")
        assert not told or not all(re.fullmatch(PLAIN, name) for name in files)
        assert told.isprintable()
        assert folder not in told
        assert list(Path(folder).iterdir()) == [path]


@pytest.mark.parametrize("packed_as", [".", "top"])
def test_archive_made_by_tar_is_read(packed_as: str, tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(data)
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form, pax_headers={"comment": "of all members"}) as archive:
            archive.add(tmp_path / "folder", packed_as)
        path = tmp_path / "theirs.tar.zst"
        path.write_bytes(compressed(file.getvalue()))
        assert files_in(path) == {(Path(packed_as) / name).as_posix(): data for name, data in FILES.items()}


@pytest.mark.parametrize("name", ["folder", "folder/manifest.json", "folder/m.onnx", "notes", "gone"])
def test_path_that_is_not_an_archive_is_opened_unchanged(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for file in ("folder/manifest.json", "folder/m.onnx", "notes"):
        (tmp_path / file).write_bytes(b"{}")
    with open_artifact(tmp_path / name) as received:
        assert (received.place, received.unpacked, received.shown("as it is")) == (tmp_path / name, False, "as it is")


def test_archive_is_recognized_by_its_content_and_not_its_name(tmp_path: Path) -> None:
    path = made("tar.zst", FILES, tmp_path)
    assert files_in(path.rename(tmp_path / "download")) == FILES


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a.zip", "does not start with the header of an archive"),
        ("a.tar.zst", "does not start with the header of an archive"),
        ("a.tar.gz", "is not a .zip or .tar.zst"),
    ],
)
def test_fake_archive_is_a_usage_error(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"not at all")
    with pytest.raises(NothingToVerify, match=why) as error, open_artifact(tmp_path / name):
        pass
    assert (error.value.exit_code, error.value.problems[0].code) == (2, "EPB600")


@every_form
@pytest.mark.parametrize("raised", [KeyboardInterrupt(), RuntimeError("a mistake"), OSError(errno.EIO, "no")])
def test_temporary_folder_is_removed_after_any_end(form: str, raised: BaseException, tmp_path: Path, temporary: Path) -> None:
    path = made(form, FILES, tmp_path)
    with pytest.raises(type(raised)), open_artifact(path) as received:  # noqa: PT012 - the test is about the block
        assert received.place.parent == temporary
        raise raised
    assert list(temporary.iterdir()) == []


def test_messages_never_name_the_temporary_folder(tmp_path: Path) -> None:
    path = made("zip", FILES, tmp_path)
    title = path.as_posix()
    with pytest.raises(EpbuildError) as error, open_artifact(path) as received:  # noqa: PT012 - the test is about the block
        inside = str(received.place / "m_ctx.onnx")
        assert received.shown(f"Load model from {inside} failed") == f"Load model from {title}{os.sep}m_ctx.onnx failed"
        assert received.shown(f"cut off: {str(received.place)[:-3]}") == f"cut off: {title}"
        assert received.shown(json.dumps(inside)) == json.dumps(f"{title}{os.sep}m_ctx.onnx")
        raise EpbuildError(Problem("EPB602", f"{inside} is not whole", Path(inside), f"Look at {inside}."))
    assert str(received.place) not in str(error.value.problems[0])
    assert str(error.value.problems[0]).replace(os.sep, "/").count(title) == 3
    with pytest.raises(OSError, match=r"a\.zip") as failure, open_artifact(path) as received:
        (received.place / "gone").read_bytes()
    assert str(failure.value.filename).startswith(title)


@both_forms
def test_archive_truncated_anywhere_is_damaged(form: ArchiveName, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    whole = archived(form, with_manifest(FILES))
    for size in {*random.Random(1).sample(range(4, len(whole)), 120), *range(len(whole) - 30, len(whole))}:
        path.write_bytes(whole[:size])
        with pytest.raises(UnsoundArchive) as error:
            files_in(path)
        [problem] = error.value.problems
        assert (problem.code, problem.where, error.value.exit_code) == ("EPB619", path, 1)


@pytest.mark.gate
def test_flipped_byte_in_zstd_data_is_detected_or_harmless(tmp_path: Path) -> None:
    files = with_manifest(FILES)
    path, whole = tmp_path / "a.tar.zst", archived("tar.zst", files)
    noticed = 0
    for place in range(4, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            # Some bits have another valid spelling: a larger window, or another place with the same zeros. The checksum decides.
            assert files_in(path) == files
        except UnsoundArchive:
            noticed += 1
    assert noticed > 0.95 * len(whole)


@pytest.mark.slow
def test_flipped_byte_in_a_zip_archive_is_detected_or_harmless(tmp_path: Path) -> None:
    files = with_manifest(FILES)
    path, whole = tmp_path / "a.zip", archived("zip", files)
    directory = whole.index(b"PK\x01\x02")
    noticed = 0
    for place in {*range(4, 40), *random.Random(3).sample(range(4, directory), 100), *range(directory, len(whole))}:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            found = files_in(path)
        except UnsoundArchive:
            noticed += 1
        else:
            # The manifest reveals a missing member. No byte differs.
            assert found.items() <= files.items(), place
    assert noticed > 200


def test_damaged_member_is_named(tmp_path: Path) -> None:
    path, whole = tmp_path / "a.zip", archived("zip", FILES)
    path.write_bytes(whole.replace(b"nine", b"mine"))
    with pytest.raises(UnsoundArchive) as error:
        files_in(path)
    told = str(error.value)
    assert told == f"{path}: the member 'modèles/größe.bin' is damaged: bad CRC-32. Copy or download it again. [EPB619]"


def test_archive_with_a_malformed_end_is_refused(tmp_path: Path) -> None:
    import zstandard

    path = tmp_path / "a.tar.zst"
    tar = zstandard.ZstdDecompressor().stream_reader(archived("tar.zst", FILES)).read()
    for wrong in (
        tar + b"more",
        tar.rstrip(b"\0") + bytes(-len(tar.rstrip(b"\0")) % 512),
        tar[: len(tar) // 1024 * 512],
        b"",
        b"x" * 512,
    ):
        path.write_bytes(compressed(wrong))
        with pytest.raises(UnsoundArchive, match="EPB619"):
            files_in(path)


@both_forms
def test_opening_a_large_archive_needs_little_memory(form: ArchiveName, tmp_path: Path) -> None:
    peaks = []
    for size in (4 * MIB, 64 * MIB):
        path = made(form, with_manifest({"weights": random.Random(5).randbytes(MIB) * (size // MIB)}), tmp_path)
        tracemalloc.start()
        with open_artifact(path) as received:
            assert (received.place / "weights").stat().st_size == size
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2 * MIB < 12 * MIB


@both_forms
def test_compressed_zeros_are_refused_unless_a_manifest_lists_the_file(form: ArchiveName, tmp_path: Path) -> None:
    little = UnlistedMembers(MIB, 0)
    files = {"zeros": bytes(2 * MIB)}
    assert files_in(made(form, with_manifest(files), tmp_path), little)["zeros"] == files["zeros"]
    # An output that was packed inside another folder keeps its manifest there.
    below = {f"top/{name}": data for name, data in with_manifest(files).items()}
    assert files_in(made("zip", below, tmp_path), little)["top/zeros"] == files["zeros"]
    with pytest.raises(UnsoundArchive, match=r"'zeros' is too large for such a small archive: 2,097,152 bytes.*EPB631"):
        files_in(made(form, files, tmp_path), little)


@both_forms
def test_insufficient_disk_space_is_reported_before_unpacking(
    form: ArchiveName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(form, FILES, tmp_path)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1000, 0, 1000))
    with pytest.raises(CannotUnpack, match=r"only 1,000 are free.*TMPDIR") as error:
        files_in(path)
    assert (error.value.exit_code, error.value.problems[0].code) == (3, "EPB638")


def test_progress_is_reported_after_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made("zip", {"weights": bytes(4 * MIB)}, tmp_path)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    said: list[str] = []
    with open_artifact(path, said.append):
        pass
    assert said == []
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks))  # one second for each piece
    with open_artifact(path, said.append):
        pass
    assert said == [f"unpacking {path.as_posix()}: {size}" for size in ("262.1 kB", "2.9 MB")]


def test_missing_zstd_package_is_reported_with_an_install_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made("tar.zst", FILES, tmp_path)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install 'epbuild\[archive\]'") as error:
        files_in(path)
    assert error.value.problems[0].code == "EPB425"
    assert files_in(made("zip", FILES, tmp_path)) == FILES
