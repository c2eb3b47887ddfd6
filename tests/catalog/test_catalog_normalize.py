"""One text per value: equal spellings do not compile twice, and values that the EP cannot read are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.catalog.catalog import entries_for, entry, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.normalize import BadValue, format_plain, normalize
from epbuild.catalog.options import Option
from tests.catalog.options import normalize_option

QNN = entry("QNNExecutionProvider")
OPENVINO = entry("OpenVINOExecutionProvider")
ALL_OPTIONS = [(found, option) for ep in known_eps() for found in entries_for(ep) for option in found.options.values()]

scalars = st.one_of(
    st.text(max_size=30),
    st.integers(),
    st.booleans(),
    st.floats(),
    st.sampled_from(["true", "Off", " htp ", "60", "sc8380xp", "SM8750, 60", "+3", "007", "AUTO:NPU,CPU", "FP16", "3.0"]),
)


def qnn(name: str, value: object) -> str:
    return normalize(QNN.options[name], value, booleans=QNN.booleans, names=QNN.canonical_names(name))


def openvino(name: str, value: object) -> str:
    return normalize(OPENVINO.options[name], value, booleans=OPENVINO.booleans, names=OPENVINO.canonical_names(name))


@pytest.mark.parametrize("value", [60, "60", 60.0, " 60 ", "sc8380xp", "SC8380XP", "Sc8380Xp"])
def test_every_spelling_of_a_soc_is_one_target(value: object) -> None:
    assert qnn("soc_model", value) == "SC8380XP"


def test_list_of_socs_keeps_its_order() -> None:
    assert qnn("soc_model", "sm8750, 60") == "SM8750,SC8380XP"


@pytest.mark.parametrize(
    ("value", "expected"), [("SM8735", "85"), ("sm8735", "85"), (85, "85"), (68, "SM8635"), ("CQ8750S", "105")]
)
def test_soc_is_passed_in_the_spelling_known_to_the_ep(value: object, expected: str) -> None:
    assert qnn("soc_model", value) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("soc_model", "sm9999", "SM9999"),
        ("soc_model", 4711, "4711"),
        ("soc_model", "60,sm9999", "SC8380XP,SM9999"),
        ("backend_type", "lpai", "lpai"),
    ],
)
def test_value_newer_than_the_catalog_is_accepted_on_request(name: str, value: object, expected: str) -> None:
    assert normalize_option(QNN, name, value, strict=False) == expected
    with pytest.raises(BadValue):
        normalize_option(QNN, name, value)


def test_invalid_value_is_refused_even_on_request() -> None:
    with pytest.raises(BadValue):
        normalize_option(QNN, "vtcm_mb", "banana", strict=False)


@pytest.mark.parametrize("value", [True, "true", "True", "TRUE", 1, "1", "yes", "on", 1.0])
def test_enabled_switch_uses_the_word_of_the_ep(value: object) -> None:
    assert qnn("enable_htp_fp16_precision", value) == "1"
    assert openvino("enable_qdq_optimizer", value) == "True"


@pytest.mark.parametrize("value", [False, "false", "False", 0, "0", "no", "off", 0.0])
def test_disabled_switch_uses_the_word_of_the_ep(value: object) -> None:
    assert qnn("enable_htp_fp16_precision", value) == "0"
    assert openvino("enable_qdq_optimizer", value) == "False"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("backend_type", "HTP", "htp"),
        ("htp_graph_finalization_optimization_mode", 3, "3"),
        ("htp_graph_finalization_optimization_mode", 3.0, "3"),
        ("htp_arch", "73", "73"),
        ("vtcm_mb", "+08", "8"),
        ("vtcm_mb", 0, "0"),
        ("vtcm_mb", 4095, "4095"),
        ("op_affinity", "  /tmp ", "/tmp"),
    ],
)
def test_value_becomes_the_text_that_the_ep_reads(name: str, value: object, expected: str) -> None:
    assert qnn(name, value) == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("backend_type", "htpp", "'htpp' is not one of cpu, gpu, htp, saver, ir. Did you mean 'htp'?"),
        ("backend_type", "", "'' is not one of cpu, gpu, htp, saver, ir"),
        ("backend_type", True, "'true' is not one of cpu, gpu, htp, saver, ir"),
        ("htp_arch", 74, "'74' is not one of 0, 68, 69, 73, 75, 79, 81"),
        ("enable_htp_fp16_precision", "maybe", "'maybe' is not a boolean; write true or false"),
        ("enable_htp_fp16_precision", 2, "'2' is not a boolean; write true or false"),
        ("vtcm_mb", "much", "'much' is not a whole number from 0 to 4095"),
        ("vtcm_mb", 1.5, "'1.5' is not a whole number from 0 to 4095"),
        ("vtcm_mb", "0x10", "'0x10' is not a whole number from 0 to 4095"),
        ("vtcm_mb", "٣", "'٣' is not a whole number from 0 to 4095"),
        ("vtcm_mb", False, "'false' is not a whole number from 0 to 4095"),
        ("vtcm_mb", float("inf"), "'inf' is not a whole number from 0 to 4095"),
        ("vtcm_mb", -1, "-1 is less than 0"),
        ("vtcm_mb", 4096, "4096 is more than 4095"),
        ("vtcm_mb", "9" * 8000, "'99999999999999999999…' is too large"),
        ("soc_model", "SM 8750", "'SM 8750' is neither a name nor a number"),
        ("soc_model", "SM8750,,60", "'SM8750,,60' is neither a name nor a number"),
        ("soc_model", "", "'' is neither a name nor a number"),
        ("soc_model", -60, "'-60' is neither a name nor a number"),
    ],
)
def test_value_that_qnn_would_read_as_its_default_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(BadValue) as caught:
        qnn(name, value)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", ["TPU", "GPU.", "AUTO", "AUTO:", "AUTO:NPU,", "CPU\nGPU", "CPUX"])
def test_nonexistent_openvino_device_is_refused_with_valid_examples(value: str) -> None:
    with pytest.raises(BadValue, match=r"does not have the expected form: CPU, GPU, GPU\.1, NPU, AUTO:NPU,CPU"):
        openvino("device_type", value)


@pytest.mark.parametrize("value", ["CPU", "GPU.1", "AUTO:NPU,CPU", "HETERO:GPU.0,CPU"])
def test_openvino_device_is_kept_as_written(value: str) -> None:
    assert openvino("device_type", value) == value


@pytest.mark.parametrize("value", ["CPU", "cpu", " Cpu "])
def test_openvino_device_ignores_case(value: str) -> None:
    assert openvino("device_type", value) == "CPU"


TENSORRT = entry("TensorrtExecutionProvider")


@pytest.mark.parametrize("value", [1 << 30, "1073741824", "1GiB", "1 GiB", "1024 mib", 1073741824.0])
def test_every_spelling_of_a_size_is_one_size(value: object) -> None:
    assert normalize_option(TENSORRT, "trt_max_workspace_size", value) == "1073741824"


@pytest.mark.parametrize(("value", "expected"), [("1e9", "1000000000"), (1e9, "1000000000"), ("2GB", "2000000000"), (0, "0")])
def test_size_may_have_an_exponent(value: object, expected: str) -> None:
    assert normalize_option(TENSORRT, "trt_max_workspace_size", value) == expected


@pytest.mark.parametrize("value", ["1 XB", "-1", "GiB", "1.5GiB", "", "1e-3", "1e99", "9" * 30, "inf"])
def test_invalid_size_is_refused(value: str) -> None:
    with pytest.raises(BadValue):
        normalize_option(TENSORRT, "trt_max_workspace_size", value)


def test_spaces_in_a_list_do_not_matter() -> None:
    assert normalize_option(TENSORRT, "trt_op_types_to_exclude", "Conv , Relu") == "Conv,Relu"
    assert normalize_option(TENSORRT, "trt_tactic_sources", "-CUDNN, +CUBLAS") == "-CUDNN,+CUBLAS"
    for bad in ("Conv,,Relu", "", ","):
        with pytest.raises(BadValue):
            normalize_option(TENSORRT, "trt_op_types_to_exclude", bad)
    with pytest.raises(BadValue, match="does not have the expected form: -CUDNN"):
        normalize_option(TENSORRT, "trt_tactic_sources", "CUDNN")


NUMBER = Option("rate", "number", "unknown", "A rate.", "measured", minimum=0, maximum=2)


@pytest.mark.parametrize(
    ("value", "expected"), [("1", "1"), (1.0, "1"), ("0.50", "0.5"), (".5", "0.5"), ("5e-1", "0.5"), ("-0", "0")]
)
def test_every_spelling_of_a_number_is_one_number(value: object, expected: str) -> None:
    assert normalize(NUMBER, value, booleans=("0", "1"), names={}) == expected


@pytest.mark.parametrize("value", ["x", "2.5", "-1", "nan", "inf", "1e999", "0x1", True])
def test_number_outside_its_range_is_refused(value: object) -> None:
    with pytest.raises(BadValue):
        normalize(NUMBER, value, booleans=("0", "1"), names={})


def test_path_is_kept_as_written_and_an_empty_path_is_refused() -> None:
    vitis = entry("VitisAIExecutionProvider")
    assert normalize_option(vitis, "config_file", "Configs/Vaip.json") == "Configs/Vaip.json"
    for bad in ("", "a\0b", "a\nb"):
        with pytest.raises(BadValue):
            normalize_option(vitis, "config_file", bad)


@given(which=st.sampled_from(ALL_OPTIONS), value=scalars)
def test_normalizing_twice_changes_nothing(which: tuple[EpEntry, Option], value: object) -> None:
    found, option = which
    names = found.canonical_names(option.name)
    try:
        once = normalize(option, value, booleans=found.booleans, names=names)
    except BadValue:
        return
    assert normalize(option, once, booleans=found.booleans, names=names) == once


@given(value=st.integers(-(1 << 63), 1 << 63))
def test_quotes_around_a_number_do_not_matter(value: int) -> None:
    for name in ("vtcm_mb", "device_id", "soc_model", "op_affinity", "htp_arch"):
        outcomes = []
        for spelling in (value, str(value), f" {value}"):
            try:
                outcomes.append(qnn(name, spelling))
            except BadValue as error:
                outcomes.append(f"refused: {error}")
        assert len(set(outcomes)) == 1


@pytest.mark.parametrize(
    ("value", "expected"), [(True, "1"), (False, "0"), (3, "3"), (2.0, "2"), (0.5, "0.5"), (" text ", "text"), ("true", "true")]
)
def test_option_without_a_catalog_entry_is_formatted_like_onnx_runtime(value: object, expected: str) -> None:
    assert format_plain(value) == expected
