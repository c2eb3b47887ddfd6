"""Archives: every tool can read them, their bytes are the same on every machine, and writing takes little memory."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from epbuild.archive import formats as archives
from epbuild.archive import zip as zipped
from epbuild.archive.artifact import Artifact, Copy
from epbuild.archive.formats import FORMATS, ArchiveName, ByteSink, find_compressor, read_listed
from epbuild.archive.tar import write_tar
from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import DamagedBlob
from epbuild.core.digest import Blob, Write
from epbuild.core.errors import BuildError, EnvironmentFailure, StepId

MIB = 1 << 20
Form = ArchiveName | Literal["deflated"]
FORMS: tuple[Form, ...] = (*FORMATS, "deflated")
MANIFEST = json.dumps({"format": 1, "files": [], "recipe": "tiny-llm"}).encode()
PACKAGE_MANIFEST = json.dumps({"components": [], "additional_metadata": {"epbuild": {"format": 1, "files": []}}}).encode()
FILES = {
    "manifest.json": MANIFEST,
    "LICENSE": b"free",
    "npu/decode_ctx.onnx": b"\x08\x0a" * 700,
    "npu/prefill_QNN.bin": bytes(range(256)) * 40,
    "npu-2/empty": b"",
    "modèles/größe.bin": b"nine",
    "a" * 90 + "/" + "b" * 60 + "/" + "c" * 70: b"a long path that USTAR has room for",
    "a" * 90 + "/" + "b" * 190: b"and one that it has no room for",
}

segments = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1, max_size=130).filter(
    lambda text: text not in (".", "..")
)
paths = st.lists(segments, min_size=1, max_size=4).map("/".join)
around_a_block = st.sampled_from([0, 1, 511, 512, 513, 10_240]).map(bytes)
trees = st.dictionaries(paths, around_a_block | st.binary(max_size=3000), max_size=6)

every_form = pytest.mark.parametrize("form", FORMS)
needs_unzip = pytest.mark.skipif(not shutil.which("unzip"), reason="there is no unzip on this machine")
needs_tar = pytest.mark.skipif(
    not (shutil.which("tar") and shutil.which("zstd")), reason="there is no tar or no zstd on this machine"
)


def contents_of(files: Mapping[str, bytes]) -> list[Artifact]:
    return [
        Artifact(path, "manifest" if path.endswith("manifest.json") else "asset", len(data), hashlib.sha256(data).hexdigest())
        for path, data in files.items()
    ]


def write_archive(
    form: Form, contents: Sequence[Artifact], pour: Copy, destination: ByteSink, step: StepId | None = None
) -> Blob:
    """Write an archive of a form that recipes can name: a zip archive (stored or deflated), or a tar archive with zstd."""
    if form == "deflated":
        return archives.write_archive("zip", contents, pour, destination, level=6, step=step)
    return archives.write_archive(form, contents, pour, destination, step=step)


def pouring(files: Mapping[str, bytes], piece_bytes: int = MIB) -> Copy:
    """Return a writer that always passes the same buffer. The receiver must not keep a reference to it."""

    def pour(content: Artifact, write: Write) -> None:
        data, buffer = files[content.path], bytearray(piece_bytes)
        for start in range(0, len(data), piece_bytes):
            piece = data[start : start + piece_bytes]
            buffer[: len(piece)] = piece
            write(memoryview(buffer)[: len(piece)])
            buffer[:] = b"\xee" * piece_bytes

    return pour


def archived(form: Form, files: Mapping[str, bytes], piece_bytes: int = MIB) -> bytes:
    file = io.BytesIO()
    made = write_archive(form, contents_of(files), pouring(files, piece_bytes), file)
    assert made == Blob(hashlib.sha256(file.getvalue()).hexdigest(), len(file.getvalue()))
    return file.getvalue()


def untarred(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()


def read_back(form: Form, data: bytes) -> dict[str, bytes]:
    """Return the members in their order, as Python's own modules read them."""
    if form != "tar.zst":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {member.filename: archive.read(member) for member in archive.infolist()}
    with tarfile.open(fileobj=io.BytesIO(untarred(data))) as archive:
        return {member.name: file.read() for member in archive if (file := archive.extractfile(member)) is not None}


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(*command: str | Path, folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert done.returncode == 0, done.stdout + done.stderr


@every_form
@given(files=trees)
@example(files={"a" * 100: b"", "b" * 101: b"", "c/" + "d" * 100: b"", "e" * 155 + "/" + "f" * 100: b"", "g" * 156 + "/h": b""})
def test_files_with_any_names_and_sizes_survive_a_round_trip(form: Form, files: dict[str, bytes]) -> None:
    assert read_back(form, archived(form, files)) == files


@every_form
@given(files=trees, seed=st.randoms(use_true_random=False), piece_bytes=st.integers(1, 700))
def test_order_and_reading_of_files_do_not_change_the_archive(
    form: Form, files: dict[str, bytes], seed: random.Random, piece_bytes: int
) -> None:
    items = list(files.items())
    seed.shuffle(items)
    assert archived(form, dict(items), piece_bytes) == archived(form, files)


@every_form
def test_reading_of_a_large_file_does_not_change_the_archive(form: Form) -> None:
    files = {"weights": random.Random(5).randbytes(3 * MIB) + bytes(3 * MIB) + b"abc" * MIB}
    assert archived(form, files, 300_007) == archived(form, files) == archived(form, files, 5 * MIB)


def test_archive_bytes_are_equal_on_every_machine() -> None:
    assert (
        hashlib.sha256(archived("zip", FILES)).hexdigest() == "a06eb02c80afa316ffa0e106f236ddce45323411eef8035ca134d299225d1c7c"
    )
    # The compressed bytes depend on the version of zstd.
    assert (
        hashlib.sha256(untarred(archived("tar.zst", FILES))).hexdigest()
        == "1ca5e3a5705dc9747b0ae6f392ccadf9d31a3e9d8849c3453eee477e58b4ac77"
    )


@pytest.mark.slow
@every_form
def test_user_mask_zone_and_language_do_not_change_the_archive(form: Form, tmp_path: Path) -> None:
    script = "\n".join([
        "import os, sys, time",
        "from pathlib import Path",
        "from test_archives import FILES, archived",
        "os.umask(0o077)",
        "Path(sys.argv[2]).write_bytes(archived(sys.argv[1], FILES))",
    ])  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONUTF8": "0",
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "C",
        "USER": "somebody",
        "SOURCE_DATE_EPOCH": "1",
    }
    subprocess.run([sys.executable, "-c", script, form, tmp_path / "theirs"], env=environment, check=True)
    assert (tmp_path / "theirs").read_bytes() == archived(form, FILES)


@every_form
def test_manifest_comes_first_and_folders_stay_together(form: Form) -> None:
    names = ["b/z", "b-c/z", "b.c", "manifest.json", "A", "b/a/manifest.json", "b/a/file"]
    members = list(read_back(form, archived(form, dict.fromkeys(names, b"{}"))))
    assert members == ["manifest.json", "b/a/manifest.json", "A", "b/a/file", "b/z", "b-c/z", "b.c"]


def test_members_have_no_facts_of_the_user() -> None:
    with zipfile.ZipFile(io.BytesIO(archived("zip", FILES))) as archive:
        for entry in archive.infolist():
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
            assert entry.external_attr >> 16 == stat.S_IFREG | 0o644
            assert entry.compress_type == zipfile.ZIP_STORED
            assert entry.create_system == 3
    with tarfile.open(fileobj=io.BytesIO(untarred(archived("tar.zst", FILES)))) as tar:
        for member in tar:
            assert member.isreg()
            assert (member.mtime, member.mode, member.uid, member.gid, member.uname, member.gname) == (0, 0o644, 0, 0, "", "")


def test_only_a_path_too_long_for_ustar_gets_a_pax_header() -> None:
    fits = ["a" * 100, "e" * 155 + "/" + "f" * 100, "a" * 90 + "/" + "b" * 60 + "/" + "c" * 70]
    does_not = ["a" * 101, "e" * 156 + "/" + "f" * 100, "e" * 155 + "/" + "f" * 101, "größe.bin"]
    with tarfile.open(fileobj=io.BytesIO(untarred(archived("tar.zst", dict.fromkeys(fits + does_not, b""))))) as archive:
        assert {member.name: bool(member.pax_headers) for member in archive} == {
            **dict.fromkeys(fits, False),
            **dict.fromkeys(does_not, True),
        }


def test_tar_archive_consists_of_whole_records() -> None:
    for size in range(0, 22 * 512, 512):
        assert len(untarred(archived("tar.zst", {"file": bytes(size)}))) % 10_240 == 0


@needs_unzip
@pytest.mark.parametrize("form", ["zip", "deflated"])
def test_unzip_unpacks_an_archive(form: Form, tmp_path: Path) -> None:
    files = {**FILES, "large": random.Random(1).randbytes(9 * MIB)}  # whose CRC comes after it
    (tmp_path / "a.zip").write_bytes(archived(form, files))
    run("unzip", "-tqq", "a.zip", folder=tmp_path)
    run("unzip", "-qq", "a.zip", "-d", "out", folder=tmp_path)
    assert files_below(tmp_path / "out") == files
    assert read_back("zip", (tmp_path / "a.zip").read_bytes()) == files


@needs_tar
def test_tar_unpacks_an_archive(tmp_path: Path) -> None:
    files = {**FILES, "large": random.Random(1).randbytes(9 * MIB)}
    (tmp_path / "a.tar.zst").write_bytes(archived("tar.zst", files))
    run("zstd", "-tq", "a.tar.zst", folder=tmp_path)
    (tmp_path / "out").mkdir()
    run("tar", "--zstd", "-xf", "a.tar.zst", "-C", "out", folder=tmp_path)
    assert files_below(tmp_path / "out") == files


def test_damaged_archive_is_detected_by_unpackers() -> None:
    data = bytearray(archived("tar.zst", {"weights": random.Random(2).randbytes(200_000)}))
    data[100_000] ^= 1
    with pytest.raises(zstandard.ZstdError):
        untarred(bytes(data))
    zipped = bytearray(archived("zip", {"weights": random.Random(2).randbytes(9 * MIB)}))
    zipped[100_000] ^= 1
    with pytest.raises(zipfile.BadZipFile):
        read_back("zip", bytes(zipped))


class Sparse(io.FileIO):
    """Sparse file on disk, whose zeros occupy no space."""

    _zeros = bytes(1 << 16)

    def write(self, data: memoryview, /) -> int:  # type: ignore[override]
        if bytes(data) == self._zeros[: len(data)]:
            self.seek(len(data), os.SEEK_CUR)
            return len(data)
        return super().write(data)


def pour_zeros(content: Artifact, write: Write) -> None:
    piece = memoryview(bytes(MIB))
    for _ in range(content.size // MIB):
        write(piece)
    write(piece[: content.size % MIB])


@pytest.mark.gate
@pytest.mark.skipif(sys.platform == "win32", reason="there zeros take room")
@pytest.mark.parametrize(
    ("form", "size"),
    [
        pytest.param("zip", (1 << 32) - 2, marks=pytest.mark.exhaustive),
        ("zip", (1 << 32) - 1),
        pytest.param("zip", 1 << 32, marks=pytest.mark.exhaustive),
        pytest.param("deflated", (1 << 32) - 1, marks=pytest.mark.exhaustive),
    ],
)
def test_zip_archive_of_more_than_four_gibibytes_is_complete(form: Form, tmp_path: Path, size: int) -> None:
    sizes = {"a": size, "b": 9 * MIB, "c": 5}
    contents = [Artifact(name, "asset", size, "") for name, size in sizes.items()]
    with Sparse(tmp_path / "large.zip", "x") as file:
        zipped.write(contents, pour_zeros, file.write, None if form == "zip" else 6, None)  # without a digest, which takes longer
    with zipfile.ZipFile(tmp_path / "large.zip") as archive:
        assert {entry.filename: entry.file_size for entry in archive.infolist()} == sizes
        assert [archive.read(name) == bytes(sizes[name]) for name in "bc"] == [True, True]
        if size == 1 << 32:
            assert archive.testzip() is None
    # unzip 6.00 expects the size of a member of exactly 4 GiB - 1 in the extra field.
    if shutil.which("unzip") and size != (1 << 32) - 1:
        run("unzip", "-tqq", "large.zip", "b", "c", folder=tmp_path)


@pytest.mark.gate
def test_zip_archive_can_have_more_than_65535_files() -> None:
    files = {f"{number}": b"" for number in range(65_536)}
    with zipfile.ZipFile(io.BytesIO(archived("zip", files))) as archive:
        assert set(archive.namelist()) == set(files)


@pytest.mark.parametrize(("size", "pax"), [((1 << 33) - 1, False), (1 << 33, True)])
def test_tar_archive_has_the_size_of_a_member_of_eight_gibibytes(size: int, pax: bool) -> None:
    written = bytearray()

    def stop(content: Artifact, write: Write) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        write_tar([Artifact("large", "asset", size, "")], stop, written.extend)
    with tarfile.open(fileobj=io.BytesIO(written)) as archive:
        member = archive.next()
    assert member is not None
    assert (member.name, member.size, "size" in member.pax_headers) == ("large", size, pax)


class Nowhere:
    """Output stream that discards its data and counts the bytes."""

    size = 0

    def write(self, data: memoryview, /) -> None:
        self.size += len(data)


@pytest.mark.slow
@every_form
def test_archiving_a_large_file_needs_little_memory(form: Form) -> None:
    nowhere = Nowhere()
    contents = [Artifact("weights", "asset", 96 * MIB, ""), Artifact("config", "asset", 7 * MIB, "")]
    write_archive(form, contents, pour_zeros, Nowhere())  # imports
    tracemalloc.start()
    try:
        made = write_archive(form, contents, pour_zeros, nowhere)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert nowhere.size == made.size
    assert peak < 12 * MIB


@every_form
@pytest.mark.parametrize("found", [b"", b"weight", b"weights!", b"weights" * MIB])
def test_file_of_changed_length_is_not_archived(form: Form, found: bytes) -> None:
    with pytest.raises(BuildError, match=r"model\.bin") as failure:
        write_archive(
            form, contents_of({"model.bin": b"weights"}), pouring({"model.bin": found}), io.BytesIO(), step=StepId("emit:a/b/c")
        )
    (problem,) = failure.value.problems
    assert (problem.code, problem.where) == ("EPB415", "emit:a/b/c")


@every_form
def test_altered_blob_stops_the_archive(form: Form, tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "cache")
    (tmp_path / "model.bin").write_bytes(b"weights" * MIB * 2)
    blob = store.put(tmp_path / "model.bin")
    content = Artifact("model.bin", "context-binary", blob.size, blob.digest)

    def pour(content: Artifact, write: Write) -> None:
        store.copy(content.sha256, write)

    write_archive(form, [content], pour, io.BytesIO())
    place = next(path for path in (store.root / "cas" / "sha256").rglob("*") if path.is_file())
    place.chmod(0o644)
    with place.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    with pytest.raises(DamagedBlob):
        write_archive(form, [content], pour, io.BytesIO())


@every_form
@pytest.mark.parametrize(("size", "room"), [(12 * MIB, 2 * MIB), (100, 0)])
def test_full_disk_is_an_error_and_leaves_no_thread(form: Form, size: int, room: int) -> None:
    class FullDisk(Nowhere):
        def write(self, data: memoryview, /) -> None:
            super().write(data)
            if self.size > room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = {"weights": random.Random(3).randbytes(size)}
    before = threading.active_count()
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_archive(form, contents_of(files), pouring(files), FullDisk())
    assert threading.active_count() == before


def test_missing_zstd_package_is_reported_with_an_install_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.tar.zst").write_bytes(archived("tar.zst", FILES))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    asks: Sequence[Callable[[], object]] = (
        lambda: archived("tar.zst", FILES),
        lambda: find_compressor("zstd"),
        lambda: read_listed(tmp_path / "a.tar.zst"),
    )
    for ask in asks:
        with pytest.raises(EnvironmentFailure, match=r"pip install 'epbuild\[archive\]'") as failure:
            ask()
        assert failure.value.problems[0].code == "EPB425"
    assert read_back("zip", archived("zip", FILES)) == FILES


def test_deflated_zip_archive_is_smaller_and_names_its_level() -> None:
    files = {"weights": bytes(range(256)) * 40_000, "small": b"abc" * 500}
    sizes = {}
    for level in (1, 9):
        file = io.BytesIO()
        archives.write_archive("zip", contents_of(files), pouring(files), file, level=level)
        assert read_back("zip", file.getvalue()) == dict(sorted(files.items()))
        with zipfile.ZipFile(file) as archive:
            assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_DEFLATED}
        sizes[level] = len(file.getvalue())
    assert sizes[9] < sizes[1] < len(archived("zip", files)) / 50
    assert find_compressor("deflate") == f"zlib {zlib.ZLIB_RUNTIME_VERSION}"


def test_compressor_is_named_with_the_version_of_libzstd() -> None:
    version = ".".join(map(str, zstandard.ZSTD_VERSION))
    assert find_compressor("zstd") == f"zstandard {zstandard.__version__}, libzstd {version}"


@every_form
@pytest.mark.parametrize(
    ("name", "manifest"), [("manifest.json", MANIFEST), ("manifest.json", PACKAGE_MANIFEST), ("cpu/manifest.json", MANIFEST)]
)
def test_archive_of_epbuild_is_recognized_by_its_manifest(form: Form, name: str, manifest: bytes, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(archived(form, {"A": b"first by name", name: manifest}))
    assert read_listed(tmp_path / "archive") == json.loads(manifest)


@every_form
def test_only_the_beginning_of_an_archive_is_read(form: Form, tmp_path: Path) -> None:
    data = archived(form, {"manifest.json": MANIFEST, "weights": random.Random(4).randbytes(12 * MIB)})
    (tmp_path / "archive").write_bytes(data[: 4 * MIB])
    assert read_listed(tmp_path / "archive") == json.loads(MANIFEST)


def foreign_zip(files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def with_utf8_names(data: bytes) -> bytes:
    """Return a zip archive whose first member has the UTF-8 flag of epbuild's members."""
    return data[:6] + (1 << 11).to_bytes(2, "little") + data[8:]


FOREIGN = {
    "nothing": b"",
    "text": b"my notes",
    "a browser extension": archived("zip", {"manifest.json": b'{"manifest_version": 3, "name": "x"}'}),
    "a manifest that is a list": archived("tar.zst", {"manifest.json": b"[1, 2]"}),
    "a manifest that is not JSON": archived("tar.zst", {"manifest.json": b"{"}),
    "an endlessly nested manifest": archived("zip", {"manifest.json": b'{"files":' + b"[" * 100_000}),
    "files in an object": archived("zip", {"manifest.json": b'{"files": {}, "format": 1}'}),
    "another first member": archived("tar.zst", {"model.onnx": MANIFEST}),
    "a manifest of 9 MiB": archived("zip", {"manifest.json": MANIFEST + b" " * 9 * MIB}),
    "a compressed manifest of 9 MiB": archived("tar.zst", {"manifest.json": MANIFEST + b" " * 9 * MIB}),
    "a foreign manifest of 9 MiB": with_utf8_names(foreign_zip({"manifest.json": MANIFEST + b" " * 9 * MIB})),
    "a deflated archive": foreign_zip({"manifest.json": MANIFEST}, zipfile.ZIP_DEFLATED),
    "zstd data without a tar archive": zstandard.compress(b"x" * 5000),
    "only the magic number of zstd": b"\x28\xb5\x2f\xfd" + bytes(600),
    "a truncated archive": archived("tar.zst", {"manifest.json": MANIFEST})[:80],
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_foreign_archive_is_not_recognized(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(data)
    assert read_listed(tmp_path / "archive") is None


def test_missing_archive_is_not_recognized(tmp_path: Path) -> None:
    assert read_listed(tmp_path) is None
    assert read_listed(tmp_path / "nothing") is None


@every_form
@given(changes=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 255)), min_size=1, max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mangled_archive_never_raises_an_error(form: Form, changes: list[tuple[int, int]], tmp_path: Path) -> None:
    data = bytearray(archived(form, {"manifest.json": MANIFEST}))
    for at, change in changes:
        data[at % len(data)] ^= change
    (tmp_path / "archive").write_bytes(data)
    found = read_listed(tmp_path / "archive")
    assert found is None or isinstance(found["files"], list)
