"""Inspection of an EPContext model: every node, the place of its context, and faults of its reference."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import pytest
from onnx import helper

from epbuild.core.errors import VerifyError
from epbuild.onnxfile.read.payload import Payload
from epbuild.verify.inspection import inspect_files, inspect_model
from tests.onnxfile.context_models import encapsulated, sectioned
from tests.support.compiled_models import BINARY, QNN, context_node, list_files, relu, save
from tests.support.moments import at_each_call

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")


def test_a_model_is_described_with_the_digest_and_target_of_its_binary(tmp_path: Path) -> None:
    (tmp_path / "llm.bin").write_bytes(BINARY)
    path = save(
        tmp_path / "m.onnx", context_node(hidden=7), relu(), metadata={f"ep_compatibility_info.{QNN}": "1;2", "other": "x"}
    )
    found = inspect_model(path)
    assert found["inputs"] == [{"name": "x", "type": "float32", "shape": [4, None, "n"]}]
    [node] = found["ep_context_nodes"]
    assert (node["reference"], node["size"], node["problem"]) == ("llm.bin", len(BINARY), None)
    assert (node["sha256"], node["target"]) == (hashlib.sha256(BINARY).hexdigest(), "SC8380XP")
    assert node["others"] == {"hidden": 7}
    assert found["other_operators"] == {"Relu": 1}
    assert found["left"] == [{"node": "", "operator": "Relu", "reason": None}]
    assert found["compatibility"] == {QNN: "1;2"}
    json.dumps(found)


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("gone.bin", "does not exist"),
        ("../llm.bin", "'..'"),
        ("/llm.bin", "absolute"),
        (None, "neither embeds a context nor refers to one"),
    ],
)
def test_a_dangling_reference_is_reported_without_hiding_other_nodes(tmp_path: Path, reference: str | None, told: str) -> None:
    found = inspect_model(save(tmp_path / "m.onnx", context_node(reference), context_node(None, main_context=0)))
    first, second = found["ep_context_nodes"]
    assert told in (first["problem"] or "")
    assert second["problem"] is None


def test_an_embedded_context_has_its_size_digest_and_target(tmp_path: Path) -> None:
    found = inspect_model(save(tmp_path / "m.onnx", context_node(None, embed_mode=1, ep_cache_context=BINARY)))
    [node] = found["ep_context_nodes"]
    assert (node["embed_mode"], node["size"], node["problem"]) == (1, len(BINARY), None)
    assert (node["sha256"], node["target"]) == (hashlib.sha256(BINARY).hexdigest(), "SC8380XP")


def test_weights_beside_a_context_are_shown(tmp_path: Path) -> None:
    model = encapsulated(tmp_path / "m.onnx")
    [node] = inspect_model(model)["ep_context_nodes"]
    digest = hashlib.sha256((tmp_path / "net.bin").read_bytes()).hexdigest()
    parts = [{"names": ["w"], "offset": 16, "size": 16}]
    assert node["weights"] == {"reference": "net.bin", "size": 32, "sha256": digest, "parts": parts}
    encapsulated(tmp_path / "n.onnx")
    assert [Path(shared["file"]).name for shared in inspect_files([tmp_path])["shared"]] == ["net.xml", "net.bin"]
    (tmp_path / "net.bin").unlink()
    [node] = inspect_model(model)["ep_context_nodes"]
    assert (node["weights"], node["problem"]) == (
        None,
        "the weights 'net.bin' of the context 'net.xml' do not exist beside 'm.onnx'",
    )


def test_the_parts_of_a_context_are_listed_largest_first(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", context_node())
    content = sectioned(9_000, decode=1000, prefill=2000, shared=3000)
    parts = [("shared weights", "", 3000), ("graph", "prefill", 2000), ("graph", "decode", 1000)]
    for binary, listed in (
        (content, parts),
        (content[:5999], []),  # shorter than its parts
        (b"x" + content, []),
        (BINARY, []),
    ):
        (tmp_path / "llm.bin").write_bytes(binary)
        [node] = inspect_model(path)["ep_context_nodes"]
        assert [(part["kind"], part["name"], part["size"]) for part in node["parts"]] == listed
    bson = b"OVEP_BIN" + b"".join(
        b"\3" + name + bytes(5) + kind + b"data_offset\0" + bytes(width) + kind + b"size\0" + (9).to_bytes(width, "little")
        for name, kind, width in ((b"a", b"\x10", 4), (b"b", b"\x12", 8))
    )
    path = save(tmp_path / "m.onnx", context_node(source="OpenVINOExecutionProvider"))
    for binary, names in ((bson, ["a", "b"]), (b"OVEP_BIN" + b"\3" * (1 << 16), [])):
        (tmp_path / "llm.bin").write_bytes(binary)
        begin = time.process_time()
        [node] = inspect_model(path)["ep_context_nodes"]
        assert time.process_time() - begin < 0.5
        assert [(part["name"], part["size"]) for part in node["parts"]] == [(name, 9) for name in names]


def constant(name: str, offset: int, size: int) -> str:
    return f'<layer id="1" name="{name}" type="Const" version="opset1">\n\t<data shape="2" offset="{offset}" size="{size}" />'


def test_the_parts_of_a_weights_file_are_listed_largest_first(tmp_path: Path) -> None:
    model = encapsulated(tmp_path / "m.onnx")
    unnamed = '<data offset="24" size="8" />'
    found = [constant("a", 0, 4), unnamed, constant("b&quot;&amp;&lt;>", 4, 20), constant("c", 4, 20)]
    (tmp_path / "net.xml").write_text("".join(found), encoding="utf-8")
    [node] = inspect_model(model)["ep_context_nodes"]
    assert node["weights"] is not None
    assert node["weights"]["parts"] == [
        {"names": ['b"&<>', "c"], "offset": 4, "size": 20},
        {"names": ["a"], "offset": 0, "size": 4},
    ]


def test_a_hostile_context_has_no_parts_and_is_read_in_time(tmp_path: Path) -> None:
    model = encapsulated(tmp_path / "m.onnx")
    for content in ('name="' * 20_000, 'name="w" type="Const" ' * 5_000, constant("w", 0, 1) + 'offset="0" size="1"' * 100_000):
        (tmp_path / "net.xml").write_text(content, encoding="utf-8")
        [node] = inspect_model(model)["ep_context_nodes"]
        assert node["weights"] is not None
        assert node["weights"]["parts"] == []


def test_every_attribute_is_shown_and_defaults_are_marked(tmp_path: Path) -> None:
    bare = helper.make_node("EPContext", ["x"], ["y"], "n", domain="com.microsoft", own=[1.5], notes="n")
    [node] = inspect_model(save(tmp_path / "m.onnx", bare))["ep_context_nodes"]
    schema = {
        "main_context": 1, "embed_mode": 1, "max_size": 0, "source": None, "partition_name": None, "ep_sdk_version": None, "notes": "n",
        "onnx_model_filename": None, "hardware_architecture": None, "reference": None,
    }  # fmt: skip
    assert schema.items() <= node.items()
    assert node["written"] == {"own": "FLOATS", "notes": "STRING"}
    assert node["problem"] == "the node neither embeds a context nor refers to one"


def test_a_node_in_a_subgraph_is_found_and_marked(tmp_path: Path) -> None:
    inner = helper.make_graph([context_node(None, embed_mode=1, ep_cache_context=BINARY)], "then", [], [])
    branch = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=helper.make_graph([relu()], "else", [], []))
    found = inspect_model(save(tmp_path / "m.onnx", branch, context_node(None, main_context=0)))
    assert [node["subgraph"] for node in found["ep_context_nodes"]] == [True, False]
    assert found["ep_context_nodes"][0]["target"] == "SC8380XP"


@needs_links
def test_a_context_outside_the_artifact_is_reported_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(BINARY)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "llm.bin").symlink_to(tmp_path / "secret")
    [node] = inspect_model(save(tmp_path / "dist" / "m.onnx", context_node()))["ep_context_nodes"]
    assert "is a link to a path outside" in (node["problem"] or "")
    assert (node["size"], node["sha256"], node["target"]) == (None, None, None)


def test_shared_binaries_and_data_are_reported_with_the_bytes_that_they_save(tmp_path: Path) -> None:
    (tmp_path / "llm.bin").write_bytes(BINARY)
    (tmp_path / "w.data").write_bytes(bytes(100))
    for name in ("a", "b", "c"):
        save(
            tmp_path / f"{name}.onnx",
            context_node("./llm.bin" if name == "a" else "llm.bin"),
            external="w.data" if name < "c" else None,
        )
    save(tmp_path / "sub" / "d.onnx", context_node("llm.bin"))
    found = inspect_files([tmp_path])
    assert [Path(model["file"]).name for model in found["models"]] == ["a.onnx", "b.onnx", "c.onnx", "d.onnx"]
    shared = {Path(row["file"]).name: (len(row["models"]), row["size"], row["saved"]) for row in found["shared"]}
    assert shared == {"llm.bin": (3, len(BINARY), 2 * len(BINARY)), "w.data": (2, 100, 100)}
    json.dumps(found)


def test_a_binary_that_many_models_share_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "llm.bin").write_bytes(BINARY)
    for number in range(5):
        save(tmp_path / f"{number}.onnx", context_node())
    read: list[Path] = []
    with at_each_call(Payload.sha256, lambda call: read.append(call["self"].path)):
        inspect_files([tmp_path])
    assert read == [tmp_path / "llm.bin"]


LEFT = {"node": "", "operator": "Relu", "reason": "Cannot get shape"}


def test_fallback_nodes_have_the_reasons_of_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "llm.bin").write_bytes(BINARY)
    path = save(tmp_path / "prefill_ctx.onnx", context_node(), relu())
    assert inspect_model(path)["left"] == [{**LEFT, "reason": None}]
    list_files(tmp_path, models=["prefill"], left=[LEFT])
    assert inspect_model(path)["left"] == [LEFT]
    with path.open("ab") as file:
        file.write(b"\x1a\x01x")  # another producer's name: no longer the file in the manifest
    assert inspect_model(path)["left"] == [{**LEFT, "reason": None}]


def test_an_unusable_manifest_only_omits_fallback_reasons(tmp_path: Path) -> None:
    (tmp_path / "llm.bin").write_bytes(BINARY)
    path = save(tmp_path / "prefill_ctx.onnx", context_node(), relu())
    (tmp_path / "manifest.json").write_text('{"format": 99, "files": []}', encoding="utf-8")
    assert inspect_model(path)["left"] == [{**LEFT, "reason": None}]


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VerifyError) as refused:
        inspect_files([tmp_path])
    assert refused.value.problems[0].code == "EPB600"


def test_a_source_model_can_be_inspected(tmp_path: Path) -> None:
    found = inspect_model(save(tmp_path / "m.onnx", relu(), relu(), external="w.bin"))
    assert (found["ep_context_nodes"], found["other_operators"], found["external_data"]) == ([], {"Relu": 2}, ["w.bin"])


def test_a_missing_or_invalid_model_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model", encoding="utf-8")
    for name, code in {"text.onnx": "EPB602", "gone.onnx": "EPB600", ".": "EPB600"}.items():
        with pytest.raises(VerifyError) as refused:
            inspect_model(tmp_path / name)
        assert refused.value.problems[0].code == code
