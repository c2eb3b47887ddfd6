"""`epbuild diff`: whether and how two artifacts differ, by their bytes and by their manifests."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.core.errors import NothingToVerify
from epbuild.diff.difference import Comparison, compare
from epbuild.diff.facts import Incomparable
from epbuild.diff.sizes import PartChange
from epbuild.onnxfile.read.payload import Payload
from tests.onnxfile.context_models import encapsulated, sectioned
from tests.support.compiled_models import BINARY, QNN, SIGNATURE, context_node, save
from tests.support.moments import at_each_call

COMPATIBILITY = "ep_compatibility_info.QNNExecutionProvider"
METADATA = {COMPATIBILITY: "v2:6:2.51.0:5.51.0:73:60:0:0"}
SHA = "1" * 64
OTHER_SHA = "2" * 64

Change = Callable[[Path], None]


def artifact(folder: Path) -> Path:
    """Write two models that share a binary, with their manifest."""
    nodes = {
        name: context_node("llm.bin", partition_name=f"{name}_1", ep_sdk_version="v2.51.0") for name in ("prefill", "decode")
    }
    for name, node in nodes.items():
        save(folder / f"{name}_ctx.onnx", node, metadata=METADATA)
    (folder / "llm.bin").write_bytes(BINARY)
    source = {"sha256": SHA, "external_data": {"weights.bin": SHA}, **SIGNATURE}
    listed = {"name": "n", "source": QNN, "main_context": 1, "embed_mode": 0, "reference": "llm.bin"}
    rest = {"action_key": SHA, "source": source, "ep_context_nodes": [listed], "fallback_nodes": 0, "compatibility": {}}
    document = {
        "format": 1,
        "recipe": "llm",
        "group": "decoder",
        "share_weights": True,
        "target": {
            "name": "phone",
            "eps": [{"ep": QNN, "provider_options": {"soc_model": "SC8380XP"}}],
            "session_options": {},
            "environment": {},
            "unchecked_options": [],
        },
        "toolchain": {
            "python": "cpython-3.11",
            "platform": "linux-x86_64",
            "distributions": {"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0"},
        },
        "models": [{"name": name, "file": f"{name}_ctx.onnx", **rest} for name in nodes],
        "files": [{"path": f"{name}_ctx.onnx", "role": "model", "size": 1, "sha256": SHA} for name in nodes],
    }
    (folder / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def accepting(folder: Path) -> None:
    manifest("target", "allow_nondeterminism", value=True)(folder)


def other_context(folder: Path) -> None:
    (folder / "llm.bin").write_bytes(BINARY[:-4] + b"!!!!")


def manifest(*place: str | int, value: Any) -> Change:
    """Return an edit of the manifest at a place."""

    def change(folder: Path) -> None:
        path = folder / "manifest.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        spot = document
        for name in place[:-1]:
            spot = spot[name]
        spot[place[-1]] = value
        path.write_text(json.dumps(document), encoding="utf-8")

    return change


def node(**attributes: Any) -> Change:
    """Return an edit of the attributes of both models' nodes. None removes an attribute."""

    def change(folder: Path) -> None:
        for path in folder.glob("*_ctx.onnx"):
            model = onnx.load(path)
            (found,) = model.graph.node
            kept = [item for item in found.attribute if item.name not in attributes]
            del found.attribute[:]
            found.attribute.extend(kept)
            found.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items() if value is not None)
            onnx.save(model, path)

    return change


def model(edit: Callable[[Any], object]) -> Change:
    """Return an edit of the prefill model."""

    def change(folder: Path) -> None:
        loaded = onnx.load(folder / "prefill_ctx.onnx")
        edit(loaded)
        onnx.save(loaded, folder / "prefill_ctx.onnx")

    return change


def metadata(text: str) -> Change:
    """Return an edit of the prefill model's compatibility string."""
    return model(lambda loaded: helper.set_model_props(loaded, {COMPATIBILITY: text}))


def binary(content: bytes) -> Change:
    """Return an edit of the context binary."""

    def change(folder: Path) -> None:
        (folder / "llm.bin").write_bytes(content)

    return change


def renamed_binary(folder: Path) -> None:
    (folder / "llm.bin").rename(folder / "other.bin")
    node(ep_cache_context="other.bin")(folder)


def embedded(folder: Path) -> None:
    content = (folder / "llm.bin").read_bytes()
    (folder / "llm.bin").unlink()
    node(embed_mode=1, ep_cache_context=content)(folder)


def renamed_model(folder: Path) -> None:
    (folder / "prefill_ctx.onnx").rename(folder / "first.onnx")
    manifest("models", 0, "file", value="first.onnx")(folder)
    manifest("files", 0, "path", value="first.onnx")(folder)


def compared(tmp_path: Path, *changes: Change, bare: bool = False) -> Comparison:
    """Compare an artifact with its edited copy. `bare` omits the manifests."""
    old, new = artifact(tmp_path / "old"), artifact(tmp_path / "new")
    for change in changes:
        change(new)
    if bare:
        for folder in (old, new):
            (folder / "manifest.json").unlink()
    return compare(old, new)


OPTION = ("target", "eps", 0, "provider_options", "soc_model")

CASES: dict[str, tuple[tuple[Change, ...], list[str], str]] = {
    "an option": ((manifest(*OPTION, value="SM8750"),), ["target"], f"{QNN}: option soc_model"),
    "an EP": ((manifest("target", "eps", 0, "ep", value="Other"),), ["target"], "EP order"),
    "the target of the context": (
        (binary(BINARY.replace(b"SC8380XP", b"SM8750")),),
        ["target", "context"],
        "prefill: compiled for",
    ),
    "the target in a compatibility string": (
        (metadata("v2:6:2.51.0:5.51.0:73:69:0:0"),),
        ["target"],
        "prefill: compatibility, soc model",
    ),
    "an unread part of a compatibility string": (
        (metadata("v2:6:2.51.0:5.51.0:73:60:0:1"),),
        ["target"],
        "prefill: compatibility, the rest",
    ),
    "an unreadable compatibility string": ((metadata("v3"),), ["target", "toolchain"], "prefill: compatibility, text"),
    "a version in a compatibility string": (
        (metadata("v2:6:2.52.0:5.51.0:73:60:0:0"),),
        ["toolchain"],
        "prefill: compatibility, sdk",
    ),
    "the SDK": ((node(ep_sdk_version="v2.52.0"),), ["toolchain"], "prefill: SDK"),
    "a package": ((manifest("toolchain", "distributions", "onnxruntime", value="1.32.0"),), ["toolchain"], "package onnxruntime"),
    "the Python": ((manifest("toolchain", "python", value="cpython-3.12"),), ["toolchain"], "python"),
    "the source's data": (
        (manifest("models", 0, "source", "external_data", value={"weights.bin": OTHER_SHA}), binary(BINARY + b"!")),
        ["weights", "context"],
        "prefill: source data weights.bin",
    ),
    "the source's graph file": (
        (manifest("models", 1, "source", "sha256", value=OTHER_SHA), binary(BINARY + b"!")),
        ["graph or weights", "context"],
        "decode: source file",
    ),
    "sharing": ((manifest("share_weights", value=False),), ["settings"], "share weights"),
    "a session key": ((manifest("target", "session_options", value={"a.b": "1"}),), ["settings"], "session key a.b"),
    "a variable": ((manifest("target", "environment", value={"A": "1"}),), ["settings"], "environment variable A"),
    "an unchecked option": ((manifest("target", "unchecked_options", value=["a"]),), ["settings"], "unchecked options"),
    "the place of the context": ((embedded,), ["settings", "names"], "prefill: location of the context"),
    "an EP's own attribute": ((node(is_multi_soc_ep_context=1),), ["settings"], "prefill: other attributes"),
    "a float attribute": ((node(scale=[0.5, 1.5]),), ["settings"], "prefill: other attributes"),
    "a long text attribute": ((node(secret="x" * 70_000),), ["settings"], "prefill: other attributes"),
    "a tensor in an attribute": (
        (node(table=helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0])),),
        ["settings"],
        "prefill: other attributes",
    ),
    "a schema attribute of another type": ((node(notes=[1, 2]),), ["settings"], "prefill: other attributes"),
    "an attribute with its default value": ((node(max_size=0),), ["settings"], "prefill: attributes with explicit defaults"),
    "an empty attribute": ((node(notes=""),), ["settings"], "prefill: attributes with explicit defaults"),
    "an input": ((model(lambda loaded: setattr(loaded.graph.input[0], "name", "z")),), ["graph"], "prefill: input x"),
    "a node outside the EP": (
        (model(lambda loaded: loaded.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))),),
        ["graph"],
        "prefill: nodes of Relu",
    ),
    "an additional node": (
        (model(lambda loaded: loaded.graph.node.append(loaded.graph.node[0])),),
        ["graph"],
        "prefill: EPContext nodes",
    ),
    "a fact outside the header": (
        (model(lambda loaded: setattr(loaded, "doc_string", "new")),),
        ["graph"],
        "prefill: other parts of the file",
    ),
    "the order of the models": (
        (lambda folder: manifest("models", value=json.loads((folder / "manifest.json").read_text())["models"][::-1])(folder),),
        ["settings"],
        "model order",
    ),
    "a partition name": ((node(partition_name="p2"),), ["names"], "prefill: partition name"),
    "a binary's name": ((renamed_binary,), ["names"], "prefill: context binary"),
    "a model's file": ((renamed_model,), ["names"], "prefill: file"),
    "a model's name": ((manifest("models", 0, "name", value="first"),), ["names"], "prefill: name"),
    "the recipe's name": ((manifest("recipe", value="other"),), ["names"], "name of the recipe"),
    "the source data's name": (
        (manifest("models", 0, "source", "external_data", value={"w": SHA}),),
        ["names"],
        "prefill: source data files",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_change_is_reported_in_its_category(tmp_path: Path, case: str) -> None:
    changes, senses, what = CASES[case]
    found = compared(tmp_path, *changes)
    assert list(found.senses) == senses
    assert what in {difference.what for difference in found.differences}
    assert (
        found.verdict == "The artifacts differ only in names."
        if senses == ["names"]
        else found.verdict.startswith(f"The artifacts differ in {senses[0]}")
    )


def test_changed_non_schema_attribute_is_a_setting(tmp_path: Path) -> None:
    old, new = artifact(tmp_path / "old"), artifact(tmp_path / "new")
    node(scale=0.5)(old)
    node(scale=0.75)(new)
    assert compare(old, new).senses == ("settings",)


def test_equal_models_are_equal_in_any_serialization(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert found.differences == ()
    assert found.verdict == "No difference: 2 models, identical byte for byte."
    assert found.same == ("graph", "weights", "target", "settings", "toolchain", "context", "names")


def test_several_categories_are_reported_most_important_first(tmp_path: Path) -> None:
    found = compared(tmp_path, manifest("recipe", value="other"), node(ep_sdk_version="v3"), manifest(*OPTION, value="SM8750"))
    assert found.verdict == "The artifacts differ in target, toolchain and names."
    assert found.same == ("graph", "weights", "settings", "context")


def test_changed_source_leaves_open_whether_graph_or_weights_changed(tmp_path: Path) -> None:
    found = compared(tmp_path, manifest("models", 0, "source", "sha256", value=OTHER_SHA))
    assert not {"graph", "weights"} & set(found.same)


def test_unexplained_context_difference_stays_unexplained(tmp_path: Path) -> None:
    found = compared(tmp_path, binary(BINARY + b"!"))
    assert found.senses == ("context",)
    assert found.verdict == "The contexts differ although all inputs and settings are equal."


def test_unlisted_setting_is_reported_by_the_action_key(tmp_path: Path) -> None:
    key = manifest("models", 0, "action_key", value=OTHER_SHA)
    found = compared(tmp_path / "1", binary(BINARY + b"!"), key)
    assert found.verdict == "The artifacts differ in settings and context."
    assert "prefill: action key" in {difference.what for difference in found.differences}
    found = compared(tmp_path / "2", binary(BINARY + b"!"), key, manifest(*OPTION, value="SM8750"))
    assert found.senses == ("target", "context")
    assert compared(tmp_path / "3", key).differences == ()


def test_models_without_a_manifest_are_compared_by_content(tmp_path: Path) -> None:
    found = compared(tmp_path / "1", manifest(*OPTION, value="SM8750"), bare=True)
    assert found.differences == ()
    assert found.without_manifest == ("A", "B")
    assert not {"settings", "toolchain", "weights"} & set(found.same)
    found = compared(tmp_path / "2", binary(BINARY + b"!"), bare=True)
    assert found.verdict == "The contexts differ because of weights, or because of options that only manifests list."
    found = compared(tmp_path / "3", binary(BINARY.replace(b"SC8380XP", b"SM8750")), bare=True)
    assert found.verdict == "The artifacts differ in target and context."


def test_renamed_model_is_matched_by_its_content(tmp_path: Path) -> None:
    def rename(folder: Path) -> None:
        for path in folder.glob("*_ctx.onnx"):
            path.rename(path.with_name(f"z_{'first' if path.name.startswith('prefill') else 'second'}.onnx"))

    found = compared(tmp_path, rename, model_input("decode", "position"), bare=True)
    assert found.senses == ("graph", "names")
    assert not any(difference.is_one_sided for difference in found.differences)


def model_input(name: str, value: str) -> Change:
    """Rename an input of a model, whatever the current name of its file."""

    def change(folder: Path) -> None:
        (path,) = (path for path in folder.glob("*.onnx") if {"prefill": "first", "decode": "second"}[name] in path.name)
        loaded = onnx.load(path)
        loaded.graph.input[0].name = value
        onnx.save(loaded, path)

    return change


def test_manifest_on_one_side_implies_nothing_about_the_other_side(tmp_path: Path) -> None:
    old, new = artifact(tmp_path / "old"), artifact(tmp_path / "new")
    (old / "manifest.json").unlink()
    found = compare(old, new / "manifest.json")
    assert (found.differences, found.without_manifest) == ((), ("A",))


def test_two_models_are_compared_under_any_names(tmp_path: Path) -> None:
    folder = artifact(tmp_path / "out")
    found = compare(folder / "prefill_ctx.onnx", folder / "decode_ctx.onnx")
    assert {difference.what for difference in found.differences} == {"prefill_ctx.onnx: file", "prefill_ctx.onnx: partition name"}
    assert found.verdict == "The artifacts differ only in names."


def test_model_of_only_one_side_is_reported_and_nothing_is_called_equal(tmp_path: Path) -> None:
    old, new = artifact(tmp_path / "old"), artifact(tmp_path / "new")
    for folder in (old, new):
        (folder / "manifest.json").unlink()
    (new / "decode_ctx.onnx").unlink()
    found = compare(old, new)
    assert [(item.what, item.kind, item.old, item.new) for item in found.differences] == [
        ("model decode_ctx.onnx", "removed", "decode_ctx.onnx", None)
    ]
    assert found.same == ()
    (added,) = compare(new, old).differences
    assert (added.kind, added.new) == ("added", "decode_ctx.onnx")


def test_folders_of_several_artifacts_are_compared_by_path(tmp_path: Path) -> None:
    for side in ("old", "new"):
        for target in ("phone", "laptop"):
            artifact(tmp_path / side / "dist" / target)
    manifest(*OPTION, value="SM8750")(tmp_path / "new/dist/phone")
    (option,) = compare(tmp_path / "old", tmp_path / "new").differences
    assert option.what == f"dist/phone: {QNN}: option soc_model"
    artifact(tmp_path / "new/dist/tablet")
    found = compare(tmp_path / "old", tmp_path / "new")
    assert [(item.what, item.new) for item in found.differences if item.is_one_sided] == [
        ("dist/tablet: models", "prefill_ctx.onnx, decode_ctx.onnx")
    ]
    assert found.models == 4


@pytest.mark.parametrize(("name", "same"), [("other.bin", True), ("weights.bin", False)])
def test_external_weights_are_compared_by_content_and_by_name(tmp_path: Path, name: str, same: bool) -> None:
    for side, location, content in (("old", "weights.bin", b"1234"), ("new", name, b"1234" if same else b"4321")):
        save(tmp_path / side / "m.onnx", context_node("m.bin"), external=location)
        (tmp_path / side / "m.bin").write_bytes(BINARY)
        (tmp_path / side / location).write_bytes(content)
    found = compare(tmp_path / "old", tmp_path / "new")
    if same:
        assert found.verdict == "The artifacts differ only in names."
        assert {difference.what for difference in found.differences} == {"m.onnx: external data files"}
    else:
        assert [difference.what for difference in found.differences] == ["m.onnx: external data weights.bin"]
        assert found.senses == ("weights",)


def test_inline_weights_are_not_distinguished_from_the_graph(tmp_path: Path) -> None:
    for side, value in (("old", 1.0), ("new", 2.0)):
        path = save(tmp_path / side / "m.onnx", context_node("m.bin"))
        (tmp_path / side / "m.bin").write_bytes(BINARY)
        loaded = onnx.load(path)
        weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [value])
        loaded.graph.initializer.append(weight)
        assert numpy_helper.to_array(weight)[0] == value
        onnx.save(loaded, path)
    found = compare(tmp_path / "old", tmp_path / "new")
    assert found.senses == ("graph or weights",)


def test_weights_beside_a_context_are_compared_with_it(tmp_path: Path) -> None:
    old, new = encapsulated(tmp_path / "old/m.onnx"), encapsulated(tmp_path / "new/m.onnx")
    assert compare(old, new).differences == ()
    (new.parent / "net.bin").write_bytes(bytes(32))
    (difference,) = compare(old, new).differences
    assert (difference.sense, difference.what) == ("context", "m.onnx: weights of the context")


def test_a_changed_size_of_a_context_is_split_by_graph(tmp_path: Path) -> None:
    old, new = artifact(tmp_path / "old"), artifact(tmp_path / "new")
    binary(sectioned(9_000, prefill_1=2000, decode_1=1000, shared=3000, other=500))(old)
    # The EP derives other names of graphs from a changed model.
    node(partition_name="decode_2")(new)
    model(lambda loaded: renamed_partition(loaded, "prefill_2"))(new)
    binary(sectioned(9_900, prefill_2=2600, decode_2=1000, shared=3000, another=500, new=7))(new)
    [size] = [item for item in compare(old, new).sizes if item.kind == "context binary"]
    assert size.parts == (
        PartChange("graph", "prefill", 2000, 2600),
        PartChange("headers and padding", "", 2500, 2793),
        PartChange("graph", "new", None, 7),
    )
    binary(BINARY)(new)
    assert [item.parts for item in compare(old, new).sizes] == [()] * 3


def renamed_partition(loaded: Any, name: str) -> None:
    next(item for item in loaded.graph.node[0].attribute if item.name == "partition_name").s = name.encode()


def test_weights_with_generated_names_are_paired_by_size(tmp_path: Path) -> None:
    old, new = encapsulated(tmp_path / "old/m.onnx"), encapsulated(tmp_path / "new/m.onnx")
    for path, weights in ((old, {"w": 16, "Transpose_7": 64}), (new, {"w": 32, "Transpose_9": 64})):
        offsets = itertools.accumulate(weights.values(), initial=0)
        constants = zip(weights.items(), offsets, strict=False)
        text = "".join(f'name="{name}" type="Const"><data offset="{start}" size="{size}"/>' for (name, size), start in constants)
        (path.parent / "net.xml").write_text(text, encoding="utf-8")
        (path.parent / "net.bin").write_bytes(bytes(sum(weights.values())))
    assert [item.parts for item in compare(old, new).sizes if item.parts] == [(PartChange("weights", "w", 16, 32),)]
    (new.parent / "net.xml").write_text(
        (new.parent / "net.xml").read_text(encoding="utf-8").replace("Transpose_9", "w"), encoding="utf-8"
    )
    assert PartChange("weights", "w", 16, 32 + 64) in [part for item in compare(old, new).sizes for part in item.parts]


def test_embedded_contexts_are_compared_like_external_contexts(tmp_path: Path) -> None:
    found = compared(tmp_path, embedded, bare=True)
    assert "context" in found.same
    old, new = tmp_path / "a/m.onnx", tmp_path / "b/m.onnx"
    save(old, context_node(embed_mode=1, ep_cache_context=BINARY))
    save(new, context_node(embed_mode=1, ep_cache_context=BINARY[::-1][:-3] + BINARY))
    found = compare(old, new)
    assert {difference.what for difference in found.differences} == {"m.onnx: context", "m.onnx: size of the context"}


def test_unreadable_artifact_is_an_error_and_not_a_difference(tmp_path: Path) -> None:
    good = artifact(tmp_path / "good")
    with pytest.raises(NothingToVerify) as nothing:
        compare(good, tmp_path / "nowhere")
    assert nothing.value.exit_code == 2
    damages: tuple[Callable[[Path], object], ...] = (
        lambda folder: (folder / "llm.bin").unlink(),
        lambda folder: (folder / "decode_ctx.onnx").unlink(),
        lambda folder: (folder / "decode_ctx.onnx").write_bytes(b"no model"),
        lambda folder: (folder / "manifest.json").write_text('{"format": 1, "group": 3}'),
    )
    for number, damage in enumerate(damages):
        bad = artifact(tmp_path / str(number))
        damage(bad)
        with pytest.raises(Incomparable, match="EPB630") as refused:
            compare(bad, good)
        assert refused.value.exit_code == 2


def test_shared_binary_is_read_once(tmp_path: Path) -> None:
    read: list[str] = []
    with at_each_call(Payload.sha256, lambda call: read.append(call["self"].path.name)):
        compared(tmp_path)
    assert sorted(read) == ["decode_ctx.onnx", "decode_ctx.onnx", "llm.bin", "llm.bin", "prefill_ctx.onnx", "prefill_ctx.onnx"]


def test_weights_moved_within_their_file_are_a_change_of_settings(tmp_path: Path) -> None:
    for side, offset in (("old", 0), ("new", 4)):
        save(tmp_path / side / "m.onnx", context_node("m.bin"), external="w.bin", extent=(offset, 16))
        (tmp_path / side / "m.bin").write_bytes(BINARY)
        (tmp_path / side / "w.bin").write_bytes(bytes(20))
    (found,) = compare(tmp_path / "old", tmp_path / "new").differences
    assert (found.sense, found.what) == ("settings", "m.onnx: location of initializer w")
    assert (found.old, found.new) == ("in a file: 16 bytes at offset 0", "in a file: 16 bytes at offset 4")


def test_context_bytes_are_no_difference_if_both_recipes_accept_changes(tmp_path: Path) -> None:
    old, new = artifact(tmp_path / "old"), artifact(tmp_path / "new")
    accepting(old)
    accepting(new)
    other_context(new)
    found = compare(old, new)
    assert (found.senses, found.accepted) == (("context",), True)
    assert found.verdict == "The artifacts are equal except for bytes of contexts, and the recipe accepts such differences."
    manifest("target", "session_options", value={"x": "1"})(new)
    assert not compare(old, new).accepted


@pytest.mark.parametrize("accepts", ["neither", "old", "new"])
def test_context_bytes_are_a_difference_unless_both_recipes_accept_changes(accepts: str, tmp_path: Path) -> None:
    folders = {"old": artifact(tmp_path / "old"), "new": artifact(tmp_path / "new")}
    other_context(folders["new"])
    if accepts in folders:
        accepting(folders[accepts])
    assert not compare(*folders.values()).accepted


def test_changed_context_size_is_a_difference_despite_the_recipes(tmp_path: Path) -> None:
    old, new = artifact(tmp_path / "old"), artifact(tmp_path / "new")
    accepting(old)
    accepting(new)
    (new / "llm.bin").write_bytes(BINARY + b"!")
    assert not compare(old, new).accepted
