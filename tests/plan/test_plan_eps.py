"""Plan of a target's EPs: several in one session, files and libraries, devices, users' catalogs, remote models."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.errors import PlanError, Position
from epbuild.plan.key import compute_action_key, describe_differences
from epbuild.plan.possible import find_obstacle
from epbuild.plan.steps import SessionGroup
from epbuild.plan.target import PlannedTarget
from epbuild.recipe.model import ModelSpec
from tests.support.plan_recipes import RECIPE, codes, document_of, edited, plan_of, problems_of, write_model, write_models
from tests.support.recipe_texts import MARK, codes_and_places, places

TARGET = "    ep: OpenVINOExecutionProvider\n    provider_options:\n      device_type: CPU\n"
OPENVINO = "openvino:\n    packages: [onnxruntime-openvino==1.24.1]"
PLUGIN = (OPENVINO, "openvino:\n    packages: [onnxruntime==1.31.1, onnxruntime-ep-openvino==1.8.1]")
TWO_EPS = """\
    eps:
      - ep: QNNExecutionProvider
        provider_options: {soc_model: SM8750}
      - ep: OpenVINOExecutionProvider
        device: {type: npu}
"""
CONTOSO = """\
ep = "ContosoExecutionProvider"
short = "contoso"
kind = "plugin"
origin = "doc Contoso EP 3.1"
module = "contoso_ep"
distributions = ["contoso-ep"]

[options]
speed = { type = "integer", minimum = 0, maximum = 9, output = "documented", meaning = "How fast." }
table = { type = "file", output = "documented", meaning = "A table." }
log = { type = "file", output = "none", meaning = "A file that is only read." }
"""
CONTOSO_TARGET = (
    "    ep: ContosoExecutionProvider\n    library: contoso.so\n    provider_options: {speed: 3, table: tables/t.json}\n"
)
ACTION = "compile:vision/cpu/classifier"


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    write_models(tmp_path)
    write_contoso(tmp_path)
    return tmp_path


def write_contoso(folder: Path) -> None:
    """Write a catalog file, the plugin library that it describes, and the files that its options name."""
    (folder / "contoso.toml").write_text(CONTOSO, encoding="utf-8")
    (folder / "contoso.so").write_bytes(b"library")
    (folder / "tables").mkdir()
    for name in ("t.json", "u.json"):
        (folder / "tables" / name).write_bytes(b"{}")


def target(lines: str, *changes: tuple[str, str]) -> str:
    """Return the recipe with `lines` as the EP of its target `cpu`, and with plugins in the toolchain if QNN is one of them."""
    text = edited(RECIPE, (TARGET, lines), *changes)
    return text.replace(OPENVINO, f"{PLUGIN[1][:-1]}, onnxruntime-qnn==2.7.0]") if "QNNExecutionProvider" in lines else text


def contoso(*changes: tuple[str, str]) -> str:
    return edited(target(CONTOSO_TARGET, ("name: tiny\n", "name: tiny\ncatalogs: [contoso.toml]\n")), *changes)


def planned(folder: Path, text: str) -> PlannedTarget:
    return plan_of(folder, text).session_groups[ACTION].target


def check(folder: Path, text: str, *expected: tuple[str, str]) -> None:
    """Check that `text` is refused with these codes and sentences, at its marks in their order."""
    text, marks = places(text)
    found = problems_of(folder, text)
    assert codes_and_places(found) == [(code, *mark) for (code, _), mark in zip(expected, marks, strict=True)]
    assert [problem.text for problem in found] == [sentence for _, sentence in expected]


# -- Refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "device_type: CPU\n",
            f"device_type: {MARK}CPU\n      precision: FP16\n",
            "OpenVINOExecutionProvider: OpenVINO's CPU device supports only FP32 and ACCURACY.",
        ),
        (
            "      backend_type: htp\n",
            f"      backend_type: {MARK}htp\n      backend_path: libQnnHtp.so\n",
            "QNNExecutionProvider: backend_type and backend_path exclude each other; write one.",
        ),
        (
            "backend_type: htp\n      soc_model: SM8750\n",
            f"enable_htp_fp16_precision: {MARK}true\n",
            "QNNExecutionProvider: fp16 needs soc_model; without soc_model, the EP rejects this option.",
        ),
        (
            "soc_model: SM8750\n",
            f"soc_model: {MARK}SM8750\n      htp_arch: 73\n",
            (
                "QNNExecutionProvider: SM8750 has htp_arch 79; the EP silently ignores another htp_arch, but writes it into the "
                "model's compatibility string."
            ),
        ),
    ],
    ids=["a pair of values", "two options", "an option that is missing", "a chip and its architecture"],
)
def test_a_combination_that_an_ep_would_misread_is_refused(workshop: Path, old: str, new: str, sentence: str) -> None:
    check(workshop, edited(RECIPE, (old, new)), ("EPB214", sentence))


def test_allow_unknown_options_also_allows_refused_combinations(workshop: Path) -> None:
    text = target(TARGET + "      precision: FP16\n    allow_unknown_options: true\n")
    assert planned(workshop, text).eps[0].provider_options == {"device_type": "CPU", "precision": "FP16"}


def test_each_allow_unknown_setting_allows_its_own_kind_only(workshop: Path) -> None:
    both = f"{TARGET}      brand_new: 1\n    session_options: {{session.brand_new: 1}}\n"
    assert codes(problems_of(workshop, target(both))) == ["EPB211", "EPB211"]
    for escape in ("allow_unknown_options", "allow_unknown_session_keys"):
        (problem,) = problems_of(workshop, target(f"{both}    {escape}: true\n"))
        assert ("session key" in problem.message) == (escape == "allow_unknown_options")
    found = planned(workshop, target(f"{both}    allow_unknown_options: true\n    allow_unknown_session_keys: true\n"))
    assert found.session_options == {"session.brand_new": "1"}
    assert sorted(found.unchecked) == ["brand_new", "session.brand_new"]


def test_run_options_are_checked_and_enter_no_key(workshop: Path) -> None:
    text = target(f"{TARGET}    run_options: {{qnn.rpc_control_latency: 100, gpu_graph_id: 2}}\n")
    assert planned(workshop, text).run_options == {"qnn.rpc_control_latency": "100", "gpu_graph_id": "2"}
    assert document(workshop, text) == document(workshop, target(TARGET))
    for wrong, expected in (
        (
            "qnn.rpc_control_latency: soon",
            ("EPB212", "run option 'qnn.rpc_control_latency': 'soon' is not a whole number of at least 0"),
        ),
        ("qnn.htp_perf_mod: burst", ("EPB211", "ONNX Runtime has no run option 'qnn.htp_perf_mod'")),
    ):
        found = problems_of(workshop, target(f"{TARGET}    run_options: {{{wrong}}}\n"))
        assert [(problem.code, problem.message) for problem in found] == [expected]


def test_only_adapters_of_onnx_runtime_are_accepted(workshop: Path) -> None:
    (workshop / "weights.safetensors").write_bytes(b"weights of another format")
    (workshop / "french.onnx_adapter").write_bytes(b"\x0c\0\0\0TORT")
    with_adapter = {
        name: edited(RECIPE, ("    targets: [cpu]\n", f"    targets: [cpu]\n    adapters: [{name}]\n"))
        for name in ("french.onnx_adapter", "weights.safetensors", "lost.onnx_adapter")
    }
    assert document(workshop, with_adapter["french.onnx_adapter"]) == document(workshop, RECIPE)
    for name, code in (("weights.safetensors", "EPB237"), ("lost.onnx_adapter", "EPB215")):
        assert codes(problems_of(workshop, with_adapter[name])) == [code]


def test_a_missing_option_file_or_library_is_reported_at_its_path(workshop: Path) -> None:
    text = contoso(("table: tables/t.json", f"table: {MARK}tables/x.json"))
    relative = "Paths are relative to the recipe."
    check(workshop, text, ("EPB215", f"the file of the option 'table' does not exist: tables/x.json. {relative}"))
    text = contoso(("library: contoso.so", f"library: {MARK}contoso.dll"))
    check(workshop, text, ("EPB215", f"the plugin library does not exist: contoso.dll. {relative}"))


def test_a_folder_is_refused_as_an_option_file_or_a_library(workshop: Path) -> None:
    text = contoso(("table: tables/t.json", "table: tables"), ("library: contoso.so", "library: tables"))
    assert codes(problems_of(workshop, text)) == ["EPB215", "EPB215"]


def test_a_built_in_ep_accepts_no_library(workshop: Path) -> None:
    text = target(f"    library: {MARK}contoso.so\n{TARGET}")
    check(
        workshop,
        text,
        ("EPB216", "OpenVINOExecutionProvider is built into ONNX Runtime and cannot be loaded from a plugin library."),
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (CONTOSO.replace('"integer"', '"intger"'), "options.speed.type: 'intger' is not one of"),
        (CONTOSO.replace('short = "contoso"\n', ""), "'short' is missing"),
        ("= nonsense", "is not TOML"),
        (None, "cannot be read"),
    ],
    ids=["a wrong word", "a missing word", "no TOML", "no file"],
)
def test_an_unusable_catalog_file_is_reported_at_its_path_with_the_place_in_it(
    workshop: Path, content: str | None, words: str
) -> None:
    (workshop / "contoso.toml").unlink()
    if content is not None:
        (workshop / "contoso.toml").write_text(content, encoding="utf-8")
    text, (mark,) = places(edited(RECIPE, ("name: tiny\n", f"name: tiny\ncatalogs: [{MARK}contoso.toml]\n")))
    (problem,) = problems_of(workshop, text)
    assert codes_and_places([problem]) == [("EPB217", *mark)]
    assert problem.message.startswith("the catalog file 'contoso.toml' cannot be used: ")
    assert words in problem.message


def test_two_catalog_files_for_one_ep_are_refused_at_the_second(workshop: Path) -> None:
    (workshop / "again.toml").write_text(CONTOSO, encoding="utf-8")
    text, (mark,) = places(contoso(("[contoso.toml]", f"[contoso.toml, {MARK}again.toml]")))
    found = problems_of(workshop, text)
    assert codes_and_places(found) == [("EPB217", *mark)]
    assert "contoso.toml already describes the EP" in found[0].message


@pytest.mark.parametrize(
    ("packaging", "device", "sentence"),
    [
        (
            [],
            "virtual: true",
            "OpenVINOExecutionProvider does not support virtual devices. Remove `virtual` from the target's device.",
        ),
        ([PLUGIN], "virtual: true, type: npu", None),
        ([PLUGIN], 'metadata: {npu_platform: "4000"}', None),
        (
            [PLUGIN],
            'metadata: {npu_platfrom: "4000"}',
            (
                "device metadata 'npu_platfrom': unknown key 'npu_platfrom' of OpenVINOExecutionProvider; known keys: "
                "npu_platform, ov_device. Did you mean 'npu_platform'?"
            ),
        ),
        (
            [PLUGIN],
            'metadata: {npu_platform: "4001"}',
            "device metadata 'npu_platform': '4001' is not one of 4000, 5010, 5020, 6010.",
        ),
    ],
    ids=["virtual, built in", "virtual, plugin", "right", "wrong key", "wrong value"],
)
def test_a_device_that_an_ep_does_not_have_is_refused(
    workshop: Path, packaging: list[tuple[str, str]], device: str, sentence: str | None
) -> None:
    lines = f"    ep: {MARK}OpenVINOExecutionProvider\n    device: {{{device}}}\n"
    text = target(lines, *packaging)
    if sentence is None:
        assert problems_of(workshop, text.replace(MARK, "")) == ()
        return
    text, (mark,) = places(text)
    (problem,) = problems_of(workshop, text)
    assert codes_and_places([problem]) == [("EPB218", *mark)]
    assert problem.text.startswith(sentence)


# -- An EP of the user's own -------------------------------------------------------------------------------------------


def test_a_users_catalog_file_adds_an_ep_with_the_usual_checks(workshop: Path) -> None:
    (ep,) = planned(workshop, contoso()).eps
    assert ep.entry.user_file == "contoso.toml"
    assert ep.library == workshop / "contoso.so"
    assert ep.provider_options["speed"] == "3"
    check(
        workshop,
        contoso(("speed: 3", f"speed: {MARK}10")),
        ("EPB212", "option 'speed': 10 is more than 9."),
    )


def test_without_its_catalog_file_the_ep_is_unknown(workshop: Path) -> None:
    text, (mark,) = places(target(f"    ep: {MARK}ContosoExecutionProvider\n"))
    (problem,) = problems_of(workshop, text)
    assert codes_and_places([problem]) == [("EPB210", *mark)]


def test_a_template_may_have_the_short_name_of_an_ep_as_its_value(workshop: Path) -> None:
    named = TARGET.replace("OpenVINOExecutionProvider", "${vars.ep}")
    (ep,) = planned(workshop, target(named, ("name: tiny\n", "name: tiny\nvars: {ep: openvino}\n"))).eps
    assert ep.entry.ep == "OpenVINOExecutionProvider"


def test_a_short_name_beside_an_unknown_ep_is_not_reported(workshop: Path) -> None:
    text, (mark,) = places(target(f"    eps: [{{ep: {MARK}other}}, {{ep: cpu}}]\n"))
    assert codes_and_places(problems_of(workshop, text)) == [("EPB210", *mark)]


def test_an_ep_with_its_own_library_requires_no_package(workshop: Path) -> None:
    _, entries, _ = plan_of(workshop, contoso()).toolchains()["openvino"]
    assert entries == ()


def test_an_option_file_is_staged_under_a_name_independent_of_its_place(workshop: Path) -> None:
    found = planned(workshop, contoso())
    assert found.eps[0].provider_options["table"] == "options/contoso/table/0/t.json"
    assert found.eps[0].files["table"].path == workshop / "tables" / "t.json"
    assert set(found.files) == {workshop / "tables" / "t.json", workshop / "contoso.so"}


def test_each_file_in_one_option_value_is_staged_under_its_own_name(workshop: Path) -> None:
    (workshop / "deep").mkdir()
    for name in ("a.so", "deep/a.so"):
        (workshop / name).write_bytes(name.encode())
    lines = "    ep: QNNExecutionProvider\n    provider_options: {soc_model: SM8750, op_packages: 'One:a.so:I,Two:deep/a.so:J'}\n"
    [ep] = planned(workshop, target(lines)).eps
    assert ep.provider_options["op_packages"] == "One:options/qnn/op_packages/0/a.so:I,Two:options/qnn/op_packages/1/a.so:J"
    assert [file.path.read_bytes() for file in ep.files.values()] == [b"a.so", b"deep/a.so"]


def test_a_file_that_a_session_key_names_is_staged_and_in_the_key(workshop: Path) -> None:
    (workshop / "nodes.txt").write_text("one", encoding="utf-8")
    text = target(TARGET + "    session_options: {session.node_partition_config_file: nodes.txt}\n")
    before = document(workshop, text)
    found = planned(workshop, text)
    assert found.session_options["session.node_partition_config_file"].startswith("options/session/")
    (workshop / "nodes.txt").write_text("two", encoding="utf-8")
    assert len(describe_differences(before, document(workshop, text))) == 1


def test_an_invalid_value_is_not_also_reported_for_its_combinations(workshop: Path) -> None:
    lines = "    ep: QNNExecutionProvider\n    provider_options: {backend_type: htp, soc_model: SM87500}\n"
    assert codes(problems_of(workshop, target(lines))) == ["EPB212"]


def test_a_provider_option_accepts_product_names_and_suggests_them(workshop: Path) -> None:
    lines = "    ep: QNNExecutionProvider\n    provider_options: {{backend_type: htp, soc_model: {}}}\n"
    (named,) = planned(workshop, target(lines.format("snapdragon 8 elite"))).eps
    assert named.provider_options["soc_model"] == "SM8750"
    message = "option 'soc_model': '8 Elite' is neither a name nor a number. Did you mean 'Snapdragon 8 Elite'?"
    check(workshop, target(lines.format(f"{MARK}8 Elite")), ("EPB212", message))


def test_a_target_lists_each_ep_once(workshop: Path) -> None:
    lines = f"    eps:\n      - ep: CPUExecutionProvider\n      - ep: {MARK}CPUExecutionProvider\n"
    check(workshop, target(lines), ("EPB219", "the target 'cpu' lists CPUExecutionProvider twice. List each EP only once."))


@pytest.mark.parametrize(
    ("ep", "why"),
    [
        ("CPUExecutionProvider", "it runs kernels and does not compile; list an EP that compiles before the CPU EP"),
        (
            "WebGpuExecutionProvider",
            (
                "WebGPU does not support EPContext, and compiles its shaders when a model runs; "
                "use an EP that compiles ahead of time"
            ),
        ),
        (
            "MIGraphXExecutionProvider",
            (
                "MIGraphX does not support EPContext, and keeps compiled models in migraphx_model_cache_dir; "
                "use an EP that compiles ahead of time"
            ),
        ),
        (
            "CoreMLExecutionProvider",
            "CoreML compiles when a model is loaded, into ModelCacheDirectory; use an EP that compiles ahead of time",
        ),
    ],
)
def test_a_target_that_can_compile_nowhere_is_refused_with_the_reason(workshop: Path, ep: str, why: str) -> None:
    check(workshop, target(f"    ep: {MARK}{ep}\n"), ("EPB255", f"{ep} cannot write EPContext models: {why}."))


def test_an_ep_after_one_that_takes_every_node_is_refused(workshop: Path) -> None:
    lines = f"    eps:\n      - ep: {MARK}CPUExecutionProvider\n      - ep: VitisAIExecutionProvider\n"
    message = "CPUExecutionProvider takes every node and is listed before VitisAIExecutionProvider, for which no nodes are left."
    check(workshop, target(lines), ("EPB256", f"{message} List CPUExecutionProvider last."))


@pytest.mark.parametrize(
    ("changes", "lines", "platform", "stopped"),
    [
        ([PLUGIN], "device: {type: npu, virtual: true}", "linux", True),
        ([PLUGIN], "device: {type: npu, virtual: true}", "win32", False),
        ([PLUGIN], "device: {type: cpu}", "linux", False),
        ([], "provider_options: {device_type: NPU}", "linux", True),
        ([], "provider_options: {device_type: CPU}", "linux", False),
    ],
)
def test_an_option_unsupported_on_one_platform_is_a_known_obstacle_there(
    workshop: Path, changes: list[tuple[str, str]], lines: str, platform: str, stopped: bool
) -> None:
    found = planned(workshop, target(f"    ep: OpenVINOExecutionProvider\n    {lines}\n", *changes))
    assert (find_obstacle(found, platform) is not None) == stopped


def test_a_list_of_socs_is_for_the_compile_and_not_for_sessions(workshop: Path) -> None:
    lines = "    ep: QNNExecutionProvider\n    provider_options: {{backend_type: htp, soc_model: {}}}\n"
    (several,) = planned(workshop, target(lines.format("'SM8750,SC8380XP'"))).eps
    assert several.provider_options["soc_model"] == "SM8750,SC8380XP"
    assert several.lasting_options == {"backend_type": "htp"}
    (one,) = planned(workshop, target(lines.format("SM8750"))).eps
    assert one.lasting_options == {"backend_type": "htp", "soc_model": "SM8750"}


def test_inline_load_config_properties_are_not_a_file(workshop: Path) -> None:
    (ep,) = planned(
        workshop, target("    ep: OpenVINOExecutionProvider\n    provider_options: {load_config: '{}'}\n", PLUGIN)
    ).eps
    assert (ep.provider_options, ep.files) == ({"load_config": "{}"}, {})


# -- Releases ----------------------------------------------------------------------------------------------------------

DATED = CONTOSO + 'late = { type = "boolean", output = "none", since = "3.2", until = "3.4", meaning = "A late option." }\n'
WEIGHTLESS = "    session_options: {ep.enable_weightless: true}\n"
TENSORRT = "    ep: TensorrtExecutionProvider\n    provider_options: {trt_op_types_to_exclude: Gelu}\n"
ADVICE = "Pin a release that supports it, or set allow_unknown_{}s on the target to pass it without a check."
LIBRARY = ("    library: contoso.so\n", "")


def packages(text: str) -> tuple[str, str]:
    """Return a change of the packages of the recipe's second toolchain."""
    return OPENVINO, f"openvino:\n    packages: [{text}]"


def dated(folder: Path, *changes: tuple[str, str]) -> str:
    """Return the recipe with Contoso's EP from its package, and with an option that only some releases know."""
    (folder / "contoso.toml").write_text(DATED, encoding="utf-8")
    return contoso(("speed: 3,", f"speed: 3, {MARK}late: true,"), *changes)


@pytest.mark.parametrize(
    ("version", "runtime"),
    [
        ("1.24.1", "onnxruntime==1.24.1"),
        ("1.28", "'onnxruntime[extra] == 1.28'"),
        ("1.28.0rc1+cu12", "onnxruntime==1.28.0rc1+cu12"),
    ],
)
def test_a_session_key_that_the_pinned_onnx_runtime_would_ignore_is_refused(workshop: Path, version: str, runtime: str) -> None:
    text = target(TARGET + WEIGHTLESS.replace("{", f"{{{MARK}"), packages(f"{runtime}, onnxruntime-ep-openvino==1.8.1"))
    text = edited(text, ("device_type: CPU", "load_config: '{}'"))
    sentence = f"onnxruntime {version} does not support the session key 'ep.enable_weightless', which is available since 1.29."
    check(workshop, text, ("EPB211", f"{sentence} {ADVICE.format('session_key')}"))


NO_FALLBACK = "    session_options: {session.disable_cpu_ep_fallback: true}\n"
NO_WEIGHTS = "writes no weightless contexts"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            "    eps: [{ep: openvino}, {ep: cpu}]\n" + NO_FALLBACK,
            "session.disable_cpu_ep_fallback excludes CPUExecutionProvider, but the target lists both. Remove one of them.",
        ),
        (f"    ep: qnn\n    soc: SM8750\n{WEIGHTLESS}", f"QNNExecutionProvider {NO_WEIGHTS}. Remove the session key."),
        (
            f"    ep: openvino\n    device: cpu\n{WEIGHTLESS}",
            f"OpenVINOExecutionProvider {NO_WEIGHTS} for the device type 'cpu'. Remove the session key.",
        ),
    ],
)
def test_a_session_key_that_an_ep_of_the_target_rules_out_is_refused(workshop: Path, lines: str, sentence: str) -> None:
    text = target(
        lines.replace(": true", f": {MARK}true"),
        packages(f"{QNN}, onnxruntime-ep-openvino==1.8.1"),
    )
    check(workshop, text, ("EPB214", sentence))


def test_contexts_without_any_weights_are_refused_if_the_ep_keeps_inline_weights(workshop: Path) -> None:
    lines = "    ep: openvino\n    device: {type: npu, virtual: true}\n    session_options: {ep.enable_weightless_mode: 2}\n"
    text = target(lines, packages("onnxruntime==1.32.0, onnxruntime-ep-openvino==1.8.1"))
    sentence = "the contexts of OpenVINOExecutionProvider contain all weights that are not external data"
    assert ("EPB214", sentence) in {(problem.code, problem.message) for problem in problems_of(workshop, text)}


def test_fallback_nodes_cannot_be_expected_where_fallback_is_disabled(workshop: Path) -> None:
    text = target(TARGET + NO_FALLBACK)
    for expected, problems in (("any", ["EPB214"]), ("2", ["EPB214"]), ("0", [])):
        change = ("    targets: [cpu]\n", f"    targets: [cpu]\n    expect: {{fallback_nodes: {expected}}}\n")
        assert codes(problems_of(workshop, edited(text, change))) == problems


@pytest.mark.parametrize("place", ["/tmp/graphs", "../graphs", "C:/graphs"])
def test_diagnostic_files_outside_the_staging_directory_are_refused(workshop: Path, place: str) -> None:
    lines = f"    ep: qnn\n    soc: SM8750\n    provider_options: {{dump_json_qnn_graph: true, json_qnn_graph_dir: {MARK}'{place}'}}\n"
    sentence = f"option 'json_qnn_graph_dir': the path '{place}' must be relative and must not contain '..'."
    check(workshop, target(lines, packages(QNN)), ("EPB212", f"{sentence} epbuild keeps the files beside the log of the step."))


def test_diagnostic_options_are_part_of_the_key(workshop: Path) -> None:
    lines = "    ep: qnn\n    soc: SM8750\n    provider_options: {dump_json_qnn_graph: true, rpc_control_latency: 1}\n"
    found = planned(workshop, target(lines, packages(QNN)))
    assert found.writes_diagnostics
    assert found.eps[0].unkeyed == {"rpc_control_latency"}
    assert found.eps[0].lasting_options.keys().isdisjoint({"dump_json_qnn_graph"})


def test_a_weightless_model_needs_external_data(workshop: Path) -> None:
    text = target(f"    ep: openvino\n    device: {{type: npu, virtual: true}}\n{WEIGHTLESS}", PLUGIN)
    found = problems_of(workshop, text)
    assert codes(found) == ["EPB214"] * len(found)
    assert found[0].message == "the model 'prefill' has no external data, but 'cpu' compiles weightless contexts"


def test_a_weightless_row_of_a_matrix_is_checked_after_a_row_with_weights(workshop: Path) -> None:
    rows = "    matrix: {weightless: [0, 1]}\n    session_options: {ep.enable_weightless: '${matrix.weightless}'}\n"
    text = target(f"    ep: openvino\n    device: {{type: npu, virtual: true}}\n{rows}", PLUGIN)
    sentence = "the model 'prefill' has no external data, but 'cpu-1' compiles weightless contexts"
    assert sentence in [problem.message for problem in problems_of(workshop, text)]


def test_renamed_onnxruntime_packages_have_the_keys_of_their_version(workshop: Path) -> None:
    text = target(TARGET + WEIGHTLESS)
    (problem,) = problems_of(workshop, text)
    assert problem.message.startswith("onnxruntime-openvino 1.24.1 does not support the session key 'ep.enable_weightless'")
    assert problems_of(workshop, edited(text, packages("onnxruntime-openvino==1.29.0"))) == ()


def test_a_session_key_removed_from_the_pinned_onnx_runtime_is_refused(workshop: Path) -> None:
    text = target(f"{TARGET}    session_options: {{ep.enable_weightless_ep_context_nodes: 1}}\n")
    assert problems_of(workshop, text) == ()
    (problem,) = problems_of(workshop, edited(text, packages("onnxruntime-openvino==1.31.1")))
    assert problem.message.endswith("'ep.enable_weightless_ep_context_nodes', which is available until 1.30")


@pytest.mark.parametrize(
    ("pins", "refused"),
    [
        ("onnxruntime-gpu==1.20.1", True),
        ("onnxruntime-gpu==1.21.0", False),
        ("onnxruntime-gpu>=1.19", False),
        ("onnxruntime-gpu==1.20.*", False),
        ("onnxruntime-gpu", False),
        ("\"onnxruntime-gpu==1.20.1; sys_platform == 'win32'\"", False),
    ],
)
def test_an_option_is_refused_only_if_the_ep_is_pinned_to_a_release_without_it(workshop: Path, pins: str, refused: bool) -> None:
    text = target(TENSORRT, packages(pins))
    assert codes(problems_of(workshop, text)) == ["EPB211"] * refused


OPENVINO_OLD = ("onnxruntime-openvino==1.24.1", "onnxruntime-openvino==1.22.0")


@pytest.mark.parametrize(
    ("initializers", "words"),
    [
        (
            "{store: source}",
            "onnxruntime-openvino 1.22.0, which 'cpu' uses, cannot store initializers in the source model or by name",
        ),
        (
            "{store: external, file: '${model}.w'}",
            "onnxruntime-openvino 1.22.0, which 'cpu' uses, writes initializers of any size",
        ),
        ("{store: external, file: '${model}.w', threshold: 0}", None),
        ("{store: inline}", None),
    ],
)
def test_settings_that_need_model_compiler_are_refused_for_older_releases(
    workshop: Path, initializers: str, words: str | None
) -> None:
    text = edited(RECIPE, ("  vision:\n", f"  vision:\n    compile: {{initializers: {initializers}}}\n"))
    assert problems_of(workshop, text) == ()
    found = problems_of(workshop, edited(text, OPENVINO_OLD))
    assert codes(found) == (["EPB251"] if words else [])
    for problem in found:
        assert words is not None
        assert words in problem.message
        assert isinstance(problem.where, Position)
        assert text.splitlines()[problem.where.line - 1].startswith("    compile: {initializers:")


@pytest.mark.parametrize(("version", "old"), [("1.22.1", True), ("1.9.0", True), ("1.23.0", False), ("1.31.1", False)])
def test_a_plugin_ep_is_refused_for_an_onnx_runtime_without_plugin_support(workshop: Path, version: str, old: bool) -> None:
    text = edited(RECIPE, ("[onnxruntime-qnn==2.7.0]", f"[onnxruntime=={version}, onnxruntime-qnn==2.7.0]"))
    found = problems_of(workshop, text)
    assert [problem.message for problem in found] == [
        f"onnxruntime {version} does not support plugin EPs such as QNNExecutionProvider"
    ] * old
    assert codes(found) == ["EPB251"] * old


@pytest.mark.parametrize(("version", "known"), [("3.1.9", False), ("3.2", True), ("3.4.7", True), ("3.5", False)])
def test_releases_in_a_users_catalog_limit_options_as_well(workshop: Path, version: str, known: bool) -> None:
    text, marks = places(dated(workshop, packages(f"onnxruntime==1.31.1, contoso-ep=={version}"), LIBRARY))
    found = problems_of(workshop, text)
    assert codes_and_places(found) == [("EPB211", *mark) for mark in marks if not known]
    sentence = f"contoso-ep {version} does not support the option 'late', which is available since 3.2 and until 3.4."
    assert [problem.text for problem in found] == [f"{sentence} {ADVICE.format('option')}"] * (not known)


def test_a_users_own_plugin_library_is_not_compared_with_the_package_it_replaces(workshop: Path) -> None:
    text, _ = places(dated(workshop, packages("onnxruntime==1.31.1, contoso-ep==3.1")))
    assert problems_of(workshop, text) == ()


def test_an_option_that_a_release_lacks_passes_in_the_spelling_of_other_releases(workshop: Path) -> None:
    text = dated(workshop, packages("onnxruntime==1.24.1, contoso-ep==3.1"), LIBRARY)
    text, _ = places(edited(text, ("    ep: Contoso", f"{WEIGHTLESS}    allow_unknown_options: true\n    ep: Contoso")))
    assert codes(problems_of(workshop, text)) == ["EPB211"], "each escape opens one door only"
    found = planned(workshop, edited(text, ("    allow", "    allow_unknown_session_keys: true\n    allow")))
    assert found.eps[0].provider_options["late"] == "1"
    assert found.session_options == {"ep.enable_weightless": "1"}
    assert sorted(found.unchecked) == ["ep.enable_weightless", "late"]


@pytest.mark.parametrize(
    ("pins", "kind", "refused"),
    [
        ("", "provider", False),
        ("    packages: [onnxruntime, onnxruntime-ep-openvino]\n", "plugin", False),
        ("    packages: [onnxruntime==1.31.1, onnxruntime-ep-openvino==1.8.1]\n", "plugin", False),
        ("    packages: [onnxruntime==1.24.1, onnxruntime-ep-openvino==1.8.1]\n", "plugin", True),
        ("    packages: [onnxruntime-openvino==1.24.1]\n", "provider", True),
    ],
)
def test_packages_beside_an_interpreter_determine_the_ep_and_its_options(
    workshop: Path, pins: str, kind: str, refused: bool
) -> None:
    there = (f"{OPENVINO}\n", f"openvino:\n    interpreter: theirs/bin/python\n{pins}")
    assert planned(workshop, target("    ep: OpenVINOExecutionProvider\n", there)).eps[0].entry.kind == kind
    text = target(f"    ep: OpenVINOExecutionProvider\n{WEIGHTLESS}", there)
    assert codes(problems_of(workshop, text)) == ["EPB211"] * refused


QNN_ALONE = "    ep: QNNExecutionProvider\n    provider_options: {soc_model: SM8750}\n"
QNN = "onnxruntime==1.31.1, onnxruntime-qnn==2.7.0"
RTX = "onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0"
TENSORRT_TOO = "    eps: [{ep: openvino, device: CPU}, {ep: TensorrtExecutionProvider}]\n"


@pytest.mark.parametrize(
    ("lines", "packages", "advice"),
    [
        ("    ep: qnn\n", "onnxruntime==1.31.1", "Add onnxruntime-qnn==2.7.0 to the toolchain's packages."),
        ("    ep: qnn\n", "numpy", "Add onnxruntime==1.31.1, onnxruntime-qnn==2.7.0 to the toolchain's packages."),
        ("    ep: qnn\n", "onnxruntime-openvino", f"Replace its packages with `packages: [{QNN}]`."),
        ("    ep: openvino\n", QNN, "Add onnxruntime-ep-openvino==1.8.1 to the toolchain's packages."),
        ("    ep: openvino\n", "numpy", "Add onnxruntime-openvino==1.24.1 to the toolchain's packages."),
        ("    ep: tensorrt\n", "onnxruntime", "Replace its packages with `packages: [onnxruntime-gpu==1.31.1]`."),
        ("    ep: nv-tensorrt-rtx\n", "onnxruntime-gpu", f"Add {RTX} to the toolchain's packages."),
        (
            "    ep: vitisai\n",
            "onnxruntime",
            "Replace its packages with `interpreter: ${env.RYZEN_AI_PYTHON:-C:/ryzen-ai/python.exe}`.",
        ),
        (
            TENSORRT_TOO,
            "onnxruntime-openvino",
            (
                "The packages of its EPs cannot be installed together: define a separate target and toolchain for each EP, "
                "with `packages: [onnxruntime-gpu==1.31.1]` for TensorrtExecutionProvider."
            ),
        ),
        ("    eps: [{ep: qnn}, {ep: webgpu}]\n", QNN, "Add onnxruntime-ep-webgpu to the toolchain's packages."),
        ("    eps: [{ep: qnn}, {ep: coreml}]\n", QNN, None),
        ("    eps: [{ep: qnn}, {ep: cpu}]\n", QNN, None),
        (CONTOSO_TARGET.replace("    library: contoso.so\n", ""), "onnxruntime", "Add contoso-ep to the toolchain's packages."),
        (
            CONTOSO_TARGET.replace("    library: contoso.so\n", ""),
            "numpy",
            "Add onnxruntime, contoso-ep to the toolchain's packages.",
        ),
        (CONTOSO_TARGET, "onnxruntime", None),
        (CONTOSO_TARGET, "onnxruntime-windowsml", None),
    ],
)
def test_a_toolchain_without_its_targets_ep_is_refused_with_packages_to_add(
    workshop: Path, lines: str, packages: str, advice: str | None
) -> None:
    text = RECIPE.replace(TARGET, lines).replace("name: tiny\n", "name: tiny\ncatalogs: [contoso.toml]\n")
    found = problems_of(workshop, text.replace(OPENVINO, f"openvino:\n    packages: [{packages}]"))
    assert [(problem.code, problem.hint) for problem in found] == ([("EPB257", advice)] if advice else [])


@pytest.mark.parametrize(
    ("packages", "lines", "code", "message"),
    [
        ("onnxruntime, onnxruntime-openvino", TARGET, "EPB258", "onnxruntime and onnxruntime-openvino exclude each other"),
        (
            "onnxruntime-windowsml, onnxruntime-qnn",
            TARGET,
            "EPB258",
            "onnxruntime-windowsml and onnxruntime-qnn (which installs onnxruntime) exclude each other",
        ),
        (
            "onnxruntime-openvino, onnxruntime-qnn",
            TARGET,
            "EPB258",
            "onnxruntime-openvino and onnxruntime-qnn (which installs onnxruntime) exclude each other",
        ),
        (
            "onnxruntime-openvino, onnxruntime-ep-openvino",
            TARGET,
            "EPB258",
            (
                "the toolchain 'openvino' contains OpenVINOExecutionProvider more than once: "
                "in onnxruntime-openvino and in onnxruntime-ep-openvino"
            ),
        ),
        ("onnxruntime-ep-openvino", "    ep: openvino\n", "EPB257", "the toolchain 'openvino' has no package for ONNX Runtime"),
        ("numpy", CONTOSO_TARGET, "EPB257", "the toolchain 'openvino' has no package for ONNX Runtime"),
    ],
)
def test_packages_that_cannot_work_together_are_refused(
    workshop: Path, packages: str, lines: str, code: str, message: str
) -> None:
    text = RECIPE.replace(TARGET, lines).replace("name: tiny\n", "name: tiny\ncatalogs: [contoso.toml]\n")
    text, (mark,) = places(text.replace(f"  {OPENVINO}", f"  {MARK}openvino:\n    packages: [{packages}]"))
    [problem] = problems_of(workshop, text)
    assert (codes_and_places([problem]), problem.message) == ([(code, *mark)], message)


def test_a_default_toolchain_without_an_ep_is_reported_with_the_fix(workshop: Path) -> None:
    lines = "    eps: [{ep: qnn}, {ep: nv-tensorrt-rtx}]\n"
    text = edited(RECIPE, ("    toolchain: openvino\n", ""), (TARGET, lines))
    start, end = text.index("toolchains:"), text.index("models:")
    [problem] = problems_of(workshop, text[:start] + text[end:].replace("    toolchain: qnn\n", ""))
    assert (problem.code, problem.hint) == ("EPB257", f"Write `toolchains: {{qnn: {{packages: [{QNN}, {RTX}]}}}}`.")


def test_an_interpreter_without_listed_packages_is_accepted_for_any_ep(workshop: Path) -> None:
    plan_of(workshop, edited(RECIPE, (TARGET, "    ep: qnn\n"), (OPENVINO, "openvino:\n    interpreter: python")))


@pytest.mark.parametrize(
    "packages",
    [
        "onnxruntime_QNN",
        "onnxruntime-qnn @ https://example.com/onnxruntime_qnn-2.7.0-py3-none-any.whl",
    ],
)
def test_a_package_that_may_contain_the_ep_is_accepted(workshop: Path, packages: str) -> None:
    plan_of(workshop, RECIPE.replace(TARGET, QNN_ALONE).replace(OPENVINO, f'openvino:\n    packages: ["{packages}"]'))


# -- Several EPs -------------------------------------------------------------------------------------------------------


def test_every_ep_of_a_target_gets_its_own_binary_in_order_of_preference(workshop: Path) -> None:
    plan = plan_of(workshop, target(TWO_EPS))
    group, emission = plan.session_groups[ACTION], plan.emissions["emit:vision/cpu/directory"]
    assert [ep.entry.short for ep in group.target.eps] == ["qnn", "openvino"]
    assert group.target.title == "QNNExecutionProvider, OpenVINOExecutionProvider"
    assert emission.parts[0].binaries["classifier"] == {
        "QNNExecutionProvider": "classifier_qnn.bin",
        "OpenVINOExecutionProvider": "classifier_openvino.bin",
    }


def test_two_eps_cannot_write_one_binary_and_the_hint_names_the_variable(workshop: Path) -> None:
    text, (mark,) = places(target(TWO_EPS) + f"    context_binary: {MARK}${{first_model}}.bin\n")
    found = problems_of(workshop, text)
    assert codes_and_places(found) == [("EPB222", *mark)] * 2
    assert found[0].message == (
        "the context binary of 'classifier' by QNNExecutionProvider and the context binary of 'classifier' by "
        "OpenVINOExecutionProvider would both be written to 'classifier.bin'"
    )
    assert "${ep.short}" in (found[0].hint or "")


def test_the_cpu_ep_as_a_last_resort_does_not_keep_a_group_from_sharing(workshop: Path) -> None:
    lines = "    eps:\n      - {ep: QNNExecutionProvider, provider_options: {soc_model: SM8750}}\n      - {ep: CPUExecutionProvider}\n"
    text = edited(target(lines), ("    targets: [cpu]\n", "    targets: [cpu]\n    share_weights: true\n"))
    emission = next(emission for emission in plan_of(workshop, text).emissions.values() if emission.parts[0].target.name == "cpu")
    assert {ep for names in emission.parts[0].binaries.values() for ep in names} == {"QNNExecutionProvider"}


def test_a_group_shares_weights_only_if_every_ep_of_its_target_can(workshop: Path) -> None:
    lines = TWO_EPS.replace("OpenVINOExecutionProvider", "NvTensorRTRTXExecutionProvider").replace("npu", "gpu")
    text = target(lines, ("    targets: [cpu]\n", f"    targets: [{MARK}cpu]\n    share_weights: true\n"))
    text, (mark,) = places(text.replace("onnxruntime-ep-openvino==1.8.1", "onnxruntime-ep-nv-tensorrt-rtx"))
    found = problems_of(workshop, text)
    assert codes_and_places(found) == [("EPB231", *mark)]
    assert "each TensorRT RTX engine contains its own weights" in found[0].message


def test_a_toolchain_lists_every_ep_of_its_targets_once(workshop: Path) -> None:
    _, entries, _ = plan_of(workshop, target(TWO_EPS)).toolchains()["openvino"]
    assert [entry.ep for entry in entries] == ["QNNExecutionProvider", "OpenVINOExecutionProvider"]


def test_the_order_of_eps_is_in_the_key_and_reported_as_a_change(workshop: Path) -> None:
    qnn, openvino = TWO_EPS.index("      - ep: QNN"), TWO_EPS.index("      - ep: Open")
    swapped = TWO_EPS[:qnn] + TWO_EPS[openvino:] + TWO_EPS[qnn:openvino]
    before, after = (document(workshop, target(lines)) for lines in (TWO_EPS, swapped))
    names = "QNNExecutionProvider, OpenVINOExecutionProvider"
    assert (
        describe_differences(before, after)[-1] == f"EP order changed: {names} -> OpenVINOExecutionProvider, QNNExecutionProvider"
    )
    assert compute_action_key(before) != compute_action_key(after)


# -- Settings of one member --------------------------------------------------------------------------------------------


def test_settings_of_one_member_do_not_affect_other_members(workshop: Path) -> None:
    text = target(TARGET, ("[classifier, prefill]", "[{model: classifier, compile: {embed: true}}, prefill]"))
    plan = plan_of(workshop, text)
    embeds = {member.name: member.compile.embed for name in plan.session_groups for member in plan.session_groups[name].members}
    assert embeds == {"classifier": True, "prefill": False, "decode": False}
    assert plan.emissions["emit:vision/cpu/directory"].parts[0].binaries == {
        "prefill": {"OpenVINOExecutionProvider": "prefill_openvino.bin"}
    }
    old, new = (document(workshop, recipe, "compile:vision/cpu/prefill") for recipe in (RECIPE, text))
    assert compute_action_key(old) == compute_action_key(new), "the other member need not be compiled again"


def test_a_member_with_an_embedded_context_prevents_sharing_in_its_group(workshop: Path) -> None:
    text = edited(RECIPE, ("[prefill, decode]", f"[prefill, {{model: decode, compile: {{embed: {MARK}true}}}}]"))
    text, (mark,) = places(text)
    assert codes_and_places(problems_of(workshop, text)) == [("EPB230", *mark)]


# -- Remote models -----------------------------------------------------------------------------------------------------

REMOTE = ("models/classifier.onnx", f"{{path: 'https://models.example/c.onnx', sha256: {'0' * 64}}}")


class Asked:
    """Locator of remote models that records the models it was called for."""

    def __init__(self, found: Path | None = None) -> None:
        self.found = found
        self.names: list[str] = []

    def __call__(self, model: ModelSpec) -> Path | None:
        self.names.append(model.name)
        return self.found


def test_a_model_that_is_not_yet_fetched_is_planned_with_unknown_files(workshop: Path) -> None:
    asked = Asked()
    plan = plan_of(workshop, edited(RECIPE, REMOTE), locate=asked)
    (member,) = plan.session_groups[ACTION].members
    assert (member.has_files, member.files) == (False, ())
    assert plan.session_groups["compile:vision/cpu/prefill"].members[0].has_files
    assert [step.id for step in plan.steps] == [step.id for step in plan_of(workshop).steps]
    assert asked.names == ["classifier"]


def test_a_model_that_no_selected_step_needs_is_not_fetched(workshop: Path) -> None:
    asked = Asked()
    plan_of(workshop, edited(RECIPE, REMOTE), ["share:*"], asked)
    assert asked.names == []


def test_a_fetched_model_has_the_key_of_the_same_model_on_disk(workshop: Path) -> None:
    here = workshop / "models" / "classifier.onnx"
    remote = plan_of(workshop, edited(RECIPE, REMOTE), locate=Asked(here)).session_groups[ACTION]
    assert remote.members[0].files == (here,)
    assert compute_action_key(document_of(remote)) == compute_action_key(document(workshop, RECIPE))


def test_a_fetched_file_that_is_not_a_model_is_reported_at_its_address(workshop: Path) -> None:
    page = workshop / "page.html"
    page.write_bytes(b"<html>")
    text, (mark,) = places(edited(RECIPE, (REMOTE[0], REMOTE[1].replace("'https", f"{MARK}'https"))))
    with pytest.raises(PlanError) as caught:
        plan_of(workshop, text, locate=Asked(page))
    assert codes_and_places(caught.value.problems) == [("EPB202", *mark)]


# -- Keys --------------------------------------------------------------------------------------------------------------


def group_of(folder: Path, text: str, action: str = ACTION) -> SessionGroup:
    return plan_of(folder, text).session_groups[action]


def document(folder: Path, text: str, action: str = ACTION) -> dict[str, Any]:
    return document_of(group_of(folder, text, action))


@pytest.mark.parametrize(
    ("file", "subject"),
    [
        ("tables/t.json", "the file of option table of ContosoExecutionProvider"),
        ("contoso.so", "ContosoExecutionProvider: library"),
    ],
)
def test_a_changed_option_file_or_library_compiles_again_and_is_named(workshop: Path, file: str, subject: str) -> None:
    before = document(workshop, contoso())
    (workshop / file).write_bytes(b"changed")
    after = document(workshop, contoso())
    (sentence,) = describe_differences(before, after)
    assert sentence.startswith(f"{subject} changed: ")
    assert compute_action_key(before) != compute_action_key(after)


def test_moving_an_option_file_keeps_the_key_and_renaming_changes_the_key(workshop: Path) -> None:
    (workshop / "moved").mkdir()
    (workshop / "moved" / "t.json").write_bytes((workshop / "tables" / "t.json").read_bytes())
    before = document(workshop, contoso())
    moved = document(workshop, contoso(("tables/t.json", "moved/t.json")))
    renamed = document(workshop, contoso(("tables/t.json", "tables/u.json")))
    assert describe_differences(before, moved) == []
    place = "options/contoso/table/0"
    assert describe_differences(before, renamed) == [
        f"option table of ContosoExecutionProvider changed: {place}/t.json -> {place}/u.json"
    ], "the EP sees the name"


def test_a_file_that_changes_no_output_is_not_in_the_key(workshop: Path) -> None:
    text = contoso(("speed: 3,", "speed: 3, log: tables/u.json,"))
    before = document(workshop, text)
    (workshop / "tables" / "u.json").write_bytes(b"changed")
    assert document(workshop, text) == before == document(workshop, contoso())


def test_a_changed_environment_variable_compiles_again_and_is_named(workshop: Path) -> None:
    before, after = (document(workshop, target(f"{TARGET}    environment: {{TRACE_FILE: {value}}}\n")) for value in "12")
    assert describe_differences(before, after) == ["environment variable TRACE_FILE changed: 1 -> 2"]
    assert compute_action_key(before) != compute_action_key(after)


def test_a_virtual_device_is_in_the_key(workshop: Path) -> None:
    before, after = (
        document(workshop, target(f"    ep: OpenVINOExecutionProvider\n    device: {{virtual: {virtual}}}\n", PLUGIN))
        for virtual in ("false", "true")
    )
    assert describe_differences(before, after) == ["OpenVINOExecutionProvider: device virtual changed: false -> true"]
    assert compute_action_key(before) != compute_action_key(after)


def test_unchecked_options_and_session_keys_are_in_the_key(workshop: Path) -> None:
    escape = "    allow_unknown_options: true\n    allow_unknown_session_keys: true\n"
    before = document(workshop, target(TARGET + escape))
    after = document(workshop, target(f"{TARGET}      brand_new: 1\n    session_options: {{session.new: 1}}\n{escape}"))
    assert sorted(describe_differences(before, after)) == [
        "option brand_new of OpenVINOExecutionProvider added: 1",
        "session key session.new added: 1",
    ]
    assert describe_differences(document(workshop, RECIPE), before) == [], "to allow it changes nothing by itself"


def shuffled(value: Any, order: random.Random) -> Any:
    """Return a recipe with the keys of every mapping in another order. Lists keep theirs, as it has a meaning."""
    if isinstance(value, dict):
        items = list(value.items())
        order.shuffle(items)
        return {name: shuffled(item, order) for name, item in items}
    return [shuffled(item, order) for item in value] if isinstance(value, list) else value


WHOLE: dict[str, Any] = {
    "epbuild": 1,
    "name": "tiny",
    "catalogs": ["contoso.toml"],
    "toolchains": {"qnn": {"packages": ["onnxruntime-qnn==2.7.0"]}, "openvino": {"packages": ["onnxruntime-openvino==1.24.1"]}},
    "models": {
        "prefill": {"path": "models/prefill.onnx", "dimensions": {"batch": 1, "past": 64}},
        "decode": "models/decode.onnx",
    },
    "targets": {
        "phone": {
            "toolchain": "qnn",
            "ep": "QNNExecutionProvider",
            "device": {"type": "npu", "metadata": {"b": "1", "a": "2"}},
            "provider_options": {"backend_type": "htp", "soc_model": "SM8750", "vtcm_mb": 8},
            "session_options": {"session.disable_quant_qdq": True, "session.disable_cpu_ep_fallback": True},
            "environment": {"B": 1, "A": 2},
        },
        "both": {
            "toolchain": "openvino",
            "eps": [
                {
                    "ep": "ContosoExecutionProvider",
                    "library": "contoso.so",
                    "provider_options": {"speed": 3, "table": "tables/t.json", "log": "tables/u.json"},
                },
                {"ep": "OpenVINOExecutionProvider", "provider_options": {"device_type": "CPU", "precision": "FP32"}},
            ],
        },
    },
    "groups": {
        "decoder": {"models": ["prefill", "decode"], "targets": ["phone"], "share_weights": True},
        "apart": {
            "models": [{"model": "decode", "compile": {"graph_optimization_level": "all", "node_name_prefix": "d"}}],
            "targets": ["both"],
        },
    },
    "outputs": [{"layout": "directory", "path": "dist/${group}/${target}"}],
}
"""Recipe with several keys in every kind of mapping."""


@given(seed=st.integers(0, 2**32))
def test_the_order_of_a_recipes_keys_never_changes_an_action_key(seed: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        write_models(folder)
        write_model(folder / "models" / "prefill.onnx", weights={"shared": [4]}, shape=["batch", "past"])
        write_contoso(folder)
        plans = [
            plan_of(folder, json.dumps(recipe, sort_keys=False)).session_groups  # JSON is YAML
            for recipe in (WHOLE, shuffled(WHOLE, random.Random(seed)))
        ]
        keys = [{name: compute_action_key(document_of(group)) for name, group in groups.items()} for groups in plans]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 2
    assert len(set(keys[0].values())) == 2, "and different actions have different keys"


def test_only_targets_known_to_be_nondeterministic_have_a_reason(workshop: Path) -> None:
    socs, alone = ("soc_model: SM8750", "soc_model: 'SM8750,SC8380XP'"), ("share_weights: true", "share_weights: false")
    groups = plan_of(workshop, edited(RECIPE, socs, alone)).session_groups.values()
    assert {group.target.name: group.target.known_to_differ(allow_nondeterminism=False) for group in groups} == {
        "phone": "a context for several SoCs is an archive that contains the current time",
        "cpu": None,
    }
