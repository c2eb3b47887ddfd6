"""Manifests: equal for equal builds, true to their schema, and harmless when broken."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.archive.artifact import FileEntry
from epbuild.core.canonical import read_schema
from epbuild.output.existing import read_listed_files
from epbuild.output.manifest import ManifestModel, PartManifest

DIGEST = "ab" * 32
SCHEMA = read_schema("manifest")
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

NODE = {
    "name": "QNNExecutionProvider_QNN_1_0",
    "source": "QNNExecutionProvider",
    "main_context": 1,
    "embed_mode": 0,
    "partition_name": "QNN_1_0",
    "ep_sdk_version": "2.50.0",
    "onnx_model_filename": "decode.onnx",
    "hardware_architecture": "73",
    "notes": "größe",
    "max_size": 4096,
    "reference": "llm.bin",
    "others": {"is_multi_soc_ep_context": 0, "io_name_overrides": "y=z"},
}
EMBEDDED = {"name": "n", "source": "QNN", "main_context": 1, "embed_mode": 1, "payload_bytes": 12}


def rendered(*, reverse: bool = False) -> bytes:
    """Render a manifest with every field. `reverse` reverses everything that has no order."""

    def shuffled(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return dict(sorted(mapping.items(), reverse=reverse))

    return PartManifest(
        recipe="tiny-llm",
        group="decoder",
        share_weights=True,
        target=shuffled(
            {
                "name": "npu",
                "eps": [
                    shuffled(
                        {
                            "ep": "QNNExecutionProvider",
                            "provider_options": shuffled({"soc_model": "SC8380XP", "backend_type": "htp"}),
                        }
                    ),
                    shuffled({"ep": "OpenVINOExecutionProvider", "provider_options": {}}),
                ],
                "session_options": {},
                "environment": shuffled({"ADSP_LIBRARY_PATH": "/opt/größe", "QNN_LOG": "1"}),
                "unchecked_options": ["new_option"],
                "not_reproducible": "it has the time of day in it",
            }
        ),
        toolchain=shuffled(
            {
                "python": "cpython-3.11",
                "platform": "linux-x86_64",
                "distributions": shuffled({"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0"}),
            }
        ),
        custom_ops=[{"module": "acme_ops"}, {"library": "libmine.so", "sha256": DIGEST}],
        models=[
            ManifestModel(
                name=name,
                file=f"{name}.onnx",
                action_key=DIGEST,
                source=shuffled(
                    {
                        "sha256": DIGEST,
                        "external_data": {"w.bin": DIGEST},
                        "inputs": [{"name": "x", "type": "float32", "shape": [1, "n", None]}],
                        "outputs": [],
                    }
                ),
                nodes=[shuffled(node) for node in nodes],
                fallback_nodes=0,
                compatibility={"QNNExecutionProvider": "1;2;3"},
            )
            for name, nodes in {"prefill": [NODE], "decode": [NODE, EMBEDDED]}.items()
        ],
        files=[FileEntry("llm.bin", "context-binary", 12, DIGEST), FileEntry("prefill.onnx", "model", 0, DIGEST)],
    ).file.data


def test_equal_builds_have_byte_identical_manifests() -> None:
    assert rendered() == rendered(reverse=True)


def test_manifest_is_readable_text() -> None:
    text = rendered().decode("utf-8")
    assert text.endswith("}\n")
    assert "größe" in text
    assert max(map(len, text.splitlines())) < 120


def test_manifest_schema_is_a_valid_2020_12_schema() -> None:
    VALIDATOR.check_schema(SCHEMA)


def test_written_manifest_matches_the_schema() -> None:
    VALIDATOR.validate(json.loads(rendered()))


def objects(document: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of every object with fixed keys. Mappings from names to texts are skipped."""
    children = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    open_ones = {
        "provider_options",
        "session_options",
        "environment",
        "distributions",
        "external_data",
        "compatibility",
        "others",
    }
    if isinstance(document, dict) and not (place and place[-1] in open_ones):
        yield place
    for name, child in children:
        yield from objects(child, (*place, name))


PLACES = list(objects(json.loads(rendered())))
REQUIRED = {
    (): ["format", "recipe", "group", "share_weights", "target", "toolchain", "models", "files"],
    ("target",): ["name", "eps", "session_options", "environment", "unchecked_options"],
    ("target", "eps", 1): ["ep", "provider_options"],
    ("toolchain",): ["python", "platform", "distributions"],
    ("models", 1): ["name", "file", "action_key", "source", "ep_context_nodes", "fallback_nodes", "compatibility"],
    ("models", 1, "source"): ["sha256", "external_data"],
    ("models", 1, "ep_context_nodes", 0): ["name", "source", "main_context", "embed_mode"],
    ("files", 0): ["path", "role", "size", "sha256"],
}


def changed(place: tuple[str | int, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a manifest, and the object in it at `place`."""
    document = found = copy.deepcopy(json.loads(rendered()))
    for part in place:
        found = found[part]
    return document, found


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_unknown_manifest_key_is_rejected(place: tuple[str | int, ...]) -> None:
    document, found = changed(place)
    found["surprise"] = 1
    assert not VALIDATOR.is_valid(document)


@pytest.mark.parametrize(("place", "key"), [(place, key) for place, keys in REQUIRED.items() for key in keys], ids=str)
def test_manifest_without_a_required_key_is_rejected(place: tuple[str | int, ...], key: str) -> None:
    document, found = changed(place)
    del found[key]
    assert not VALIDATOR.is_valid(document)


@pytest.mark.parametrize(
    ("key", "value"),
    [("eps", []), ("eps", {}), ("environment", {"A": 1}), ("unchecked_options", [1]), ("unchecked_options", {"a": "b"})],
)
def test_invalid_target_in_a_manifest_is_rejected(key: str, value: object) -> None:
    document, target = changed(("target",))
    target[key] = value
    assert not VALIDATOR.is_valid(document)


def test_every_key_of_the_schema_is_described() -> None:
    def subschemas(document: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(document, dict):
            yield from document.get("properties", {}).items()
            for child in document.values():
                yield from subschemas(child)

    shown = list(subschemas(SCHEMA))
    assert len(shown) > 40
    assert [name for name, subschema in shown if not {"title", "description"} <= subschema.keys()] == []


def test_manifest_lists_all_emitted_files_including_itself(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(rendered())
    assert read_listed_files(tmp_path).keys() == {"llm.bin", "prefill.onnx", "manifest.json"}


GARBAGE = [
    b"",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"{}",
    b'"files"',
    b'{"format": 1}',
    b'{"format": 1, "files": null}',
    b'{"format": 1, "files": ["a.onnx"]}',
    b'{"format": 1, "files": {"a.onnx": {}}}',
    b'{"format": 1, "files": [{"name": "a.onnx"}]}',
    b'{"format": 2, "files": [{"path": "a.onnx"}]}',
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_broken_manifest_lists_no_files(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(garbage)
    assert read_listed_files(tmp_path) == {}


def test_missing_manifest_lists_no_files(tmp_path: Path) -> None:
    assert read_listed_files(tmp_path) == {}


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.just("files") | st.just("path"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["files", "format", "path"]), inner, max_size=3),
    max_leaves=8,
)


@given(content=st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_manifest_content_is_handled_without_an_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "manifest.json"
        manifest.write_bytes(content)
        assert all(isinstance(path, str) for path in read_listed_files(manifest.parent))
