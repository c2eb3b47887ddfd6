"""Short forms with many results: matrices, patterns over models, several EPs, sizes, settings of a member."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from epbuild.recipe.model import CompileSettings, DeviceChoice, Expectation, GroupSpec
from tests.recipe.texts import FULL, MINIMAL, load_text, problems_of, values


def target_names(tmp_path: Path, matrix: str) -> list[str]:
    text = MINIMAL.replace("    ep: Q", f"    matrix: {matrix}\n    ep: Q").replace("[npu]", "['npu-*']")
    return list(load_text(tmp_path, text).targets)


def only_group(tmp_path: Path, models: str, more: str = "") -> GroupSpec:
    text = MINIMAL.replace("[prefill]", models).replace("    targets: [npu]", f"    targets: [npu]{more}")
    text = text.replace("  prefill: p", "  layer-2: b.onnx\n  layer-10: c.onnx\n  layer-1: a.onnx\n  head: h.onnx\n  prefill: p")
    return load_text(tmp_path, text).groups["decoder"]


def member_names(group: GroupSpec) -> list[str]:
    return [member.model.name for member in group.members]


@pytest.mark.parametrize(
    ("matrix", "names"),
    [
        ("{a: [1, 2], exclude: [{a: 1}]}", ["npu-2"]),
        ("{a: [1, 2], b: [x, y], exclude: [{a: 1, b: y}]}", ["npu-1-x", "npu-2-x", "npu-2-y"]),
        ("{a: [1, 2], b: [x, y], exclude: [{b: y}, {a: '2'}]}", ["npu-1-x"]),
        ("{a: [1], include: [{a: 2}]}", ["npu-1", "npu-2"]),
        ("{a: [1], include: [{z: 9, c: 7, a: 2}]}", ["npu-1", "npu-2-7-9"]),
        ("{include: [{a: 1}, {b: 2, a: 1}]}", ["npu-1", "npu-1-2"]),
        ("{a: [1], exclude: [{a: 1}], include: [{a: 1}]}", ["npu-1"]),
        ("{a: [1], b: [2], include: [{b: 3, a: 4}, {b: 5}]}", ["npu-1-2", "npu-4-3", "npu-5"]),
    ],
)
def test_a_matrix_is_its_product_without_excluded_plus_included_rows(tmp_path: Path, matrix: str, names: list[str]) -> None:
    assert target_names(tmp_path, matrix) == names


def test_an_unknown_toolchain_of_many_rows_is_reported_once(tmp_path: Path) -> None:
    matrix = f"    matrix: {{a: {list(range(60))}}}\n    toolchain: qmn"
    text = MINIMAL.replace("    toolchain: qnn", matrix).replace("[npu]", "['npu-*']")
    assert [problem.hint for problem in problems_of(tmp_path, text)] == ["Did you mean 'qnn'?"]


def test_the_unknown_names_of_each_row_are_reported(tmp_path: Path) -> None:
    matrix = "    matrix: {include: [{a: 1}, {b: 2}]}\n    toolchain: ${matrix.a}${matrix.b}"
    found = problems_of(tmp_path, MINIMAL.replace("    toolchain: qnn", matrix).replace("[npu]", "['npu-*']"))
    assert [problem.message.partition(" ")[0] for problem in found] == ["'${matrix.b}'", "'${matrix.a}'"]


def test_an_included_row_provides_values_for_the_texts_of_its_target(tmp_path: Path) -> None:
    matrix = "    matrix: {soc: [a], arch: [1], include: [{soc: b, arch: 2}]}\n"
    options = "    provider_options: {soc: '${matrix.soc}', arch: '${matrix.arch}'}\n"
    text = MINIMAL.replace("    ep: Q", matrix + options + "    ep: Q").replace("[npu]", "['npu-*']")
    targets = load_text(tmp_path, text).targets
    found = {name: [s.value for s in target.eps[0].provider_options.values()] for name, target in targets.items()}
    assert found == {"npu-a-1": ["a", 1], "npu-b-2": ["b", 2]}


def test_several_eps_keep_their_order_and_their_own_options(tmp_path: Path) -> None:
    eps = """\
    eps:
      - {ep: A, provider_options: {x: 1}, device: {type: npu, metadata: {npu_platform: "4000"}, virtual: true}}
      - {ep: B, library: lib/b.so}
      - {ep: CPUExecutionProvider}
    environment: {SDK: '${vars.quality}/lib', LEVEL: 3}
    allow_unknown_session_keys: true
"""
    target = load_text(tmp_path, MINIMAL.replace("    ep: QNNExecutionProvider\n", eps)).targets["npu"]
    first, second, third = target.eps
    assert [choice.ep.name for choice in target.eps] == ["A", "B", "CPUExecutionProvider"]
    assert first.device == DeviceChoice("npu", None, {"npu_platform": "4000"}, virtual=True)
    assert [setting.value for setting in first.provider_options.values()] == [1]
    assert (first.library, third.library, third.device) == (None, None, DeviceChoice())
    assert second.library is not None
    assert second.library.value == "lib/b.so"
    assert {name: setting.value for name, setting in target.environment.items()} == {"SDK": "3/lib", "LEVEL": 3}
    assert target.allow_unknown_session_keys
    assert not target.allow_unknown_options


def test_a_single_ep_equals_a_list_of_one_ep(tmp_path: Path) -> None:
    options = "provider_options: {x: 1}, device: {type: npu}, library: a.so"
    alone = MINIMAL.replace("  npu:\n    toolchain: qnn\n    ep: QNN", f"  npu: {{toolchain: qnn, ep: QNN, {options}}}\n  #")
    listed = MINIMAL.replace(
        "  npu:\n    toolchain: qnn\n    ep: QNN", f"  npu: {{toolchain: qnn, eps: [{{ep: QNN, {options}}}]}}\n  #"
    )
    assert values(load_text(tmp_path, alone)) == values(load_text(tmp_path, listed))


@pytest.mark.parametrize(
    ("models", "names"),
    [
        ("['layer-*']", ["layer-1", "layer-10", "layer-2"]),
        ("[prefill, 'layer-?', head]", ["prefill", "layer-1", "layer-2", "head"]),
        ("['*', prefill]", ["head", "layer-1", "layer-10", "layer-2", "prefill"]),
        ("['layer-1*', '*']", ["layer-1", "layer-10", "head", "layer-2", "prefill"]),
        ("['layer-*', {model: layer-1}]", ["layer-10", "layer-2", "layer-1"]),
        ("[prefill, prefill]", ["prefill", "prefill"]),
    ],
)
def test_a_pattern_matches_models_that_are_not_named_explicitly(tmp_path: Path, models: str, names: list[str]) -> None:
    assert member_names(only_group(tmp_path, models)) == names


def test_a_members_settings_override_the_groups_key_by_key(tmp_path: Path) -> None:
    shared = "\n    compile: {embed: true, initializers: {store: external, file: '${group}-${model}.bin', threshold: 9}}"
    shared += "\n    expect: {ep_context_nodes: 1, fallback_nodes: 0}"
    own = "{model: 'layer-?', compile: {initializers: {threshold: 5}, node_name_prefix: '${group}_${model}_'}}"
    last = "{model: head, compile: {embed: false, initializers: {store: source}}, expect: {fallback_nodes: 2}}"
    group = only_group(tmp_path, f"[prefill, {own}, {last}]", shared)
    first, one, two, head = group.members
    file = "decoder-${model}.bin"
    for member, threshold, prefix in [(first, 9, None), (one, 5, "decoder_layer-1_"), (two, 5, "decoder_layer-2_")]:
        assert values(member.compile) == values(CompileSettings(True, None, "external", file, threshold, prefix))
        assert values(member.expect) == values(Expectation(1, 0))
    assert (head.compile.embed, head.compile.initializers, head.compile.external_file) == (False, "source", None)
    assert values(head.expect) == values(Expectation(1, 2))


def test_a_members_expectations_keep_the_groups_minimum_saving(tmp_path: Path) -> None:
    more = "\n    share_weights: true\n    expect: {fallback_nodes: 0, shared_bytes: {min_ratio: 0.25, measure: alone}}"
    group = only_group(tmp_path, "[prefill, {model: head, expect: {fallback_nodes: 2}}]", more)
    assert [values(member.expect) for member in group.members] == [
        values(Expectation(fallback_nodes=number, min_shared_ratio=0.25)) for number in (0, 2)
    ]


@pytest.mark.parametrize(
    ("text", "threshold"),
    [("true", 1024), ("{}", 1024), ("{threshold: 9}", 9), ("false", None)],
)
def test_a_sharing_group_has_one_weights_file_with_a_threshold(tmp_path: Path, text: str, threshold: int | None) -> None:
    sharing = only_group(
        tmp_path, "[prefill, head]", f"\n    share_weights: true\n    share_initializers: {text}"
    ).share_initializers
    assert (sharing and sharing.threshold) == threshold


def test_a_group_without_sharing_can_disable_shared_initializers(tmp_path: Path) -> None:
    assert only_group(tmp_path, "[prefill, head]", "\n    share_initializers: false").share_initializers is None


def test_a_model_has_dimensions_and_a_load_mode(tmp_path: Path) -> None:
    model = "{path: p.onnx, load_from: memory, dimensions: {seq: '${vars.quality}', n: 2, DATA_BATCH: 1}}"
    found = load_text(tmp_path, MINIMAL.replace("prefill.onnx", model)).models["prefill"]
    assert (found.dimensions, found.load_from) == ({"seq": 3, "n": 2, "DATA_BATCH": 1}, "memory")


@pytest.mark.parametrize(
    "path",
    [
        "package:my_models/decoder.onnx",
        f"hf://owner/name/onnx/model.onnx@{'0123456789' * 4}",
        "C:/models/a.onnx",
        "C://models/a.onnx",
        "models/a@b.onnx",
        "models//a.onnx",
    ],
)
def test_a_local_path_needs_no_pin(tmp_path: Path, path: str) -> None:
    assert load_text(tmp_path, MINIMAL.replace("prefill.onnx", f"'{path}'")).models["prefill"].path == path


@pytest.mark.parametrize(
    "address",
    [
        "https://example.com/a.onnx?token=1",
        "s3://bucket/folder/a.onnx",
        "gs://bucket/a.onnx",
        "az://box/a.onnx",
        "hf://owner/name/onnx/model.onnx@main",
        "hf://owner/name/model.onnx@refs/pr/1",
    ],
)
def test_an_address_with_a_pin_is_kept_as_written(tmp_path: Path, address: str) -> None:
    text = MINIMAL.replace("prefill.onnx", f"{{path: '{address}', sha256: {'A' * 64}, data_sha256: {{a.data: {'B' * 64}}}}}")
    model = load_text(tmp_path, text).models["prefill"]
    assert (model.path, model.sha256, model.data_sha256) == (address, "a" * 64, {"a.data": "b" * 64})


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("8 GB", 8 * 10**9),
        ("8GB", 8 * 10**9),
        ("1.5 KB", 1500),
        ("512 MiB", 512 << 20),
        ("0.5 TiB", 1 << 39),
        ("7 B", 7),
        ("16e9", 16 * 10**9),
        ("4096", 4096),
        ("'${vars.quality}'", 3),
        ("'${vars.quality} GiB'", 3 << 30),
    ],
)
def test_memory_is_a_number_of_bytes_or_has_a_unit(tmp_path: Path, written: str, size: int) -> None:
    assert only_group(tmp_path, "[prefill]", f"\n    memory: {written}").memory == size


def _shuffled(value: Any, order: random.Random) -> Any:
    if isinstance(value, list):
        return [_shuffled(item, order) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    order.shuffle(keys)
    return {key: value[key] if key == "matrix" else _shuffled(value[key], order) for key in keys}


@pytest.mark.slow
@given(order=st.randoms(use_true_random=False), flow=st.booleans())
def test_formatting_and_key_order_do_not_change_a_recipe(
    tmp_path_factory: pytest.TempPathFactory, order: random.Random, flow: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    tree = yaml.safe_load(FULL)
    tree["targets"]["snapdragon"]["matrix"]["include"] = [{"soc": "SM8850", "extra": "x", "another": "y"}]
    tree["groups"]["single"]["models"] = ["*", {"model": "decode", "compile": {"embed": True}, "expect": {"fallback_nodes": 0}}]
    expected = values(load_text(folder, yaml.safe_dump(tree, sort_keys=False)))
    shuffled = _shuffled(tree, order)
    assert values(load_text(folder, yaml.safe_dump(shuffled, sort_keys=False, default_flow_style=flow))) == expected


@pytest.mark.slow
def test_ten_thousand_targets_load_within_seconds(tmp_path: Path) -> None:
    axis = ", ".join(f"v{n}" for n in range(100))
    options = "".join(f"      option_{n}: {n}\n" for n in range(12))
    matrix = f"    matrix: {{a: [{axis}], b: [{axis}]}}\n    provider_options:\n      soc: ${{matrix.a}}\n{options}"
    text = MINIMAL.replace("    ep: Q", matrix + "    ep: Q").replace("[npu]", "['npu-*']")
    began = time.process_time()
    recipe = load_text(tmp_path, text)
    assert len(recipe.targets) == len(recipe.groups["decoder"].targets) == 10_000
    assert time.process_time() - began < 20  # measured: 0.6; this only has to catch quadratic time


@pytest.mark.gate
def test_patterns_with_too_many_results_are_refused_early(tmp_path: Path) -> None:
    axis = ", ".join(str(n) for n in range(100))
    groups = "".join(f"  g{n}: {{models: [prefill], targets: ['npu-*']}}\n" for n in range(1000))
    text = MINIMAL.replace("    ep: Q", f"    matrix: {{a: [{axis}], b: [{axis}]}}\n    ep: Q").replace("[npu]", "['npu-*']")
    problems = problems_of(tmp_path, text.replace("groups:\n", "groups:\n" + groups))
    assert {problem.code for problem in problems} == {"EPB110"}


def test_thousands_of_wrong_references_are_reported_within_seconds(tmp_path: Path) -> None:
    targets = "".join(f"  target-{n}: {{toolchain: qnm, ep: Q}}\n" for n in range(3000))
    wrong = ", ".join(f"target{n}" for n in range(3000))
    text = MINIMAL.replace("targets:\n", "targets:\n" + targets, 1).replace("[npu]", f"[{wrong}]")
    began = time.process_time()
    assert len(problems_of(tmp_path, text)) == 6000
    assert time.process_time() - began < 60  # measured: 1; with a suggestion for each, it takes minutes
