"""`epbuild.runtime`: an application opens an output on its device, or gets one sentence with the reason."""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epbuild import runtime
from epbuild.catalog.catalog import entries_for, known_eps
from epbuild.runtime import OpenError
from epbuild.runtime.plugins import PLUGINS, SDK_ATTRIBUTES
from tests.runtime.fake_onnxruntime import Machine, device

QNN, OPENVINO = "QNNExecutionProvider", "OpenVINOExecutionProvider"
NPU, EMULATOR = device(QNN, "NPU", "Qualcomm"), device(QNN, "CPU")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def snapdragon(machine: Machine) -> Machine:
    """Return a machine with an NPU and QNN's package."""
    machine.install("onnxruntime_qnn", EMULATOR, NPU)
    return machine


def emit(folder: Path, name: str = "phone", /, *models: str, **changes: Any) -> Path:
    """Write a folder as epbuild emits it, with empty models. `changes` apply to the manifest."""
    folder.mkdir(parents=True)
    names = models or ("relu",)
    for model in names:
        (folder / f"{model}_ctx.onnx").touch()
    info = {changes.pop("judged_by", QNN): text} if (text := changes.pop("compatibility", None)) else {}
    ep = {"ep": QNN, "provider_options": {"backend_type": "htp"}, **changes.pop("ep", {})}
    document = {
        "format": 1,
        "group": "main",
        "share_weights": False,
        "target": {"name": name, "eps": [ep], "session_options": changes.pop("session_options", {})},
        "toolchain": {"distributions": {"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0"}},
        "models": [{"name": model, "file": f"{model}_ctx.onnx", "compatibility": info} for model in names],
        **changes,
    }
    (folder / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def test_only_models_that_were_compiled_together_share_contexts(snapdragon: Machine, tmp_path: Path) -> None:
    keys = {"a_0": "1", "b_0": "1", "alone": "2", "head": "3"}
    models = [
        {"name": name, "file": f"{name}_ctx.onnx", "action_key": key, **({"compiled": False} if name == "head" else {})}
        for name, key in keys.items()
    ]
    folder = emit(tmp_path / "out", "phone", *keys, share_weights=True, models=models)
    with runtime.open(folder) as group:
        variant = group.variant
    assert [*variant.alone, *variant.uncompiled] == ["alone", "head"]


def refused(*arguments: Any, code: str, **named: Any) -> str:
    with pytest.raises(OpenError) as caught:
        runtime.open(*arguments, **named)
    assert caught.value.code == code
    assert f"[{code}]" in str(caught.value)
    return str(caught.value)


def test_an_adapter_that_is_unknown_or_unreadable_is_reported(snapdragon: Machine, tmp_path: Path) -> None:
    vars(snapdragon.module).update(RunOptions=type("RunOptions", (), {}), LoraAdapter=type("LoraAdapter", (), {}))
    folder = emit(tmp_path / "out", files=[{"path": "french.onnx_adapter", "role": "adapter"}])
    with runtime.open(folder) as group:
        with pytest.raises(KeyError, match="has these adapters: french"):
            group.run_options("german.onnx_adapter")
        with pytest.raises(OpenError, match=r"cannot read the adapter .*french.onnx_adapter"):
            group.run_options("french.onnx_adapter")


def test_models_open_in_order_with_emitted_options_and_close_in_reverse(snapdragon: Machine, tmp_path: Path) -> None:
    ep = {"provider_options": {"backend_type": "htp", "soc_model": "SM8750"}}
    entries = {"session.disable_cpu_ep_fallback": "1"}
    folder = emit(tmp_path / "out", "phone", "prefill", "decode", "tail", share_weights=True, ep=ep, session_options=entries)
    with runtime.open(folder / "manifest.json") as group:
        assert list(group) == ["prefill", "decode", "tail"]
        assert group["decode"] is not group["prefill"]
        assert group.variant.target == "phone"
    assert snapdragon.registered == [(QNN, "/onnxruntime_qnn/library.so")]
    assert snapdragon.log == [
        *("open prefill_ctx", "open decode_ctx", "open tail_ctx"),
        *("close tail_ctx", "close decode_ctx", "close prefill_ctx"),
    ]
    assert len(snapdragon.options) == 3
    for options in snapdragon.options:
        assert options.providers == [([(QNN, "NPU")], {"backend_type": "htp", "soc_model": "SM8750"})]
        assert options.entries == {"session.disable_cpu_ep_fallback": "1", "ep.share_ep_contexts": "1"}


def test_models_without_sharing_get_no_sharing_options(snapdragon: Machine, tmp_path: Path) -> None:
    runtime.open(emit(tmp_path / "out")).close()
    assert snapdragon.options[0].entries == {}


def test_registered_plugin_is_not_registered_again(snapdragon: Machine, tmp_path: Path) -> None:
    folder = emit(tmp_path / "out")
    for _ in range(2):
        runtime.open(folder).close()
    assert len(snapdragon.registered) == 1
    snapdragon.registered.clear()
    snapdragon.devices = [NPU]
    runtime.open(folder).close()
    assert snapdragon.registered == []


def test_package_of_the_manifest_is_used(machine: Machine, tmp_path: Path) -> None:
    machine.install("acme_ep", device("AcmeExecutionProvider", "NPU"))
    folder = emit(tmp_path / "out", ep={"ep": "AcmeExecutionProvider", "module": "acme_ep"})
    runtime.open(folder).close()
    assert machine.registered == [("AcmeExecutionProvider", "/acme_ep/library.so")]


def test_built_in_ep_is_selected_by_its_name(machine: Machine, tmp_path: Path) -> None:
    for number, module in enumerate(({}, {"module": "onnxruntime"})):
        ep = {"ep": "BuiltInExecutionProvider", "provider_options": {"device_type": "NPU"}, **module}
        runtime.open(emit(tmp_path / str(number), ep=ep)).close()
        assert machine.options[-1].providers == [("BuiltInExecutionProvider", {"device_type": "NPU"})]
    assert machine.registered == []


ASSET = f"../shared_assets/sha256-{'0' * 64}"
LIBRARY_OPS = {"library": "libmine.so", "sha256": "ab" * 32}


def test_every_session_gets_custom_operators_of_packages_and_libraries(snapdragon: Machine, tmp_path: Path) -> None:
    snapdragon.install("acme_ops")
    mine = tmp_path / "mine.dll"
    mine.touch()
    folder = emit(tmp_path / "out", "phone", "prefill", "decode", custom_ops=[{"module": "acme_ops"}, LIBRARY_OPS])
    with runtime.open(folder, custom_ops={"libmine.so": mine, "libother.so": "not/needed/here.so"}) as group:
        assert [ops.name for ops in group.variant.custom_ops] == ["acme_ops", "libmine.so"]
    assert [options.custom_ops for options in snapdragon.options] == [["/acme_ops/library.so", str(mine)]] * 2
    with runtime.open(folder, custom_ops={"libmine.so": mine, "acme_ops": str(mine)}):
        assert snapdragon.options[-1].custom_ops == [str(mine), str(mine)], "an application may have a package's library itself"


def test_custom_operator_library_is_relative_to_its_folder(
    snapdragon: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.so").touch()
    monkeypatch.chdir(tmp_path)
    runtime.open(emit(tmp_path / "out", custom_ops=[LIBRARY_OPS]), custom_ops={"libmine.so": "mine.so"}).close()
    assert snapdragon.options[-1].custom_ops == [str(tmp_path / "mine.so")]


def test_missing_custom_operators_are_reported_with_a_hint(snapdragon: Machine, tmp_path: Path) -> None:
    folder = emit(tmp_path / "out", custom_ops=[LIBRARY_OPS])
    text = refused(folder, code="EPB634")
    assert (
        'phone needs the custom operators of libmine.so; pass the path of the library on this machine with custom_ops={"libm'
        in text
    )
    text = refused(folder, code="EPB634", custom_ops={"libmine.so": tmp_path / "nosuch.so"})
    assert (
        f"phone needs the custom operators of libmine.so, but the file in custom_ops= does not exist: {tmp_path / 'nosuch.so'}"
        in text
    )
    distributions = {"onnxruntime": "1.31.1", "no-such-ops": "1.0"}
    folder = emit(tmp_path / "package", custom_ops=[{"module": "no_such_ops"}], toolchain={"distributions": distributions})
    text = refused(folder, code="EPB634")
    assert "phone needs the custom operators of the package no-such-ops==1.0, which cannot be imported: No module named" in text
    (tmp_path / "broken.so").touch()
    text = refused(tmp_path / "out", code="EPB636", custom_ops={"libmine.so": tmp_path / "broken.so"})
    assert text.startswith(f"the custom operators of libmine.so cannot be registered from {tmp_path / 'broken.so'}: invalid ELF")
    assert not snapdragon.log


@pytest.mark.parametrize("given", ["libmine.so", ["libmine.so"], {"libmine.so": 5}, {"libmine.so": b"lib"}])
def test_invalid_custom_operator_argument_is_refused(snapdragon: Machine, tmp_path: Path, given: Any) -> None:
    assert "custom_ops must " in refused(emit(tmp_path / "out"), code="EPB654", custom_ops=given)


@pytest.mark.parametrize("listed", [{}, {"library": 5}, {"module": None}, "libmine.so"])
def test_manifest_with_invalid_custom_operators_is_refused(snapdragon: Machine, tmp_path: Path, listed: Any) -> None:
    assert "is invalid" in refused(emit(tmp_path / "out", custom_ops=[listed]), code="EPB632")


def test_variant_with_the_best_onnx_runtime_verdict_is_opened(snapdragon: Machine, tmp_path: Path) -> None:
    verdicts = {
        "old": "EP_SUPPORTED_PREFER_RECOMPILATION",
        "mine": "EP_SUPPORTED_OPTIMAL",
        "other": "EP_UNSUPPORTED",
        "silent": "EP_NOT_APPLICABLE",
    }
    snapdragon.knows_compatibility(lambda _, text: verdicts[text])
    for name in verdicts:
        emit(tmp_path / name, f"phone-{name}", compatibility=name)
    chosen = [("mine", "phone-mine"), ("old", "phone-old"), ("silent", "phone-silent")]
    for name, target in chosen:
        with runtime.open(tmp_path) as group:
            assert group.variant.target == target
        (tmp_path / name / "manifest.json").unlink()
    text = refused(tmp_path, code="EPB634")
    assert (
        "was compiled for other devices: QNNExecutionProvider does not support the compiled models on NPU from Qualcomm "
        "(compatibility: other)" in text
    )
    assert {kind for kind, _ in snapdragon.asked} == {"NPU"}  # QNN crashes on any other question


def test_least_compatible_model_counts_for_its_group(snapdragon: Machine, tmp_path: Path) -> None:
    snapdragon.knows_compatibility(lambda _, text: text)
    good, bad = "EP_SUPPORTED_OPTIMAL", "EP_UNSUPPORTED"
    models = [{"name": name, "file": "relu_ctx.onnx", "compatibility": {QNN: info}} for name, info in (("a", good), ("b", bad))]
    refused(emit(tmp_path / "out", models=models), code="EPB634")


def test_ep_without_compatibility_information_is_ignored(snapdragon: Machine, tmp_path: Path) -> None:
    snapdragon.devices.append(device("CPUExecutionProvider", "CPU"))
    snapdragon.knows_compatibility(lambda _, text: text)
    for name, verdict in (("a", "EP_SUPPORTED_PREFER_RECOMPILATION"), ("b", "EP_SUPPORTED_OPTIMAL")):
        eps = [{"ep": QNN, "provider_options": {}}, {"ep": "CPUExecutionProvider", "provider_options": {}}]
        emit(tmp_path / name, compatibility=verdict, target={"name": name, "eps": eps, "session_options": {}})
    with runtime.open(tmp_path) as group:
        assert group.variant.target == "b"
    assert [provider[0] for provider in snapdragon.options[0].providers] == [[(QNN, "NPU")], [("CPUExecutionProvider", "CPU")]]


def test_undecidable_variant_is_not_guessed(machine: Machine, tmp_path: Path) -> None:
    machine.install("onnxruntime_qnn", EMULATOR)
    machine.knows_compatibility(lambda *_: pytest.fail("QNN crashes when it is asked of a CPU"))
    for soc in ("SC8380XP", "SM8750"):
        emit(tmp_path / soc, soc, compatibility=f"v2:{soc}")
    text = refused(tmp_path, code="EPB633")
    assert text.startswith(
        "ONNX Runtime does not know which variant fits this machine: SC8380XP, SM8750; select one with target="
    )
    with runtime.open(tmp_path, target="SM8750") as group:
        assert group.variant.manifest == tmp_path / "SM8750/manifest.json"
    with runtime.open(tmp_path / "SC8380XP") as group:
        assert group.variant.target == "SC8380XP"
    assert "available targets: SC8380XP, SM8750" in refused(tmp_path, target="SM8650", code="EPB633")


def test_npu_is_preferred_by_default(machine: Machine, tmp_path: Path) -> None:
    machine.devices = [device(OPENVINO, kind, "Intel") for kind in ("CPU", "GPU", "NPU")]
    runtime.open(emit(tmp_path / "out", ep={"ep": OPENVINO})).close()
    assert machine.options[-1].providers[0][0] == [(OPENVINO, "NPU")]


def test_failing_compatibility_check_decides_nothing(machine: Machine, tmp_path: Path) -> None:
    def judge(*_: Any) -> str:
        raise RuntimeError("not on this device")

    machine.devices = [device(OPENVINO, "CPU", "Intel")]
    machine.knows_compatibility(judge)
    runtime.open(emit(tmp_path / "out", ep={"ep": OPENVINO}, compatibility="{}", judged_by=OPENVINO)).close()
    assert machine.asked == [("CPU", "{}")]
    assert len(machine.options) == 1


@pytest.mark.parametrize(
    ("wish", "outcome"),
    [
        ({"type": "gpu"}, "GPU"),
        ({"type": "npu", "vendor": "intel", "metadata": {"npu_platform": "4000"}}, "NPU"),
        ({"type": "npu", "metadata": {"npu_platform": "5010"}, "virtual": True}, "NPU"),
        ({"type": "npu", "metadata": {"npu_platform": "5010"}}, "type npu, npu_platform 5010; available devices: CPU from Intel"),
        ({"vendor": "Other"}, "vendor Other; available devices: CPU from Intel, GPU from Intel, NPU from Intel"),
    ],
)
def test_device_requested_by_the_recipe_is_used(machine: Machine, tmp_path: Path, wish: Any, outcome: str) -> None:
    machine.devices = [device(OPENVINO, kind, "Intel") for kind in ("CPU", "GPU")]
    machine.devices.append(device(OPENVINO, "NPU", "Intel", npu_platform="4000"))
    folder = emit(tmp_path / "out", ep={"ep": OPENVINO, "device": wish})
    if len(outcome) == 3:
        runtime.open(folder).close()
        assert machine.options[-1].providers[0][0] == [(OPENVINO, outcome)]
    else:
        assert outcome in refused(folder, code="EPB634")


def test_only_the_requested_devices_are_used(snapdragon: Machine, tmp_path: Path) -> None:
    folder = emit(tmp_path / "out")
    runtime.open(folder, devices=[EMULATOR]).close()
    assert snapdragon.options[-1].providers[0][0] == [(QNN, "CPU")]
    assert "none is available among the devices in devices=" in refused(folder, devices=[], code="EPB634")
    assert snapdragon.registered == []


def test_shared_context_that_would_crash_the_process_is_refused(machine: Machine, tmp_path: Path) -> None:
    machine.install("onnxruntime_qnn", EMULATOR)
    text = refused(emit(tmp_path / "out", "phone", "a", "b", share_weights=True), code="EPB634")
    assert "phone has models with shared weights, and such models need a Snapdragon" in text


def test_merged_shared_context_is_refused(machine: Machine, tmp_path: Path) -> None:
    machine.install("onnxruntime_qnn", EMULATOR)
    model = {"name": "relu", "file": "relu_ctx.onnx", "compatibility": {}, "merged": [{"name": "a"}, {"name": "b"}]}
    text = refused(emit(tmp_path / "out", "phone", share_weights=True, models=[model]), code="EPB634")
    assert "phone has models with shared weights, and such models need a Snapdragon" in text


def test_deficiency_of_each_variant_is_reported(machine: Machine, tmp_path: Path) -> None:
    emit(tmp_path / "1", "phone")
    emit(tmp_path / "2", "laptop", ep={"ep": OPENVINO, "module": "onnxruntime_ep_openvino"})
    emit(tmp_path / "3", "pc", ep={"ep": "TensorrtExecutionProvider"})
    emit(tmp_path / "4", "half")
    (tmp_path / "4/relu_ctx.onnx").unlink()
    machine.install("onnxruntime_ep_openvino")
    head, *rows = refused(tmp_path, code="EPB634").splitlines()
    assert head == "no variant of main fits this machine [EPB634]"
    assert rows[0].startswith(f"  phone needs {QNN} from the package onnxruntime-qnn==2.7.0, which cannot be imported: ")
    assert rows[1:] == [
        f"  laptop needs a device for {OPENVINO}, but none is available on this machine",
        "  pc needs TensorrtExecutionProvider, which onnxruntime 1.99.0 does not provide on this machine",
        f"  half is missing its file {tmp_path / '4/relu_ctx.onnx'}",
    ]


def test_unregistrable_library_is_reported(snapdragon: Machine, tmp_path: Path) -> None:
    snapdragon.registered.append((QNN, "by the application, without a device"))
    assert "whose library cannot be registered: EP library is already" in refused(emit(tmp_path / "out"), code="EPB634")


def test_model_that_fails_to_open_closes_earlier_models(snapdragon: Machine, tmp_path: Path) -> None:
    snapdragon.broken.add("c_ctx")
    text = refused(emit(tmp_path / "out", "phone", "a", "b", "c"), code="EPB636")
    assert "c_ctx.onnx for phone: [ONNXRuntimeError] : 10 : INVALID_GRAPH" in text
    assert snapdragon.log == ["open a_ctx", "open b_ctx", "close b_ctx", "close a_ctx"]


def test_session_held_longer_than_its_group_causes_a_warning(snapdragon: Machine, tmp_path: Path) -> None:
    group = runtime.open(emit(tmp_path / "out", "phone", "a", "b"))
    held = group["b"]
    with pytest.warns(ResourceWarning, match="the session of the model b is still referenced"):
        group.close()
    assert snapdragon.log[-1] == "close a_ctx"
    del held
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group.close()


def test_unknown_name_and_closed_group_are_errors(snapdragon: Machine, tmp_path: Path) -> None:
    with (
        runtime.open(emit(tmp_path / "out", "phone", "prefill", "decode")) as group,
        pytest.raises(KeyError, match="the group main has: prefill, decode"),
    ):
        group["decoder"]
    with pytest.raises(ValueError, match="the group main is closed"):
        group["prefill"]


def test_application_can_configure_session_options(snapdragon: Machine, tmp_path: Path) -> None:
    def configure(model: str, options: Any) -> None:
        options.entries["session.intra_op.allow_spinning"] = "0"
        options.name = model

    runtime.open(emit(tmp_path / "out", "phone", "a", "b"), configure=configure).close()
    assert [(vars(options)["name"], options.entries) for options in snapdragon.options] == [
        (name, {"session.intra_op.allow_spinning": "0"}) for name in ("a", "b")
    ]


def test_several_groups_need_a_name_and_unfinished_outputs_are_ignored(snapdragon: Machine, tmp_path: Path) -> None:
    emit(tmp_path / "one/phone", group="one")
    emit(tmp_path / "two/phone", group="two")
    emit(tmp_path / "two/.phone.epbuild-1f2e3d4c", group="being written")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/manifest.json").write_text('{"schema_version": "1.0"}', encoding="utf-8")
    assert "contains several groups: one, two; select one with group=" in refused(tmp_path, code="EPB633")
    assert "has no group 'three'; available groups: one, two" in refused(tmp_path, group="three", code="EPB633")
    with runtime.open(tmp_path, group="two") as group:
        assert group.variant.group == "two"
    assert "there is no epbuild manifest in" in refused(tmp_path / "package", code="EPB632")
    assert "is not an epbuild manifest" in refused(tmp_path / "package/manifest.json", code="EPB632")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "there is no manifest at"),
        ("{", "cannot be read: "),
        ('{"format": 2, "group": "", "target": {}, "models": []}', "has the format 2, but this reader supports only 1"),
        ('{"format": 1, "group": "", "target": {}, "models": []}', "is invalid: KeyError: 'name'"),
        ('{"format": 1, "group": "", "target": [], "models": []}', "is invalid: TypeError"),
    ],
)
def test_unusable_manifest_is_refused(machine: Machine, tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "manifest.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
        assert told in refused(tmp_path, code="EPB632")
    assert told in refused(path, code="EPB632")


VALID: dict[str, Any] = {
    "format": 1,
    "group": "main",
    "share_weights": True,
    "target": {
        "name": "phone",
        "eps": [
            {
                "ep": QNN,
                "module": "onnxruntime_qnn",
                "provider_options": {"backend_type": "htp"},
                "device": {"type": "npu", "vendor": "Qualcomm", "metadata": {"soc": "60"}, "virtual": True},
            }
        ],
        "session_options": {"session.intra_op.allow_spinning": "0"},
    },
    "toolchain": {"distributions": {"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0"}},
    "models": [{"name": "relu", "file": "relu_ctx.onnx", "compatibility": {QNN: "v2"}, "ep_context_nodes": []}],
    "files": [{"path": "relu_ctx.onnx", "role": "model"}, {"path": "relu.bin", "role": "context-binary"}],
}
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.sampled_from(["a\0", "\ud800", ".."]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=9), inner, max_size=2),
    max_leaves=4,
)


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    for name, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths_in(item, (*at, name))


def with_other(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[at[0]] = with_other(document[at[0]], at[1:], value)
    return copy


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.sampled_from(list(paths_in(VALID))), value=ANYTHING, kept=st.booleans())
def test_any_manifest_opens_a_group_or_raises_an_open_error(
    snapdragon: Machine, tmp_path: Path, at: tuple[Any, ...], value: Any, kept: bool
) -> None:
    for name in ("relu_ctx.onnx", "relu.bin"):
        (tmp_path / name).touch()
    document = with_other(VALID, at, [value] if not kept else value)
    (tmp_path / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    with contextlib.suppress(OpenError), runtime.open(tmp_path) as group:
        assert len(group) > 0


def test_unchanged_base_manifest_opens(snapdragon: Machine, tmp_path: Path) -> None:
    for name in ("relu_ctx.onnx", "relu.bin"):
        (tmp_path / name).touch()
    (tmp_path / "manifest.json").write_text(json.dumps(VALID), encoding="utf-8")
    with runtime.open(tmp_path) as group:
        assert list(group) == ["relu"]


def test_value_of_a_wrong_type_is_reported_as_a_manifest_error(snapdragon: Machine, tmp_path: Path) -> None:
    for at, value in {
        ("target", "eps"): [],
        ("target", "eps", 0, "device"): 5,
        ("target", "eps", 0, "device", "type"): 5,
        ("target", "eps", 0, "module"): 5,
        ("target", "session_options"): [],
        ("models",): [],
        ("models", 0, "compatibility"): {QNN: [1]},
        ("share_weights",): "no",
    }.items():
        (tmp_path / "manifest.json").write_text(json.dumps(with_other(VALID, at, value)), encoding="utf-8")
        assert "is invalid: " in refused(tmp_path, code="EPB632"), at
    (tmp_path / "manifest.json").write_text("[" * 100_000, encoding="utf-8")
    assert "cannot be read" in refused(tmp_path, code="EPB632")


@pytest.mark.parametrize("missing", ["relu_ctx.onnx", "relu.bin"])
def test_variant_with_missing_files_does_not_fit(snapdragon: Machine, tmp_path: Path, missing: str) -> None:
    folder = emit(tmp_path / "out", "phone", files=VALID["files"])
    (folder / "relu.bin").touch()
    (folder / missing).unlink()
    assert f"phone is missing its file {folder / missing}" in refused(folder, code="EPB634")
    assert snapdragon.log == []
    (folder / missing).touch()
    runtime.open(folder).close()


@pytest.mark.parametrize(
    "wrong",
    [{"path": 5}, {"path": None}, {"path": b"out"}, {"group": 5}, {"target": ["phone"]}, {"devices": 5}, {"devices": [5]},
     {"devices": "NPU"}, {"devices": NPU}, {"configure": 5}],
)  # fmt: skip
def test_invalid_argument_is_refused(snapdragon: Machine, tmp_path: Path, wrong: dict[str, Any]) -> None:
    folder = emit(tmp_path / "out")
    path = wrong.pop("path", folder)
    text = refused(path, **wrong, code="EPB654")
    assert " must be " in text


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "\ud800"])
def test_impossible_path_is_refused(snapdragon: Machine, path: str) -> None:
    refused(path, code="EPB632")


@pytest.mark.parametrize("file", ["../relu_ctx.onnx", "/relu_ctx.onnx", "C:relu_ctx.onnx", "a\\..\\..\\relu.onnx", ""])
def test_manifest_path_outside_its_folder_is_refused(snapdragon: Machine, tmp_path: Path, file: str) -> None:
    folder = emit(tmp_path / "out", models=[{"name": "relu", "file": file, "compatibility": {}}])
    (tmp_path / "relu_ctx.onnx").touch()
    assert "is not a path inside the manifest's folder" in refused(folder, code="EPB632")


@pytest.mark.parametrize(
    "place", ["../w.data", "../shared_assets/w.data", f"{ASSET}/../w.data", f"{ASSET}/other.data", f"/{ASSET}/w.data"]
)
def test_shared_file_outside_a_shared_asset_is_refused(snapdragon: Machine, tmp_path: Path, place: str) -> None:
    folder = emit(tmp_path / "out", files=[{"path": "w.data", "role": "external-data", "shared": place}])
    assert "is invalid: ValueError" in refused(folder, code="EPB632")
    folder = emit(tmp_path / "other", files=[{"path": "w.bin", "role": "context-binary", "shared": f"{ASSET}/w.bin"}])
    assert "is not external data in a shared asset" in refused(folder, code="EPB632")


def test_onnx_runtime_without_plugin_eps_is_refused(snapdragon: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = emit(tmp_path / "out")
    del vars(snapdragon.module)["register_execution_provider_library"]
    assert "onnxruntime 1.99.0 is too old" in refused(folder, code="EPB635")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "onnxruntime cannot be imported" in refused(folder, code="EPB635")


def test_runtime_and_catalog_know_the_same_packages() -> None:
    plugins = {
        distribution: (packaging.ep, packaging.module)
        for ep in known_eps()
        for packaging in entries_for(ep)
        if packaging.kind == "plugin"
        for distribution in packaging.distributions
    }
    assert plugins == PLUGINS
    attributes = {ep: entry.binary.sdk_attribute for ep in known_eps() for entry in entries_for(ep)}
    assert {ep: attribute for ep, attribute in attributes.items() if attribute is not None} == SDK_ATTRIBUTES


def test_a_newer_sdk_is_reported_before_the_session_and_in_its_error(snapdragon: Machine, tmp_path: Path) -> None:
    nodes = [{"source": QNN, "ep_sdk_version": "v2.60.0.1"}]
    folder = emit(tmp_path / "out", models=[{"name": "relu", "file": "relu_ctx.onnx", "ep_context_nodes": nodes}])
    newer = "the model relu was compiled with the SDK v2.60.0.1, which is newer than 2.51.0, the SDK of QNNExecutionProvider here"
    with pytest.warns(RuntimeWarning, match=re.escape(newer)), runtime.open(folder):
        pass
    snapdragon.broken.add("relu_ctx")
    with pytest.warns(RuntimeWarning):
        assert f"{newer}; install onnxruntime-qnn==2.7.0" in refused(folder, code="EPB636")
    snapdragon.broken.clear()
    snapdragon.install("onnxruntime_qnn", sdk="2.60.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.open(folder).close()


def test_runtime_can_be_copied_into_an_application_of_python_3_10(tmp_path: Path) -> None:
    shutil.copytree(Path(runtime.__file__).parent, tmp_path / "copied", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / "copied").iterdir():
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
        assert {name.partition(".")[0] for name in imported} <= {*sys.stdlib_module_names, "onnxruntime", "cryptography"}
    script = "import sys, copied; print(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    done = subprocess.run([sys.executable, "-S", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == ["__main__", "copied"]


def test_concurrently_opened_groups_register_their_plugin_once(snapdragon: Machine, tmp_path: Path) -> None:
    folder = emit(tmp_path / "out")
    with ThreadPoolExecutor(8) as threads:
        for group in threads.map(lambda _: runtime.open(folder), range(32)):
            group.close()
    assert len(snapdragon.registered) == 1
    assert len(snapdragon.options) == 32


def test_forgotten_group_leaves_nothing_open(snapdragon: Machine, tmp_path: Path) -> None:
    runtime.open(emit(tmp_path / "out"))
    gc.collect()
    assert snapdragon.log == ["open relu_ctx", "close relu_ctx"]
