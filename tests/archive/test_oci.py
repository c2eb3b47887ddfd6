"""Images: OCI tools can read them, equal outputs are the same image, and a hostile index does no harm."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.archive.artifact import Artifact, Role
from epbuild.archive.oci import Document, Image, build_image
from epbuild.archive.oci_layout import MEDIA_TYPES, read_listed
from epbuild.archive.zstd import compress
from epbuild.core.digest import Write
from epbuild.core.errors import BuildError

FILES: Mapping[str, tuple[Role, bytes]] = {
    "manifest.json": ("manifest", b'{"format": 1}'),
    "decode_ctx.onnx": ("model", b"decode"),
    "prefill_ctx.onnx": ("model", b"prefill"),
    "npu/llm_qnn.bin": ("context-binary", bytes(5000)),
    "provenance.json": ("provenance", b"{ }"),
}
ANNOTATIONS = {"org.opencontainers.image.title": "tiny-llm", "dev.epbuild.recipe": "tiny-llm"}

# From the OCI image specification 1.1: "Artifact Descriptors", "Image Manifest" and "Image Index". Open parts are restricted here to
# the contents of an image of files, so that nothing else passes.
_TYPE = {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}$"}
_ANNOTATIONS = {"type": "object", "additionalProperties": {"type": "string"}}
_DESCRIPTOR = {
    "type": "object",
    "properties": {
        "mediaType": _TYPE,
        "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
        "size": {"type": "integer", "minimum": 0},
        "annotations": _ANNOTATIONS,
        "artifactType": _TYPE,
    },
    "required": ["mediaType", "digest", "size"],
    "additionalProperties": False,
}
_MANIFEST = {
    "type": "object",
    "properties": {
        "schemaVersion": {"const": 2},
        "mediaType": {"const": "application/vnd.oci.image.manifest.v1+json"},
        "artifactType": _TYPE,
        "config": _DESCRIPTOR,
        "layers": {"type": "array", "items": _DESCRIPTOR, "minItems": 1},
        "annotations": _ANNOTATIONS,
    },
    "required": ["schemaVersion", "mediaType", "artifactType", "config", "layers"],
    "additionalProperties": False,
}
_INDEX = {
    "type": "object",
    "properties": {
        "schemaVersion": {"const": 2},
        "mediaType": {"const": "application/vnd.oci.image.index.v1+json"},
        "manifests": {"type": "array", "items": _DESCRIPTOR},
        "annotations": _ANNOTATIONS,
    },
    "required": ["schemaVersion", "mediaType", "manifests"],
    "additionalProperties": False,
}


def contents(files: Mapping[str, tuple[Role, bytes]] = FILES) -> list[Artifact]:
    return [Artifact(path, role, len(data), hashlib.sha256(data).hexdigest()) for path, (role, data) in files.items()]


def write_image_layout(made: Image, folder: Path, files: Mapping[str, tuple[Role, bytes]] = FILES) -> Path:
    """Write the image layout as an output writer does: each blob and each document at its path."""
    bytes_of = {hashlib.sha256(data).hexdigest(): data for _, data in files.values()}
    for path, data in [
        *((content.path, bytes_of[content.sha256]) for content in made.blobs),
        *((document.path, document.data) for document in made.documents),
    ]:
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:
            file.write(data)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def pulled(folder: Path) -> dict[str, bytes]:
    """Return the files of an image layout by name, read as the specification says and without epbuild."""
    assert json.loads((folder / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((folder / "index.json").read_bytes())
    jsonschema.Draft202012Validator(_INDEX).validate(index)
    (named,) = index["manifests"]
    manifest = json.loads(blob(folder, named))
    jsonschema.Draft202012Validator(_MANIFEST).validate(manifest)
    assert named["mediaType"] == manifest["mediaType"]
    assert named["artifactType"] == manifest["artifactType"]
    # "Guidance for an Empty Descriptor": an image that is no container has exactly these bytes as its configuration.
    assert manifest["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
    assert blob(folder, manifest["config"]) == base64.b64decode("e30=")
    return {layer["annotations"]["org.opencontainers.image.title"]: blob(folder, layer) for layer in manifest["layers"]}


def blob(folder: Path, descriptor: Mapping[str, Any]) -> bytes:
    algorithm, _, encoded = descriptor["digest"].partition(":")
    data: bytes = (folder / "blobs" / algorithm / encoded).read_bytes()
    assert hashlib.new(algorithm, data).hexdigest() == encoded
    assert len(data) == descriptor["size"]
    return data


def test_specification_reader_finds_every_file_under_its_name(tmp_path: Path) -> None:
    folder = write_image_layout(build_image(contents(), ANNOTATIONS), tmp_path / "image")
    assert pulled(folder) == {path: data for path, (_, data) in FILES.items()}


def test_digest_equals_the_digest_in_a_registry(tmp_path: Path) -> None:
    made = build_image(contents(), ANNOTATIONS)
    index = json.loads((write_image_layout(made, tmp_path / "image") / "index.json").read_bytes())
    assert index["manifests"][0]["digest"] == made.digest


def test_annotations_and_tag_are_at_their_standard_places() -> None:
    made = build_image(contents(), ANNOTATIONS, tag="1.0")
    manifest = json.loads(made.manifest.data)
    assert (manifest["annotations"], manifest["artifactType"]) == (ANNOTATIONS, "application/vnd.epbuild.output.v1")
    (named,) = json.loads(made.index.data)["manifests"]
    assert named["annotations"] == {"org.opencontainers.image.ref.name": "1.0"}
    assert "annotations" not in json.loads(build_image(contents(), {}).manifest.data)


def test_media_type_identifies_the_role_of_a_file() -> None:
    assert set(MEDIA_TYPES) == set(get_args(Role))
    layers = json.loads(build_image(contents(), {}).manifest.data)["layers"]
    kinds = {layer["annotations"]["org.opencontainers.image.title"]: layer["mediaType"] for layer in layers}
    assert kinds["npu/llm_qnn.bin"] == "application/vnd.epbuild.context-binary.v1"
    assert kinds["provenance.json"] == "application/vnd.in-toto+json"


@given(st.permutations(contents()), st.permutations(list(ANNOTATIONS.items())))
def test_equal_outputs_give_equal_images_in_any_order(shuffled: list[Artifact], annotations: list[tuple[str, str]]) -> None:
    assert build_image(shuffled, dict(annotations)) == build_image(contents(), ANNOTATIONS)


def test_digest_changes_with_each_byte_and_each_name() -> None:
    longer = {**FILES, "decode_ctx.onnx": ("model", b"decode!")}
    renamed = {("other.onnx" if path == "decode_ctx.onnx" else path): file for path, file in FILES.items()}
    digests = {build_image(contents(files), ANNOTATIONS).digest for files in (FILES, longer, renamed)}
    assert len(digests) == 3


def test_equal_contents_share_one_blob(tmp_path: Path) -> None:
    files: dict[str, tuple[Role, bytes]] = {"a/llm.bin": ("context-binary", b"same"), "b/llm.bin": ("context-binary", b"same")}
    made = build_image(contents(files), {})
    assert len(made.blobs) == 1
    assert pulled(write_image_layout(made, tmp_path / "image", files)) == {"a/llm.bin": b"same", "b/llm.bin": b"same"}


def test_file_equal_to_the_configuration_is_written_once(tmp_path: Path) -> None:
    files: dict[str, tuple[Role, bytes]] = {"config.json": ("asset", b"{}"), "model.onnx": ("model", b"model")}
    made = build_image(contents(files), {})
    paths = [*(content.path for content in made.blobs), *(document.path for document in made.documents)]
    assert len(paths) == len(set(paths))
    assert pulled(write_image_layout(made, tmp_path / "image", files)) == {"config.json": b"{}", "model.onnx": b"model"}


def test_generated_file_stays_the_source_of_its_blob(tmp_path: Path) -> None:
    relinked = replace(contents()[1], file=tmp_path / "relinked.onnx")
    (found,) = build_image([relinked], {}).blobs
    assert found.file == tmp_path / "relinked.onnx"


def test_empty_image_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least one file"):
        build_image([], ANNOTATIONS)


def test_image_layout_of_epbuild_lists_its_files_and_digests(tmp_path: Path) -> None:
    folder = write_image_layout(build_image(contents(), ANNOTATIONS), tmp_path / "image")
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    (folder / "blobs/sha256" / ("0" * 64)).write_text("mine", encoding="utf-8")
    found = read_listed(folder)
    assert found == {path: hashlib.sha256(data).hexdigest() for path, data in tree(folder).items() if data != b"mine"}


def test_missing_or_changed_blob_is_listed_with_its_original_digest(tmp_path: Path) -> None:
    made = build_image(contents(), ANNOTATIONS)
    folder = write_image_layout(made, tmp_path / "image")
    before = dict(read_listed(folder))
    first, second, *_ = made.blobs
    (folder / first.path).unlink()
    (folder / second.path).write_bytes(b"changed")
    assert read_listed(folder) == before


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((folder / "index.json").read_bytes())
    change(index)
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")


def point_to(folder: Path, manifest: Any) -> None:
    """Point the index to another manifest with the correct digest."""
    document = Document("", manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode())
    (folder / "blobs/sha256" / document.sha256).write_bytes(document.data)
    edit(folder, lambda index: index["manifests"][0].update(digest=f"sha256:{document.sha256}"))


def become_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


UP = "sha256:" + "../" * 5 + "etc/passwd"
DESCRIPTOR = {"digest": f"sha256:{'1' * 64}"}

HOSTILE: Mapping[str, Callable[[Path], object]] = {
    "no index": lambda folder: (folder / "index.json").unlink(),
    "no layout file": lambda folder: (folder / "oci-layout").unlink(),
    "not JSON": lambda folder: (folder / "index.json").write_bytes(b"\xff{"),
    "an array": lambda folder: (folder / "index.json").write_bytes(b"[]"),
    "deeply nested": lambda folder: (folder / "index.json").write_bytes(b"[" * 200_000),
    "a foreign layout": lambda folder: edit(folder, lambda index: index.pop("annotations")),
    "annotations of another type": lambda folder: edit(folder, lambda index: index.update(annotations=["dev.epbuild.format"])),
    "a newer format": lambda folder: edit(folder, lambda index: index["annotations"].update({"dev.epbuild.format": "2"})),
    "a second image": lambda folder: edit(folder, lambda index: index["manifests"].append(DESCRIPTOR)),
    "no image": lambda folder: edit(folder, lambda index: index["manifests"].clear()),
    "manifests of another type": lambda folder: edit(folder, lambda index: index.update(manifests=7)),
    "a digest with a path": lambda folder: edit(folder, lambda index: index["manifests"][0].update(digest=UP)),
    "a digest that is a number": lambda folder: edit(folder, lambda index: index["manifests"][0].update(digest=5)),
    "a missing manifest": lambda folder: edit(folder, lambda index: index["manifests"][0].update(DESCRIPTOR)),
    "a manifest without layers": lambda folder: point_to(folder, {"config": DESCRIPTOR}),
    "a manifest that is an array": lambda folder: point_to(folder, [DESCRIPTOR]),
    "a manifest that is a number": lambda folder: point_to(folder, b"5"),
    "layers with paths": lambda folder: point_to(folder, {"config": DESCRIPTOR, "layers": [{"digest": UP}]}),
    "layers with another algorithm": lambda folder: point_to(folder, {"config": DESCRIPTOR, "layers": [{"digest": "sha512:ab"}]}),
    "a huge index": lambda folder: (folder / "index.json").write_bytes((folder / "index.json").read_bytes() + b" " * (17 << 20)),
    "a folder in place of the index": lambda folder: become_a_folder(folder / "index.json"),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_foreign_image_layout_lists_nothing(tmp_path: Path, how: str) -> None:
    folder = write_image_layout(build_image(contents(), ANNOTATIONS), tmp_path / "image")
    HOSTILE[how](folder)
    assert read_listed(folder) == {}


def test_changed_manifest_lists_nothing(tmp_path: Path) -> None:
    made = build_image(contents(), ANNOTATIONS)
    folder = write_image_layout(made, tmp_path / "image")
    (folder / made.manifest.path).write_bytes(made.manifest.data.replace(b"decode_ctx.onnx", b"ENCODE_ctx.onnx"))
    assert read_listed(folder) == {}


def test_missing_folder_lists_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert read_listed(tmp_path / "nowhere") == read_listed(tmp_path / "file") == {}


@pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")
@pytest.mark.parametrize("linked", ["index.json", "oci-layout", "blobs", "blobs/sha256"])
def test_links_out_of_the_folder_are_not_followed(tmp_path: Path, linked: str) -> None:
    folder = write_image_layout(build_image(contents(), ANNOTATIONS), tmp_path / "image")
    outside = tmp_path / "outside"
    (folder / linked).rename(outside)
    (folder / linked).symlink_to(outside)
    assert read_listed(folder) == {}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    folder = write_image_layout(build_image(contents(), ANNOTATIONS), tmp_path / "image")
    (folder / "index.json").unlink()
    os.mkfifo(folder / "index.json")
    assert read_listed(folder) == {}


@pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")
def test_output_folder_may_be_reached_through_a_link(tmp_path: Path) -> None:
    folder = write_image_layout(build_image(contents(), ANNOTATIONS), tmp_path / "image")
    (tmp_path / "link").symlink_to(folder)
    assert read_listed(tmp_path / "link") == read_listed(folder) != {}


def pour_zeros(content: Artifact, write: Write) -> None:
    piece = bytes(1 << 20)
    for _ in range(content.size >> 20):
        write(memoryview(piece))


def test_compressing_a_large_file_needs_little_memory(tmp_path: Path) -> None:
    compress(Artifact("first", "asset", 1 << 20, "0" * 64), pour_zeros, 3, tmp_path)  # imports
    tracemalloc.start()
    try:
        made = compress(Artifact("weights", "external-data", 96 << 20, "a" * 64), pour_zeros, 3, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.packed.file is not None
    data = made.packed.file.read_bytes()
    assert (made.packed.path, made.packed.size) == ("weights.zst", len(data))
    assert made.packed.sha256 == hashlib.sha256(data).hexdigest()
    assert zstandard.ZstdDecompressor().stream_reader(data).read() == bytes(96 << 20)
    assert peak < 12 << 20


@pytest.mark.parametrize("size", [(1 << 20) - 1, (1 << 20) + 1])
def test_file_of_changed_length_is_not_compressed(size: int, tmp_path: Path) -> None:
    def pour(content: Artifact, write: Write) -> None:
        write(memoryview(bytes(1 << 20)))

    with pytest.raises(BuildError, match="weights changed while it was being emitted") as error:
        compress(Artifact("weights", "external-data", size, "a" * 64), pour, 3, tmp_path)
    assert error.value.problems[0].code == "EPB415"
