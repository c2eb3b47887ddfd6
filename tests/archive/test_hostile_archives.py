"""Hostile archives and images: they cannot write elsewhere, follow links, or exhaust the disk or the memory."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from epbuild.archive.members import UNLISTED, UnlistedMembers, UnsoundArchive
from epbuild.archive.oci_layout import CONTENT_DIGEST, CONTENT_SIZE, TITLE
from epbuild.archive.opened import open_artifact
from epbuild.core.errors import NothingToVerify
from tests.archive.packing import FILES, compressed, files_below, with_manifest, write_image_layout

MIB = 1 << 20
NAMES = {
    "absolute": ("/etc/evil", "unsafe path"),
    "up": ("../evil", "unsafe path"),
    "up later": ("a/../../evil", "unsafe path"),
    "drive": ("C:/evil", "unsafe path"),
    "drive-relative": ("C:evil", "unsafe path"),
    "share": ("//host/share/evil", "unsafe path"),
    "backslash": ("..\\evil", "unsafe path"),
    "device": ("CON", "not valid on every platform"),
    "device with a suffix": ("a/nul.bin", "not valid on every platform"),
    "deep": ("a/" * 65 + "evil", "not valid on every platform"),
}
PAIRS = {
    "twice": (["a", "a"], "occurs twice"),
    "one path in two spellings": (["a/b", "a/./b"], "occurs twice"),
    "case": (["Model.onnx", "model.onnx"], "'Model.onnx' on case-insensitive file systems"),
    "case of a folder": (["a/x", "A/y"], "collides with 'a'"),
    "composed": (["\u00e9", "e\u0301"], "collides with"),
    "file and folder": (["a", "a/b"], "uses 'a'"),
    "folder and file": (["a/b", "a"], "uses 'a'"),
}


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder around the archive. Fail if a file appears in it, or if unpacked files remain."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield tmp_path
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not list(tmp_path.rglob("*evil*"))


def zipped(names: list[str], change: Callable[[zipfile.ZipInfo], object] = lambda info: None) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name
            change(info)
            archive.writestr(info, b"evil")
    return file.getvalue()


def tarred(*members: tarfile.TarInfo, data: bytes = b"evil") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data))
    return compressed(file.getvalue())


def member(name: str, kind: bytes = tarfile.REGTYPE, **more: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in more.items():
        setattr(info, key, value)
    return info


def refused(path: Path, code: str = "EPB631", unlisted: UnlistedMembers = UNLISTED) -> str:
    """Return the message of the one problem for which the archive is refused."""
    with pytest.raises(UnsoundArchive) as error, open_artifact(path, unlisted=unlisted):
        pytest.fail("it was unpacked")
    [problem] = error.value.problems
    assert (problem.code, problem.where, error.value.exit_code) == (code, path, 1)
    assert str(problem).isprintable()
    assert "temporary" not in str(problem)
    return str(problem)


def put(data: bytes, folder: Path) -> Path:
    path = folder / "received"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("name", "why"), NAMES.values(), ids=NAMES)
def test_member_outside_the_folder_or_for_a_device_is_refused(name: str, why: str, tmp_path: Path) -> None:
    for data in (zipped(["m.onnx", name]), tarred(member("m.onnx"), member(name))):
        told = refused(put(data, tmp_path))
        assert why in told
        assert name[:100] in told
    layout = titled(tmp_path / "image", name)
    assert why in refused(layout)


@pytest.mark.parametrize(("names", "why"), PAIRS.values(), ids=PAIRS)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_member_that_replaces_another_member_is_refused(names: list[str], why: str, tmp_path: Path) -> None:
    for data in (zipped(names), tarred(*map(member, names))):
        assert why in refused(put(data, tmp_path))
    assert why in refused(titled(tmp_path / "image", *names))


TARS = {
    "symbolic link": (member("m_qnn.bin", tarfile.SYMTYPE, linkname="/etc/passwd"), "'m_qnn.bin' is a link"),
    "symbolic link within": (member("m_qnn.bin", tarfile.SYMTYPE, linkname="m.onnx"), "'m_qnn.bin' is a link"),
    "hard link": (member("m_qnn.bin", tarfile.LNKTYPE, linkname="/etc/passwd"), "'m_qnn.bin' is a link"),
    "device": (member("m_qnn.bin", tarfile.CHRTYPE, devmajor=1, devminor=5), "neither a plain file nor a folder"),
    "disk": (member("m_qnn.bin", tarfile.BLKTYPE), "neither a plain file nor a folder"),
    "pipe": (member("m_qnn.bin", tarfile.FIFOTYPE), "neither a plain file nor a folder"),
    "contiguous": (member("m_qnn.bin", tarfile.CONTTYPE), "neither a plain file nor a folder"),
    "unknown": (member("m_qnn.bin", b"Z"), "neither a plain file nor a folder"),
    "folder elsewhere": (member("../evil/", tarfile.DIRTYPE), "unsafe path"),
    "control characters": (member("\x1b[2Jevil\\"), r"'\x1b[2Jevil\' has an unsafe path"),
    "invalid text": (member("\udcff"), "is not UTF-8"),
}


@pytest.mark.parametrize(("hostile", "why"), TARS.values(), ids=TARS)
def test_tar_archive_may_contain_only_files_and_folders(hostile: tarfile.TarInfo, why: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as archive:
        archive.addfile(member("m.onnx"))
        archive.addfile(hostile)
    assert why in refused(put(compressed(file.getvalue()), tmp_path))


def mode(kind: int) -> Callable[[zipfile.ZipInfo], object]:
    def change(info: zipfile.ZipInfo) -> None:
        info.create_system = 3
        info.external_attr = (kind | 0o644) << 16

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [(mode(stat.S_IFLNK), "is a link"), (mode(stat.S_IFCHR), "neither a file"), (mode(stat.S_IFIFO), "neither a file")],
)
def test_zip_archive_may_contain_only_files_and_folders(change: Any, why: str, tmp_path: Path) -> None:
    assert why in refused(put(zipped(["m.onnx"], change), tmp_path))


def test_encrypted_or_rarely_compressed_zip_archive_is_refused(tmp_path: Path) -> None:
    plain = zipped(["m.onnx"])
    directory = plain.index(b"PK\x01\x02")
    encrypted = plain[: directory + 8] + b"\x01\x00" + plain[directory + 10 :]
    assert "'m.onnx' is encrypted" in refused(put(encrypted, tmp_path))

    def rare(info: zipfile.ZipInfo) -> None:
        info.compress_type = zipfile.ZIP_LZMA

    assert "compressed by method 14" in refused(put(zipped(["m.onnx"], rare), tmp_path))


def test_deflated_member_is_limited_to_its_declared_size(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weights", bytes(MIB))
    whole = file.getvalue()
    with open_artifact(put(whole, tmp_path)) as received:
        assert files_below(received.place) == {"weights": bytes(MIB)}
    lying = whole.replace(MIB.to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert lying != whole
    assert "'weights'" in refused(put(lying, tmp_path), "EPB619")


def test_overlapping_members_of_a_zip_archive_are_refused(tmp_path: Path) -> None:
    """Check the bombs of overlapping members (D. Fifield, 2019)."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", bytes(100))
        archive.writestr("b", bytes(100))
        archive.filelist[1].header_offset = archive.filelist[0].header_offset
    assert "'b' is damaged" in refused(put(file.getvalue(), tmp_path), "EPB619")


def test_header_that_declares_gigabytes_uses_no_memory(tmp_path: Path) -> None:
    header = member("././@PaxHeader", tarfile.XHDTYPE)
    header.size = 3 << 30
    tar = header.tobuf(tarfile.USTAR_FORMAT) + bytes(20 * MIB)
    path = put(compressed(tar), tmp_path)
    tracemalloc.start()
    assert "the headers of a member are too large" in refused(path, "EPB619")
    assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    tracemalloc.stop()


@pytest.mark.parametrize("count", [500, 5000])
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_endless_headers_are_refused_and_use_no_memory(kind: bytes, count: int, tmp_path: Path) -> None:
    header = member("././@PaxHeader", kind)
    record = b"%d a=%s\n"
    data = record % (len(record % (10_000, b"x" * 9_000)), b"x" * 9_000)
    header.size = len(data)
    tar = (header.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)) * count + tarred_plain("m.onnx")
    path = put(compressed(tar), tmp_path)
    tracemalloc.start()
    refused(path, "EPB619")
    assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    tracemalloc.stop()


def tarred_plain(name: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(member(name))
    return file.getvalue()


def test_zip_archive_of_only_names_uses_no_memory(tmp_path: Path) -> None:
    entry = b"PK\x01\x02" + bytes(24) + (0xFFFF).to_bytes(2, "little") + bytes(16) + b"n" * 0xFFFF
    count = 17 * MIB // len(entry)
    end = b"PK\x05\x06" + bytes(4) + count.to_bytes(2, "little") * 2 + (count * len(entry)).to_bytes(4, "little")
    path = put(b"PK\x03\x04" + entry * (count + 1) + end + (4).to_bytes(4, "little") + bytes(2), tmp_path)
    tracemalloc.start()
    assert "the archive's directory is damaged: it is too large" in refused(path, "EPB619")
    assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    tracemalloc.stop()


@pytest.mark.parametrize("size", [-512, -1, -(1 << 40)])
def test_member_of_negative_size_is_refused_without_a_hang(size: int, tmp_path: Path) -> None:
    for kind in (tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        header = member("m.onnx", kind)
        header.size = size
        tar = header.tobuf(tarfile.GNU_FORMAT) + bytes(4096)
        with pytest.raises(UnsoundArchive), open_artifact(put(compressed(tar), tmp_path)):
            pass


def titled(folder: Path, *titles: str) -> Path:
    """Write an image layout whose layers have these titles."""
    write_image_layout({str(number): str(number).encode() for number in range(len(titles))}, folder)

    def rename(manifest: dict[str, Any]) -> None:
        for layer, title in zip(manifest["layers"], titles, strict=True):
            layer["annotations"][TITLE] = title

    return edited(folder, rename)


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Replace the manifest of an image layout. The index has the new digest."""
    index = json.loads((folder / "index.json").read_bytes())
    [named] = index["manifests"]
    manifest = json.loads(blob(folder, named["digest"]).read_bytes())
    change(manifest)
    data = json.dumps(manifest).encode()
    named.update({"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)})
    blob(folder, named["digest"]).write_bytes(data)
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def blob(folder: Path, digest: str) -> Path:
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def blob_of(folder: Path, data: bytes) -> Path:
    return blob(folder, hashlib.sha256(data).hexdigest())


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return write_image_layout(with_manifest(FILES), tmp_path / "image")


def test_image_is_unchanged_after_reading(image: Path) -> None:
    before = files_below(image)
    with open_artifact(image) as received:
        assert files_below(received.place) == with_manifest(FILES)
    assert files_below(image) == before


def test_unlinkable_files_are_copied(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    with open_artifact(image) as received:
        assert files_below(received.place) == with_manifest(FILES)
        assert all(path.stat().st_nlink == 1 for path in received.place.rglob("*") if path.is_file())


def branching(location: str) -> bytes:
    """Return a model with a branch whose weights are in a file."""
    weight = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    empty, branch = (onnx.helper.make_graph([], name, [], [], held) for name, held in (("e", []), ("b", [weight])))
    node = onnx.helper.make_node("If", ["c"], [], then_branch=branch, else_branch=empty)
    return bytes(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [])).SerializeToString())


def test_subgraph_data_gets_its_own_copy(tmp_path: Path) -> None:
    files = with_manifest(
        {
            "a/m.onnx": branching("./data/w.bin"),
            "a/broken.onnx": b"no model",
            "a/far.onnx": branching("../../../w.bin"),
            "a/data/w.bin": b"four",
            "b/w.bin": b"four",
            "w.bin": b"five!",
        }
    )
    image = write_image_layout(files, tmp_path / "image")
    with open_artifact(image) as received:
        assert files_below(received.place) == files
        assert (received.place / "a/data/w.bin").stat().st_nlink == 1
        assert all((received.place / name).stat().st_nlink > 1 for name in files if name != "a/data/w.bin")
    assert blob_of(image, b"four").read_bytes() == b"four"


def test_unlisted_subgraph_data_cannot_fill_the_disk(tmp_path: Path) -> None:
    models = {f"{number}/m.onnx": branching("w.bin") for number in range(5)}
    data = {f"{number}/w.bin": b"x" * 10_000 for number in range(5)}
    image = write_image_layout({**models, **data}, tmp_path / "image")
    assert "which no preceding manifest lists" in refused(image, "EPB631", UnlistedMembers(0, 2))


@pytest.mark.parametrize("linkable", [True, False])
def test_every_blob_of_an_image_must_match_its_digest(image: Path, linkable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not linkable:
        monkeypatch.delattr(os, "link")
        monkeypatch.setattr(os, "access", lambda *arguments: False)
    for path in sorted((image / "blobs" / "sha256").iterdir()):
        whole = path.read_bytes()
        if whole:
            path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
            assert f"{path.name} was changed" in refused(image, "EPB619")
        path.write_bytes(whole + b"!")
        assert f"{path.name} has {len(whole) + 1:,} bytes; the image declares {len(whole):,}" in refused(image, "EPB619")
        path.unlink()
        assert f"{path.name} is missing" in refused(image, "EPB619")
        path.write_bytes(whole)
    with open_artifact(image):
        pass


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (CONTENT_SIZE, "5", "exceeds its declared size of 5 bytes"),
        (CONTENT_SIZE, str(len(FILES["m_ctx.onnx"]) + 1), "does not have the content that the image declares"),
        (CONTENT_SIZE, str(1 << 40), "which no preceding manifest lists"),
        (CONTENT_SIZE, "many", "does not follow the OCI image specification"),
        (CONTENT_SIZE, "-1", "does not follow the OCI image specification"),
        (CONTENT_DIGEST, f"sha256:{'0' * 64}", "does not have the content that the image declares"),
    ],
)
def test_compressed_layer_must_match_its_description(name: str, value: str, why: str, tmp_path: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        [layer] = [layer for layer in manifest["layers"] if layer["annotations"][TITLE] == "m_ctx.onnx.zst"]
        assert layer["mediaType"].endswith("+zstd")
        layer["annotations"][name] = value

    code = "EPB631" if "preceding manifest" in why else "EPB619"
    text = refused(edited(write_image_layout(FILES, tmp_path / "image", compressed=True), change), code)
    assert why in text


def test_invalid_compressed_layer_is_reported_in_one_sentence(tmp_path: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        [layer] = [layer for layer in manifest["layers"] if layer["annotations"][TITLE] == "m_ctx.onnx"]
        layer["mediaType"] += "+zstd"
        layer["annotations"] |= {CONTENT_SIZE: str(layer["size"]), CONTENT_DIGEST: layer["digest"]}

    assert "cannot be decompressed" in refused(edited(write_image_layout(FILES, tmp_path / "image"), change), "EPB619")


def test_link_in_an_image_is_not_followed(image: Path, tmp_path: Path) -> None:
    path = blob_of(image, FILES["m_ctx.onnx"])
    path.rename(tmp_path / "elsewhere")
    try:
        path.symlink_to(tmp_path / "elsewhere")
    except OSError:
        pytest.skip("this user may make no links")
    assert "is a link, which is not followed" in refused(image, "EPB619")


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no layers": lambda manifest: manifest.pop("layers"),
    "a digest with a path": lambda manifest: manifest["layers"][0].update(digest="sha256:../../../../etc/passwd"),
    "another algorithm": lambda manifest: manifest["layers"][0].update(digest=f"sha512:{'a' * 128}"),
    "a digest that is not text": lambda manifest: manifest["layers"][0].update(digest=5),
    "a size that is not a number": lambda manifest: manifest["layers"][0].update(size="5"),
    "a negative size": lambda manifest: manifest["layers"][0].update(size=-5),
    "a title that is not text": lambda manifest: manifest["layers"][0].update(annotations={TITLE: 5}),
    "layers that are not a list": lambda manifest: manifest.update(layers="evil"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_malformed_manifest_is_reported_in_one_sentence(change: Callable[[dict[str, Any]], object], image: Path) -> None:
    assert "does not follow the OCI image specification" in refused(edited(image, change), "EPB619")


@pytest.mark.parametrize("name", ["index.json", "oci-layout"])
@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_malformed_index_is_reported_in_one_sentence(name: str, data: bytes, image: Path) -> None:
    (image / name).write_bytes(data)
    assert "does not follow the OCI image specification" in refused(image, "EPB619")


def test_image_with_other_content_is_a_usage_error(image: Path) -> None:
    def untitled(manifest: dict[str, Any]) -> None:
        for layer in manifest["layers"]:
            del layer["annotations"]

    with pytest.raises(NothingToVerify, match="an image without named files"), open_artifact(edited(image, untitled)):
        pass
    index = json.loads((image / "index.json").read_bytes())
    index["manifests"] *= 2
    (image / "index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(NothingToVerify, match="an image layout with 2 images"), open_artifact(image):
        pass
    index["manifests"] = [{**index["manifests"][0], "mediaType": "application/vnd.oci.image.index.v1+json"}]
    (image / "index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(NothingToVerify, match="not an image manifest") as error, open_artifact(image):
        pass
    assert error.value.exit_code == 2


def test_content_with_two_names_gives_two_files(tmp_path: Path) -> None:
    files = {"a": b"same", "b": b"same"}
    with open_artifact(write_image_layout(files, tmp_path / "image")) as received:
        assert files_below(received.place) == files
