"""Refusals of options that ONNX Runtime and the EPs accept silently."""

from __future__ import annotations

import pytest

from epbuild.catalog.catalog import entry, find_session_key
from epbuild.catalog.normalize import BadValue, UnknownName, check_metadata, find_refusals, normalize
from tests.catalog.options import normalize_option

QNN = "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
PLUGIN = ["onnxruntime-ep-openvino"]


@pytest.mark.parametrize(
    ("ep", "name", "value", "sentence"),
    [
        (QNN, "soc_modell", "SM8750", "QNNExecutionProvider has no option 'soc_modell'. Did you mean 'soc_model'?"),
        (QNN, "htp_arch", 999, "'999' is not one of 0, 68, 69, 73, 75, 79, 81"),
        (QNN, "vtcm_mb", "banana", "'banana' is not a whole number from 0 to 4095"),
        (QNN, "soc_model", "SM9999", "'SM9999' is not one of "),
        (QNN, "soc_model", 9999, "'9999' is not one of "),
        (QNN, "soc_model", "SM87500", "Did you mean 'SM8750'?"),
        (QNN, "soc_model", "SM8751", "'SM8751' is not one of SM8750, "),
        (QNN, "soc_model", "SM8751", "Did you mean 'SM8750'?"),
        (QNN, "backend_type", "npu", "'npu' is not one of cpu, gpu, htp, saver, ir. Did you mean 'htp'?"),
        (QNN, "backend_type", "NPU", "Did you mean 'htp'?"),
        (QNN, "soc_model", "SM9999", " others"),
        (QNN, "soc_model", "SM8850X", "SM8850, "),
        (QNN, "soc_model", "SM8750,SM9999", "'SM9999' is not one of "),
        (QNN, "backend_type", "bogus", "'bogus' is not one of cpu, gpu, htp, saver, ir"),
        (QNN, "htp_performance_mode", "brust", "Did you mean 'burst'?"),
        (
            OPENVINO,
            "device_type",
            "NPUU",
            "'NPUU' does not have the expected form: CPU, GPU, GPU.1, NPU, AUTO:NPU,CPU. Did you mean 'NPU'?",
        ),
        (OPENVINO, "load_config", "[]", "does not have the expected form"),
    ],
)
def test_mistake_ignored_by_the_ep_is_refused_with_a_correction(ep: str, name: str, value: object, sentence: str) -> None:
    with pytest.raises((BadValue, UnknownName)) as caught:
        normalize_option(entry(ep), name, value)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "sentence", "reserved"),
    [
        ("ep.not_a_key", "ONNX Runtime has no session key 'ep.not_a_key'", False),
        ("session.disable_cpu_ep_falback", "Did you mean 'session.disable_cpu_ep_fallback'?", False),
        ("ep.share_ep_context", "Did you mean 'ep.share_ep_contexts'?", False),
        ("ep.share_ep_contexts", "is set by epbuild itself: set the group's share_weights", True),
        ("ep.context_node_name_prefix", "set the group's compile.node_name_prefix", True),
        ("session.model_external_initializers_file_folder_path", "set the model's external_data", True),
        ("ep.qnnexecutionprovider.soc_model", "Write 'soc_model' under the target's provider_options.", True),
    ],
)
def test_misspelled_or_reserved_session_key_is_refused(name: str, sentence: str, reserved: bool) -> None:
    with pytest.raises(UnknownName) as caught:
        find_session_key(name)
    assert sentence in str(caught.value)
    assert caught.value.reserved is reserved


def test_session_key_of_a_library_without_a_description_is_passed_as_text() -> None:
    option = find_session_key("mlas.qnbit.force_fp32")
    assert (option.type, option.changes_output) == ("text", True)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("ep.context_enable", "epbuild sets it, because it always writes an EPContext model"),
        ("ep.context_file_path", "name the file with an output's 'model'"),
        ("ep.context_embed_mode", "set the group's compile.embed"),
        ("ep.context_node_name_prefix", "set the group's compile.node_name_prefix"),
        ("ep.context_model_external_initializers_file_name", "set the group's compile.initializers"),
        ("session.model_external_initializers_file_folder_path", "set the model's"),
        ("ep.share_ep_contexts", "set the group's share_weights"),
        ("ep.stop_share_ep_contexts", "set the group's share_weights"),
    ],
)
def test_session_key_of_the_specification_is_set_by_another_field(name: str, instead: str) -> None:
    with pytest.raises(UnknownName) as caught:
        find_session_key(name)
    assert f"is set by epbuild itself: {instead}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session.disable_cpu_ep_fallback", "banana"),
        ("ep.enable_weightless_mode", "9"),
        ("session.graph_optimizations_loop_level", 3),
        ("session.max_shape_override", "x:4"),
    ],
)
def test_session_key_value_unchecked_by_onnx_runtime_is_refused(name: str, value: object) -> None:
    with pytest.raises(BadValue):
        normalize(find_session_key(name), value, booleans=("0", "1"), names={})


HTP = {"backend_type": "htp", "soc_model": "SC8380XP"}


@pytest.mark.parametrize(
    ("ep", "packages", "options", "reason"),
    [
        (QNN, [], {**HTP, "backend_path": "libQnnHtp.so"}, "exclude each other"),
        (QNN, [], {**HTP, "htp_arch": "75"}, "SC8380XP has htp_arch 73; the EP silently ignores another htp_arch"),
        (QNN, [], {"soc_model": "105", "htp_arch": "81"}, "CQ8750S has htp_arch 79"),
        (QNN, [], {**HTP, "htp_bf16_enable": "1"}, "bf16 needs SoC 88"),
        (QNN, [], {"htp_bf16_enable": "1"}, "htp_bf16_enable needs soc_model"),
        (QNN, [], {"enable_htp_fp16_precision": "1"}, "fp16 needs soc_model"),
        (QNN, [], {"backend_type": "htp"}, "generic chip of architecture 68"),
        (QNN, [], {**HTP, "extended_udma": "1"}, "architecture 81"),
        (QNN, [], {**HTP, "profiling_level": "basic"}, "profiling_level needs profiling_file_path"),
        (OPENVINO, [], {"device_type": "CPU", "precision": "FP16"}, "only FP32 and ACCURACY"),
        (OPENVINO, PLUGIN, {"device_type": "NPU"}, "this plugin ignores device_type"),
        ("TensorrtExecutionProvider", [], {"trt_profile_min_shapes": "x:1", "trt_profile_max_shapes": "x:8"}, "min, max and opt"),
        ("TensorrtExecutionProvider", [], {"trt_dump_ep_context_model": "1"}, "epbuild sets this option"),
        ("VitisAIExecutionProvider", [], {"cache_key": "k"}, "cache_key needs cache_dir, because it names a folder in cache_dir"),
        ("MIGraphXExecutionProvider", [], {"migraphx_save_compiled_model": "1"}, "needs migraphx_save_model_path"),
    ],
)
def test_combination_that_the_ep_rejects_or_misreads_is_refused(
    ep: str, packages: list[str], options: dict[str, str], reason: str
) -> None:
    found = find_refusals(entry(ep, packages), options)
    assert any(reason in why for _, why in found), found
    assert all(any(name in options for name in names) for names, _ in found), "a refusal must point at something in the recipe"


@pytest.mark.parametrize(
    ("ep", "packages", "options"),
    [
        (QNN, [], HTP),
        (QNN, [], {**HTP, "htp_arch": "73", "enable_htp_fp16_precision": "1"}),
        (QNN, [], {**HTP, "htp_arch": "0"}),
        (QNN, [], {"backend_type": "htp", "soc_model": "SC8480XP", "htp_bf16_enable": "1"}),
        (QNN, [], {**HTP, "htp_bf16_enable": "0", "extended_udma": "0", "profiling_level": "off"}),
        (QNN, [], {**HTP, "profiling_level": "basic", "profiling_file_path": "p.csv"}),
        (QNN, [], {"soc_model": "SC8380XP,SM8750", "htp_arch": "73,79"}),
        (OPENVINO, [], {"device_type": "CPU"}),
        (OPENVINO, PLUGIN, {"load_config": "{}"}),
        (
            "TensorrtExecutionProvider",
            [],
            {"trt_profile_min_shapes": "x:1", "trt_profile_max_shapes": "x:8", "trt_profile_opt_shapes": "x:4"},
        ),
        ("VitisAIExecutionProvider", [], {"cache_key": "k", "cache_dir": "c"}),
    ],
)
def test_valid_combination_is_accepted(ep: str, packages: list[str], options: dict[str, str]) -> None:
    assert find_refusals(entry(ep, packages), options) == []


def test_nonexistent_npu_platform_is_refused_with_the_known_platforms() -> None:
    plugin = entry(OPENVINO, PLUGIN)
    check_metadata(plugin, "npu_platform", "4000")
    with pytest.raises(BadValue, match="'4001' is not one of 4000, 5010, 5020, 6010"):
        check_metadata(plugin, "npu_platform", "4001")
    with pytest.raises(BadValue, match="Did you mean 'npu_platform'"):
        check_metadata(plugin, "npu_plattform", "4000")


def test_metadata_of_an_ep_without_metadata_rules_is_accepted() -> None:
    check_metadata(entry(QNN), "anything", "at all")
