"""Keys: they change exactly if the result can change, and the reasons name the changed part of the recipe."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.catalog.catalog import list_session_keys
from epbuild.core.canonical import encode_canonical
from epbuild.plan.key import Change, compare_documents, compute_action_key, describe_differences
from tests.support.plan_recipes import RECIPE, TOOLCHAIN, document_of, edited, plan_of, write_model, write_models

SHARED = "share:decoder/phone"
EXTERNAL = "    share_weights: true\n    compile: {initializers: {store: external, file: '${model}.w', threshold: 64}}\n"


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    write_models(tmp_path)
    return tmp_path


def document(folder: Path, text: str = RECIPE, action: str = SHARED, toolchain: dict[str, Any] | None = None) -> dict[str, Any]:
    return document_of(plan_of(folder, text).session_groups[action], toolchain)


def changed(folder: Path, before: str, after: str, action: str = SHARED, now: str | None = None) -> list[str]:
    """Return the reasons of `action` after an edit of the recipe. `now` is the action's new id, if the edit changes it."""
    old, new = document(folder, before, action), document(folder, after, now or action)
    found = describe_differences(old, new)
    assert (compute_action_key(old) == compute_action_key(new)) == (not found), "whether and why must agree"
    assert json.loads(json.dumps(old)) == old, "a record keeps the document as JSON"
    return found


# -- Edits without effect ----------------------------------------------------------------------------------------------


def test_two_checkouts_have_equal_keys(tmp_path: Path) -> None:
    documents = []
    for name in ("here", "there/deeper"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        write_models(folder)
        documents.append(document(folder))
    assert documents[0] == documents[1]
    assert compute_action_key(documents[0]) == compute_action_key(documents[1])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("soc_model: SM8750", "soc_model: 69"),
        ("soc_model: SM8750", 'soc_model: "69"'),
        ("soc_model: SM8750", "soc_model: sm8750"),
        ("backend_type: htp", "backend_type: HTP"),
        ("soc_model: SM8750", "soc_model: SM8750\n      htp_performance_mode: burst\n      rpc_control_latency: 100"),
        ("    share_weights: true\n", "    share_weights: true\n    timeout: 90\n    expect: {ep_context_nodes: 1}\n"),
        (
            "    share_weights: true\n",
            "    share_weights: true\n    compile: {embed: false, graph_optimization_level: basic}\n",
        ),
        ("    path: dist/${group}/${target}\n", "    path: elsewhere/${group}/${target}\n    model: ${model}.onnx\n"),
        ("name: tiny\n", "name: renamed\ndescription: The same, described.\n"),
        ("packages: [onnxruntime-openvino==1.24.1]", "packages: [onnxruntime-openvino==1.24.0]"),
        ("models/classifier.onnx", "nosuch/../models/classifier.onnx"),
        (
            "  prefill: models/prefill.onnx\n  decode: models/decode.onnx\n",
            "  decode: models/decode.onnx\n  prefill: models/prefill.onnx\n",
        ),
        (
            "      backend_type: htp\n      soc_model: SM8750\n",
            "      # a remark\n      soc_model: SM8750\n      backend_type: htp\n",
        ),
    ],
    ids=[
        "a SoC by number",
        "by quoted number",
        "in lower case",
        "an option in upper case",
        "silent options",
        "timeout and expectations",
        "defaults written out",
        "where it is emitted",
        "the recipe's name",
        "another toolchain",
        "another model",
        "the order of models",
        "the order of options",
    ],
)
def test_edits_that_cannot_change_the_result_compile_nothing(workshop: Path, old: str, new: str) -> None:
    (workshop / "nosuch").mkdir()
    assert changed(workshop, RECIPE, edited(RECIPE, (old, new))) == []


def test_renaming_a_group_and_a_target_compiles_nothing(workshop: Path) -> None:
    after = edited(RECIPE, ("  decoder:\n", "  llm:\n"), ("  phone:\n", "  pocket:\n"), ("[phone]", "[pocket]"))
    assert changed(workshop, RECIPE, after, now="share:llm/pocket") == []


def test_moving_and_renaming_a_models_file_compiles_nothing(workshop: Path) -> None:
    (workshop / "moved").mkdir()
    (workshop / "models" / "prefill.onnx").rename(workshop / "moved" / "part-1.onnx")
    before = document_of(plan_of(workshop, RECIPE.replace("models/prefill", "moved/part-1")).session_groups[SHARED])
    write_models(workshop)
    assert describe_differences(before, document(workshop)) == []


@given(
    order=st.permutations(["backend_type: htp", "soc_model: SM8750", "vtcm_mb: 8", "enable_htp_fp16_precision: true", "# why"])
)
def test_the_order_of_options_does_not_change_the_key(order: list[str]) -> None:
    lines = "".join(f"      {line}\n" for line in order)
    sorted_lines = "".join(f"      {line}\n" for line in sorted(order))
    options = "      backend_type: htp\n      soc_model: SM8750\n"
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        keys = [compute_action_key(document(Path(folder), edited(RECIPE, (options, text)))) for text in (lines, sorted_lines)]
    assert keys[0] == keys[1]


# -- Changes of the key, and their reasons -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("soc_model: SM8750", "soc_model: SM8650", "option soc_model of QNNExecutionProvider changed: SM8750 -> SM8650"),
        ("soc_model: SM8750", "soc_model: SM8750\n      vtcm_mb: 8", "option vtcm_mb of QNNExecutionProvider added: 8"),
        ("      backend_type: htp\n", "", "option backend_type of QNNExecutionProvider removed (was htp)"),
        (
            "    ep: QNNExecutionProvider\n",
            "    ep: QNNExecutionProvider\n    session_options: {session.disable_quant_qdq: true}\n",
            "session key session.disable_quant_qdq added: 1",
        ),
        (
            "    ep: QNNExecutionProvider\n",
            "    ep: QNNExecutionProvider\n    device: {type: npu}\n",
            "QNNExecutionProvider: device type changed: nothing -> npu",
        ),
        (
            "    ep: QNNExecutionProvider\n",
            "    ep: QNNExecutionProvider\n    device: {vendor: Qualcomm}\n",
            "QNNExecutionProvider: device vendor changed: nothing -> Qualcomm",
        ),
        (
            "    ep: QNNExecutionProvider\n",
            '    ep: QNNExecutionProvider\n    device: {metadata: {arch: "73"}}\n',
            "QNNExecutionProvider: device metadata arch added: 73",
        ),
        ("models: [prefill, decode]", "models: [decode, prefill]", "member order changed: prefill, decode -> decode, prefill"),
        (
            "models: [prefill, decode]",
            "models: [prefill, {model: decode, compile: {graph_optimization_level: all}}]",
            "model decode: compile graph optimization level changed: basic -> all",
        ),
        (
            "models: [prefill, decode]",
            "models: [prefill, {model: decode, compile: {initializers: {store: source}}}]",
            "model decode: compile initializers changed: inline -> source",
        ),
        (
            "decode: models/decode.onnx",
            "decode: {path: models/decode.onnx, load_from: memory}",
            "model decode: loading of the graph changed: file -> bytes",
        ),
        (
            "    ep: QNNExecutionProvider\n",
            "    ep: QNNExecutionProvider\n    environment: {QNN_TRACE: true}\n",
            "environment variable QNN_TRACE added: 1",
        ),
    ],
)
def test_each_change_of_the_recipe_is_the_only_reason_reported(workshop: Path, old: str, new: str, sentence: str) -> None:
    assert changed(workshop, RECIPE, edited(RECIPE, (old, new))) == [sentence]


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ("dimensions: {batch: 4}", "size of dimension batch added: 4"),
        ("dimensions: {DATA_BATCH: 4}", "size of denotation DATA_BATCH added: 4"),
        ("input_shapes: {x: [4, 3]}", "sizes of input x added: 4, 3"),
    ],
)
def test_the_sizes_of_a_model_are_in_the_key(workshop: Path, sizes: str, sentence: str) -> None:
    write_model(workshop / "models" / "classifier.onnx", shape=["batch", 3], denotation="DATA_BATCH")
    sized = edited(RECIPE, ("classifier: models/classifier.onnx", f"classifier: {{path: models/classifier.onnx, {sizes}}}"))
    assert changed(workshop, RECIPE, sized, "compile:vision/cpu/classifier") == [f"model classifier: {sentence}"]


def test_the_spelling_of_sizes_is_not_in_the_key(workshop: Path) -> None:
    write_model(workshop / "models" / "classifier.onnx", shape=["batch", 3])
    old = "classifier: models/classifier.onnx"
    of_model = edited(RECIPE, (old, "classifier: {path: models/classifier.onnx, input_shapes: {x: [4, 3]}}"))
    of_member = edited(RECIPE, ("[classifier, prefill]", "[{model: classifier, input_shapes: {x: [4, 3]}}, prefill]"))
    compiled = "compile:vision/cpu/classifier"
    assert changed(workshop, of_model, of_member, compiled) == []
    write_model(workshop / "models" / "classifier.onnx", shape=[4, 3])
    assert changed(workshop, RECIPE, of_member, compiled) == [], "and sizes that the model has already are no change"


def test_weight_sharing_is_in_the_key(workshop: Path) -> None:
    alone = edited(RECIPE, ("[prefill, decode]", "[prefill]"))
    apart = edited(alone, ("    share_weights: true\n", ""))
    found = changed(workshop, alone, apart, now="compile:decoder/phone/prefill")
    assert found == ["share weights changed: true -> false"]


def test_the_settings_of_one_weights_file_are_in_the_key(workshop: Path) -> None:
    one = edited(RECIPE, ("    share_weights: true\n", "    share_weights: true\n    share_initializers: true\n"))
    assert changed(workshop, RECIPE, one) == [
        "share initializers file added: decoder.weights.bin",
        "share initializers threshold added: 1024",
    ]
    more = edited(one, ("share_initializers: true", "share_initializers: {threshold: 64}"))
    assert changed(workshop, one, more) == ["share initializers threshold changed: 1024 -> 64"]
    renamed = edited(one, ("  decoder:\n", "  llm:\n"))
    found = changed(workshop, one, renamed, now="share:llm/phone")
    assert found == ["share initializers file changed: decoder.weights.bin -> llm.weights.bin"]


def test_embedding_is_in_the_key(workshop: Path) -> None:
    embedding = edited(RECIPE, ("  vision:\n", "  vision:\n    compile: {embed: true}\n"))
    found = changed(workshop, RECIPE, embedding, "compile:vision/cpu/prefill")
    assert found == ["model prefill: compile embed changed: false -> true"]


def test_the_node_name_prefix_is_in_the_key(workshop: Path) -> None:
    named = edited(RECIPE, ("  vision:\n", "  vision:\n    compile: {node_name_prefix: '${model}_'}\n"))
    found = changed(workshop, RECIPE, named, "compile:vision/cpu/prefill")
    assert found == ["model prefill: compile node name prefix changed: nothing -> prefill_"]


def test_the_location_of_initializers_is_in_the_key(workshop: Path) -> None:
    external = edited(RECIPE, ("    share_weights: true\n", EXTERNAL))
    assert changed(workshop, RECIPE, external) == [
        f"model {model}: compile {what}"
        for model in ("prefill", "decode")
        for what in (
            "initializers changed: inline -> external",
            f"external file changed: nothing -> {model}.w",
            "external threshold changed: nothing -> 64",
        )
    ]
    larger = edited(external, ("threshold: 64", "threshold: 65"))
    assert changed(workshop, external, larger) == [
        f"model {model}: compile external threshold changed: 64 -> 65" for model in ("prefill", "decode")
    ]


def test_a_changed_graph_is_reported_by_model_with_the_digests_of_sha256sum(workshop: Path) -> None:
    before = document(workshop)
    write_model(workshop / "models" / "prefill.onnx", weights={"shared": [4], "prefill.only": [2]}, value=1.0)
    after = document(workshop)
    old, new = (doc["members"][0]["graph"][:8] for doc in (before, after))
    assert describe_differences(before, after) == [f"model prefill changed: {old} -> {new}"]
    assert compute_action_key(before) != compute_action_key(after)


def test_changed_external_data_is_reported_by_model_and_location(workshop: Path) -> None:
    before = document(workshop)
    (workshop / "models" / "decode.bin").write_bytes(b"x" * 16)
    after = document(workshop)
    old, new = (doc["members"][1]["external"]["decode.bin"][:8] for doc in (before, after))
    assert describe_differences(before, after) == [f"model decode: external data decode.bin changed: {old} -> {new}"]
    assert compute_action_key(before) != compute_action_key(after)


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (("distributions", "onnxruntime-qnn"), "2.8.0", "package onnxruntime-qnn changed: 2.7.0 -> 2.8.0"),
        (("distributions", "numpy"), "2.0", "package numpy added: 2.0"),
        (("distributions", "onnxruntime"), None, "package onnxruntime removed (was 1.31.1)"),
        (
            ("libraries", "onnxruntime_qnn/libQnnHtp.so"),
            "b" * 64,
            "library onnxruntime_qnn/libQnnHtp.so changed: aaaaaaaa -> bbbbbbbb",
        ),
        (("libraries", "onnxruntime_qnn/libNew.so"), "c" * 64, "library onnxruntime_qnn/libNew.so added: cccccccc"),
        (("python",), "cpython-3.12", "toolchain python changed: cpython-3.11 -> cpython-3.12"),
        (("platform",), "win-arm64", "toolchain platform changed: linux-x86_64 -> win-arm64"),
        (("host",), {"cpu": "Another CPU"}, "this machine's CPU added: Another CPU"),
    ],
)
def test_a_change_of_the_toolchain_is_reported_by_package_or_library(
    workshop: Path, place: tuple[str, ...], value: str | dict[str, str] | None, sentence: str
) -> None:
    toolchain = copy.deepcopy(TOOLCHAIN)
    *path, last = place
    table = toolchain
    for name in path:
        table = table[name]
    if value is None:
        del table[last]
    else:
        table[last] = value
    before, after = document(workshop), document(workshop, toolchain=toolchain)
    assert describe_differences(before, after) == [sentence]
    assert compute_action_key(before) != compute_action_key(after)


def test_a_newer_catalog_revision_compiles_again_and_is_the_reason(workshop: Path) -> None:
    group = plan_of(workshop).session_groups[SHARED]
    (ep,) = group.target.eps
    entry = replace(ep.entry, revision=ep.entry.revision + 1)
    better = replace(ep, entry=entry)
    newer = replace(group, target=replace(group.target, eps=(better,)))
    before, after = document_of(group), document_of(newer)
    assert describe_differences(before, after) == [
        f"epbuild's catalog of QNNExecutionProvider changed: {ep.entry.digest[:8]} -> {entry.digest[:8]}"
    ]
    assert compute_action_key(before) != compute_action_key(after)


def test_a_newer_catalog_of_session_keys_compiles_again(workshop: Path) -> None:
    now = document_of(plan_of(workshop).session_groups[SHARED])
    revision = list_session_keys().revision
    assert now["catalog"]["session"] == revision
    before = {**now, "catalog": {**now["catalog"], "session": revision - 1}}
    assert compute_action_key(before) != compute_action_key(now)
    assert describe_differences(before, now) == [f"epbuild's catalog of session keys changed: {revision - 1} -> {revision}"]


def test_staged_names_that_eps_write_into_their_output_are_in_the_key(workshop: Path) -> None:
    assert [(member["source"], member["output"]) for member in document(workshop)["members"]] == [
        ("in/prefill/prefill.onnx", "out/prefill_ctx.onnx"),
        ("in/decode/decode.onnx", "out/decode_ctx.onnx"),
    ]


def test_several_changes_are_all_reported(workshop: Path) -> None:
    after = edited(RECIPE, ("soc_model: SM8750", "soc_model: SM8650\n      vtcm_mb: 8"))
    assert changed(workshop, RECIPE, after) == [
        "option soc_model of QNNExecutionProvider changed: SM8750 -> SM8650",
        "option vtcm_mb of QNNExecutionProvider added: 8",
    ]


def test_a_changed_member_order_is_reported_along_with_other_changes(workshop: Path) -> None:
    after = edited(RECIPE, ("models: [prefill, decode]", "models: [decode, prefill]"), ("soc_model: SM8750", "soc_model: SM8650"))
    assert changed(workshop, RECIPE, after) == [
        "option soc_model of QNNExecutionProvider changed: SM8750 -> SM8650",
        "member order changed: prefill, decode -> decode, prefill",
    ]


def test_an_added_or_removed_member_is_one_change(workshop: Path) -> None:
    larger = edited(RECIPE, ("models: [prefill, decode]", "models: [classifier, prefill, decode]"))
    assert changed(workshop, RECIPE, larger) == ["model classifier added"]
    assert changed(workshop, larger, RECIPE) == ["model classifier removed"]
    exchanged = edited(RECIPE, ("models: [prefill, decode]", "models: [prefill, classifier]"))
    assert changed(workshop, RECIPE, exchanged) == ["model decode removed", "model classifier added"]


def test_an_added_or_removed_ep_is_one_change() -> None:
    eps = [{"name": name, "catalog": "1", "options": {"a": "1"}} for name in ("QNNExecutionProvider", "CPUExecutionProvider")]
    assert describe_differences({"eps": eps[:1]}, {"eps": eps}) == ["EP CPUExecutionProvider added"]
    assert describe_differences({"eps": eps}, {"eps": eps[::-1]}) == [
        "EP order changed: QNNExecutionProvider, CPUExecutionProvider -> CPUExecutionProvider, QNNExecutionProvider"
    ]


def test_each_change_has_its_location_and_both_full_values() -> None:
    old = {"members": [{"name": "a", "graph": "a" * 64}], "environment": {}, "eps": []}
    new = {"members": [{"name": "a", "graph": "b" * 64}], "environment": {"QNN_TRACE": "1"}, "eps": []}
    found = compare_documents(old, new)
    assert found == [
        Change("changed", ("members", "a", "graph"), "a" * 64, "b" * 64),
        Change("added", ("environment", "QNN_TRACE"), None, "1"),
    ]
    assert [change.what for change in found] == ["model a", "environment variable QNN_TRACE"]


def test_changes_of_an_output_are_reported_in_terms_of_the_recipe() -> None:
    made = {"share:llm/phone": {"key": "a" * 64, "artifacts": {"a_ctx_qnn.bin": "b" * 64}}}
    later = {"share:llm/phone": {"key": "c" * 64, "artifacts": {"a_ctx_qnn.bin": "d" * 64}}}
    old = {
        "epbuild": "1.0",
        "recipe": "llm",
        "models": {"a": "a_ctx.onnx"},
        "context binaries": {"a": {"QNNExecutionProvider": "a_qnn.bin"}},
        "made": made,
        "options": {"QNNExecutionProvider": {"soc_model": "60"}},
    }
    new = {
        "epbuild": "1.1",
        "recipe": "llms",
        "models": {"a": "a.onnx"},
        "context binaries": {"a": {"QNNExecutionProvider": "a.bin"}},
        "made": later,
        "options": {"QNNExecutionProvider": {"soc_model": "69"}},
    }
    assert describe_differences(old, new) == [
        "epbuild's version changed: 1.0 -> 1.1",
        "the recipe's name changed: llm -> llms",
        "the file name of model a changed: a_ctx.onnx -> a.onnx",
        "the context binary's file name for model a and QNNExecutionProvider changed: a_qnn.bin -> a.bin",
        "the key of share:llm/phone changed: aaaaaaaa -> cccccccc",
        "a_ctx_qnn.bin from share:llm/phone changed: bbbbbbbb -> dddddddd",
        "option soc_model of QNNExecutionProvider changed: 60 -> 69",
    ]
    parts = [{"parts": {"llm/phone": {"options": document["options"]}}} for document in (old, new)]
    assert describe_differences(*parts) == ["llm/phone: option soc_model of QNNExecutionProvider changed: 60 -> 69"]
    apart = {"compile:llm/phone/a": made["share:llm/phone"]}
    assert describe_differences({"made": made}, {"made": apart}) == [
        "the result of share:llm/phone removed",
        "the result of compile:llm/phone/a added",
    ]


def test_consequences_of_a_change_are_reported_only_without_a_cause() -> None:
    old = {"format": 5, "recipe": "llm", "order": {"llm": "a, b"}, "files": {"manifest.json": "a" * 64}}
    other_bytes = {**old, "files": {"manifest.json": "b" * 64, "x.bin": "c" * 64}}
    assert describe_differences(old, other_bytes) == ["manifest.json changed: aaaaaaaa -> bbbbbbbb", "x.bin added: cccccccc"]
    other_order = {**other_bytes, "order": {"llm": "b, a"}}
    assert describe_differences(old, other_order) == ["the order of the models of llm changed: a, b -> b, a"]
    assert describe_differences(old, {**other_order, "recipe": "llms"}) == ["the recipe's name changed: llm -> llms"]
    image = {**old, "image files": {"index": "d" * 64}}
    assert describe_differences(old, image) == ["the image's index added: dddddddd"]


# -- Properties of all documents ---------------------------------------------------------------------------------------


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, str):
        yield value


folder_names = st.text(
    st.characters(codec="utf-8", categories=["L", "N"], include_characters=" -_.'"), min_size=1, max_size=20
).filter(lambda name: name.strip(" .") == name)


@given(name=folder_names)
def test_no_key_depends_on_the_recipes_folder(name: str) -> None:
    with tempfile.TemporaryDirectory() as base:
        here, there = Path(base) / "plain", Path(base) / f"in {name}"
        for folder in (here, there):
            folder.mkdir()
            write_models(folder)
        for action in (SHARED, "compile:vision/cpu/prefill"):
            found = document(there, action=action)
            assert found == document(here, action=action)
            for text in texts_in(found):
                assert base not in text
                assert not PurePosixPath(text).is_absolute()
                assert not PureWindowsPath(text).is_absolute()


digests = st.sampled_from(["a" * 64, "b" * 64, "a" * 8 + "c" * 56])
words = st.sampled_from(["a", "b", "c"])
versions = st.dictionaries(words, st.sampled_from(["1.0", "2.0"]), max_size=3)
members = st.lists(
    st.fixed_dictionaries(
        {
            "name": words,
            "graph": digests,
            "external": st.dictionaries(words, digests, max_size=2),
            "source": st.just("in/a/a.onnx"),
            "output": st.just("out/a_ctx.onnx"),
            "free_dimensions": st.dictionaries(words, st.integers(1, 2), max_size=2),
            "compile": st.fixed_dictionaries(
                {"embed": st.booleans(), "external_file": st.none() | words, "external_threshold": st.none() | st.integers(0, 2)}
            ),
        }
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda member: str(member["name"]),
)
eps = st.lists(
    st.fixed_dictionaries(
        {
            "name": words,
            "catalog": digests,
            "device": st.fixed_dictionaries(
                {"type": st.none() | words, "vendor": st.none() | words, "metadata": versions, "virtual": st.booleans()}
            ),
            "library": st.none() | digests,
            "options": versions,
            "files": st.dictionaries(words, digests, max_size=2),
        }
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda ep: str(ep["name"]),
)
custom_ops = st.lists(
    st.fixed_dictionaries({"name": words, "library": st.none() | digests}), max_size=2, unique_by=lambda ops: str(ops["name"])
).map(lambda found: sorted(found, key=lambda ops: str(ops["name"])))
documents = st.fixed_dictionaries(
    {
        "format": st.just(1),
        "contract": st.integers(1, 2),
        "members": members,
        "share_weights": st.booleans(),
        "eps": eps,
        "session_options": versions,
        "environment": versions,
        "custom_ops": custom_ops,
        "catalog": st.dictionaries(words, st.integers(1, 2), max_size=2),
        "toolchain": st.fixed_dictionaries(
            {
                "python": words,
                "platform": words,
                "distributions": versions,
                "libraries": st.dictionaries(words, digests, max_size=2),
            },
            optional={"host": st.fixed_dictionaries({"cpu": words})},
        ),
    }
)


@pytest.mark.slow
@given(old=documents, new=documents)
def test_a_reason_is_reported_exactly_when_keys_differ(old: dict[str, Any], new: dict[str, Any]) -> None:
    same = encode_canonical(old) == encode_canonical(new)
    assert (describe_differences(old, new) == []) == same
    assert (compute_action_key(old) == compute_action_key(new)) == same


@given(old=documents, new=documents)
def test_comparing_in_reverse_reports_the_inverse_changes(old: dict[str, Any], new: dict[str, Any]) -> None:
    back = {"added": "removed", "removed": "added", "changed": "changed"}
    there = {(change.place, change.kind, repr(change.old), repr(change.new)) for change in compare_documents(old, new)}
    assert there == {
        (change.place, back[change.kind], repr(change.new), repr(change.old)) for change in compare_documents(new, old)
    }
    assert len({place for place, *_ in there}) == len(compare_documents(old, new)), "each change is reported once"


@given(old=documents, new=documents, data=st.data())
def test_all_reported_changes_belong_to_the_changed_part(old: dict[str, Any], new: dict[str, Any], data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(sorted(old)))
    mixed = {**old, part: new[part]}
    subjects: dict[str, str | tuple[str, ...]] = {
        "contract": "epbuild's own compile contract",
        "members": ("model ", "member order "),
        "eps": ("option ", "the file of option ", "EP ", "epbuild's catalog of ", *(f"{name}: " for name in "abc")),
        "environment": "environment variable ",
        "custom_ops": ("custom operators ", "the library of custom operators "),
        "catalog": ("epbuild's catalog of session keys", "catalog "),
        "session_options": "session key ",
        "toolchain": ("toolchain ", "package ", "library ", "this machine's CPU "),
    }
    found = describe_differences(old, mixed)
    assert bool(found) == (old[part] != new[part])
    for sentence in found:
        assert sentence.startswith(subjects.get(part, part.replace("_", " ")))


@given(old=documents)
def test_a_key_document_survives_a_round_trip_through_json(old: dict[str, Any]) -> None:
    assert describe_differences(old, json.loads(encode_canonical(old))) == []
